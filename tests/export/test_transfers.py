"""Files whose collectives last their transfer, read by the class of torch that they are for."""

from __future__ import annotations

import json
import os
from pathlib import Path

import polars as pl
import pytest
from kineto import COMMON, document

import tracekit
from tracekit import cli
from tracekit.errors import InputError, UsageError
from tracekit.export.transfers import transfers

ROOT = Path(__file__).parents[2]
CORPUS = Path(os.environ.get("TRACEKIT_CORPUS", ROOT.parent / "shared" / "corpus"))


def loaded(path):
    """What torch's profile-guided estimation makes of the file."""
    torch_side = pytest.importorskip(
        "torch._inductor.fx_passes.profile_guided_estimation",
        reason="this torch has no profile-guided estimation, or none is installed",
    )
    data = torch_side.ProfileData()
    data.load(str(path))
    return data


def exported(run, tmp_path, rank=None):
    made = transfers(run, rank)
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(made.document))
    return made, path


@pytest.mark.parametrize("name", ["fsdp2", "hsdp", "zero3-deepspeed", "ddp"])
def test_rows_are_made_for_a_backend_of_the_cpu(tmp_path, name):
    run = tracekit.open(ROOT / "traces" / name, cache=False)
    made, path = exported(run, tmp_path)
    known = run.collectives.filter(pl.col("rank") == 0).drop_nulls("transfer_ns")
    data = loaded(path)
    assert made.num_known == len(data.collectives) == known.height > 0
    assert sorted(record.duration_us for record in data.collectives) == pytest.approx(
        sorted(ns / 1000 for ns in known["transfer_ns"])
    )
    assert {record.group_size for record in data.collectives} == set(known["group_size"])
    assert all(len(record.pg_ranks) == record.group_size and 0 in record.pg_ranks for record in data.collectives)
    sent = {(record.in_nelems, record.out_nelems) for record in data.collectives}
    assert sent == set(known.select("in_numel", "out_numel").rows())
    kinds = {key[0] for key in data.get_collective_keys()}
    assert kinds >= {kind for kind in known["kind"] if kind in ("all_gather", "reduce_scatter", "all_reduce")}


def test_groups_along_an_axis_of_the_mesh(tmp_path):
    run = tracekit.open(ROOT / "traces" / "hsdp", cache=False)
    for rank, shard, replicate in ((0, (0, 1), (0, 2)), (3, (2, 3), (1, 3))):
        data = loaded(exported(run, tmp_path, rank)[1])
        assert {record.pg_ranks for record in data.collectives if len(record.pg_ranks) == 2} == {shard, replicate}


@pytest.mark.corpus
@pytest.mark.skipif(not CORPUS.is_dir(), reason=f"no public traces at {CORPUS} (set TRACEKIT_CORPUS)")
def test_rows_of_gpus_are_shortened_where_they_stand(tmp_path):
    run = tracekit.open(CORPUS / "dlrm-ddp-8rank-v100", cache=False)
    made, path = exported(run, tmp_path)
    known = run.collectives.filter(pl.col("rank") == 0).drop_nulls("transfer_ns")
    data = loaded(path)
    assert made.num_known == known.height == len(data.collectives) > 0
    assert sum(record.duration_us for record in data.collectives) == pytest.approx(known["transfer_ns"].sum() / 1000)
    # Compute is as it was.
    untouched = sum(event.get("cat") == "kernel" for event in made.document["traceEvents"])
    assert untouched >= run.work.filter(rank=0, **{"class": "compute"}).height


def test_what_is_unknown_is_told(tmp_path):
    (tmp_path / "trace.json").write_text(json.dumps(document(COMMON)))
    run = tracekit.open(tmp_path / "trace.json", cache=False)
    with pytest.raises(UsageError, match="the transfer of no collective of rank 0 is known: it takes all ranks"):
        transfers(run)
    with pytest.raises(UsageError, match="there is no rank 7"):
        transfers(run, 7)


def test_the_command_writes_and_says_so(tmp_path, capfd):
    out = tmp_path / "profile.json"
    asked = ["export", str(ROOT / "traces" / "fsdp2"), "-o", str(out)]
    assert cli.run(asked) == 2
    assert "say what to export: --transfer-only" in capfd.readouterr().err
    assert cli.run([*asked, "--transfer-only", "--rank", "1"]) == 0
    assert "collectives last their transfer" in capfd.readouterr().out
    assert any(event.get("cat") == "kernel" for event in json.loads(out.read_text())["traceEvents"])
    assert cli.run([*asked, "--transfer-only"]) == 2
    assert "exists already" in capfd.readouterr().err


def test_a_damaged_file_is_one_sentence(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    for rank in range(2):
        (folder / f"rank{rank}.json").write_text("")
    source = tracekit.open(ROOT / "traces" / "fsdp2", cache=False)
    import gzip

    for path in source.files:
        text = gzip.decompress(path.read_bytes()).decode()
        (folder / path.name.removesuffix(".gz")).write_text(text.rstrip()[:-1])
    (folder / "manifest.json").write_text((ROOT / "traces" / "fsdp2" / "manifest.json").read_text())
    run = tracekit.open(folder, cache=False)
    with pytest.raises((InputError, UsageError)):
        transfers(run)
