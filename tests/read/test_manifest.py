"""A manifest is a file that anybody may have edited: what cannot be is one sentence, what is not ours is left alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kineto import COMMON, write

import tracekit
from tracekit import cli
from tracekit.errors import InputError
from tracekit.manifest import read_manifest

OURS: dict[str, Any] = {"format": 1, "strategy": "fsdp2", "world_size": 1, "psi": 10, "psi_train": 10}
WEIGHT = {"name": "w", "shape": [10], "dtype": "float32", "numel": 10}


def put(folder: Path, content: object, name: str = "manifest.json") -> Path:
    folder.mkdir(exist_ok=True)
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    (folder / name).write_bytes(text)
    return folder


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"psi": 0}, ">= 1 - at `$.psi`"),
        ({"psi": -1}, ">= 1 - at `$.psi`"),
        ({"psi": 10**30}, "<= 100000000000000000 - at `$.psi`"),
        ({"psi": "many"}, "got `str` - at `$.psi`"),
        ({"psi_train": -1}, ">= 0 - at `$.psi_train`"),
        ({"world_size": 0}, ">= 1 - at `$.world_size`"),
        ({"world_size": -4}, ">= 1 - at `$.world_size`"),
        ({"micro_batches": 0}, ">= 1 - at `$.micro_batches`"),
        ({"micro_batches": 100_000, "parameters": [WEIGHT] * 100}, "is 10,100,000 collectives a step"),
        ({"micro_batches": 100_000, "units": [{"name": ""}] * 100}, "is 10,100,000 collectives a step"),
        ({"micro_batches": 100_000, "psi": 10**16}, "elements a step, above 100,000,000,000,000,000"),
        ({"micro_batches": 100_001}, "<= 100000 - at `$.micro_batches`"),
        ({"micro_batches": True}, "got `bool` - at `$.micro_batches`"),
        ({"mesh": [{"axis": "dp_shard", "size": 0}]}, ">= 1 - at `$.mesh[0].size`"),
        ({"mesh": [{"axis": "dp_shard", "size": 2**40}]}, "<= 1048576 - at `$.mesh[0].size`"),
        ({"ranks": [{"rank": 2**40}]}, "<= 1048575 - at `$.ranks[0].rank`"),
        ({"ranks": [{"rank": -1}]}, ">= 0 - at `$.ranks[0].rank`"),
        ({"ranks": [{"rank": 0, "traces": [{"cycle": 2**40}]}]}, "<= 2147483647 - at `$.ranks[0].traces[0].cycle`"),
        ({"ranks": [{"rank": 0, "held_bytes": {"parameters": 2**70}}]}, "at `$.ranks[0].held_bytes.parameters`"),
        ({"step_times": {"overhead_ratio": 1e300}}, "at `$.step_times.overhead_ratio`"),
        ({"parameters": [{**WEIGHT, "dtype": "float3"}]}, "no data type 'float3' - at `$.parameters[0]`"),
        ({"buffers": [{**WEIGHT, "dtype": "torch.float32"}]}, "no data type 'torch.float32' - at `$.buffers[0]`"),
        ({"precision": {"reduce_dtype": "bf16"}}, "no data type 'bf16' - at `$.precision`"),
        ({"options": {"reduce_bucket_size": "x"}}, "got `str` - at `$.options.reduce_bucket_size`"),
        ({"options": {"bucket_mb": -1}}, ">= 0 - at `$.options.bucket_mb`"),
        ({"options": {"grad_accum_dtype": "x"}}, "no data type 'x' - at `$.options`"),
        ({"format": -3}, ">= 1 - at `$.format`"),
        ({"format": "1"}, "got `str` - at `$.format`"),
    ],
)
def test_what_cannot_be_is_one_sentence_and_exit_2(
    wrong: dict[str, Any], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "rank0.json", COMMON)
    put(tmp_path, OURS | wrong)
    assert cli.run(["show", "ranks", str(tmp_path), "--format", "json"]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"tracekit: {tmp_path / 'manifest.json'}: not a manifest that tracekit wrote (")
    assert why in err
    assert err.count("\n") == 1


def test_what_a_rank_wrote_of_itself_is_held_to_the_same(tmp_path: Path) -> None:
    put(tmp_path, OURS)
    put(tmp_path, {"rank": 2**31}, "rank0.meta.json")
    with pytest.raises(InputError, match=r"rank0\.meta\.json: .*<= 1048575 - at `\$\.rank`"):
        read_manifest(tmp_path)


def test_extremes_that_can_be_are_read(tmp_path: Path) -> None:
    most = {
        "psi": 10**17,
        "psi_train": 0,
        "world_size": 2**20,
        "mesh": [{"axis": "dp_shard", "size": 1}],
        "precision": {"param_dtype": None, "reduce_dtype": "float8_e4m3fn"},
        "parameters": [{**WEIGHT, "shape": [0], "numel": 0, "dtype": "complex64"}],
        "options": {"reduce_bucket_size": 5e8, "bucket_mb": 0.5, "seq_len": None, "anything": {"else": [-1]}},
        "units": [{"name": "", "reshard_after_forward": 2}],
    }
    manifest = read_manifest(put(tmp_path, OURS | most))
    assert manifest is not None
    assert (manifest.psi, manifest.world_size, manifest.parameters[0].dtype) == (10**17, 2**20, "complex64")


@pytest.mark.parametrize("more", [{}, {"strategy": {"name": "fsdp2"}}, {"psi": "10"}, {"ranks": {"0": {}}}])
def test_a_newer_format_asks_for_an_update_whatever_else_changed(more: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="manifest format 2 is newer than 1; update tracekit"):
        read_manifest(put(tmp_path, OURS | {"format": 2} | more))
    renamed = {"tool": "tracekit 9.0.0", "format": 2, "how": "fsdp2"}
    with pytest.raises(InputError, match="update tracekit"):
        read_manifest(put(tmp_path, renamed))


@pytest.mark.parametrize("foreign", [{"name": "my app"}, {"format": "zip"}, {"strategy": "x"}, [], [OURS], None, 7])
def test_a_foreign_manifest_is_no_error_but_a_repair(foreign: object, tmp_path: Path) -> None:
    write(tmp_path / "rank0.json", COMMON)
    put(tmp_path, foreign)
    run = tracekit.open(tmp_path)
    assert run.manifest is None
    assert run.repairs.select("file", "what", "done").rows() == [
        (
            str(tmp_path / "manifest.json"),
            "not a manifest that tracekit wrote (it has neither a format nor a strategy)",
            "file left out",
        )
    ]


def test_a_manifest_that_lost_a_field_is_still_ours(tmp_path: Path) -> None:
    signed = {key: value for key, value in OURS.items() if key != "strategy"} | {"tool": "tracekit 0.1.0"}
    with pytest.raises(InputError, match="missing required field `strategy`"):
        read_manifest(put(tmp_path, signed))


@pytest.mark.parametrize("content", [b"", b'{"format": 1, "stra', '{"format": 1}'.encode("utf-16")])
def test_damage_is_one_sentence(content: bytes, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"manifest\.json: not a manifest .*; record the run again, or remove"):
        read_manifest(put(tmp_path, content))


def test_depth_without_end_is_one_sentence(tmp_path: Path) -> None:
    nested = b'{"format": 1, "strategy": "x", "options": {"a": ' + b"[" * 10**5 + b"]" * 10**5 + b"}}"
    with pytest.raises(InputError, match="not a manifest"):
        read_manifest(put(tmp_path, nested))


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        (
            [{"rank": r, "traces": [{"cycle": 0, "reason": "the loop ended after step 2"}]} for r in (0, 1)],
            "its manifest says: the loop ended after step 2 (rank 0, 1)",
        ),
        (
            [{"rank": 0, "traces": [{"cycle": 0, "reason": "killed"}, {"cycle": 1, "reason": "killed"}]}],
            "its manifest says: killed (rank 0)",
        ),
        ([{"rank": 3, "traces": [{"cycle": 0}]}], "its manifest says: not written (rank 3)"),
        (
            [{"rank": 0, "traces": [{"cycle": 0, "file": "rank0.json.gz", "complete": True}]}],
            "its manifest names files that are not there (rank 0)",
        ),
        ([], "its manifest has no word on any trace"),
        ([{"rank": 0, "traces": [{"cycle": 0, "reason": "\x1b[31m"}]}], "says: \\x1b[31m (rank 0)"),
    ],
)
def test_a_run_that_recorded_nothing_says_why(
    ranks: list[dict[str, Any]], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(tmp_path, OURS | {"ranks": ranks})
    assert cli.run(["show", "steps", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1
