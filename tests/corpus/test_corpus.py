"""Public traces that lie beside the checkout (``../shared/corpus``), with right values found by two other readers."""

from __future__ import annotations

import os
from pathlib import Path

import polars as pl
import pytest

import tracekit
from tracekit.errors import InputError

CORPUS = Path(os.environ.get("TRACEKIT_CORPUS", Path(__file__).parents[3] / "shared" / "corpus"))
pytestmark = [
    pytest.mark.corpus,
    pytest.mark.skipif(not CORPUS.is_dir(), reason=f"no public traces at {CORPUS} (set TRACEKIT_CORPUS)"),
]

# kind, dtype -> number of collectives whose size is known, elements in
EXPECTED = {
    "ddp-2rank-a100-full-args.json.gz": {
        ("all_reduce", "float32"): (15, 306_684_384),
        ("broadcast", "float32"): (3, 637_440),
        ("broadcast", "int64"): (3, 1_272),
    },
    "torchrec-16rank-a100-rank0.json.gz": {
        ("reduce_scatter", "float32"): (10, 587_202_560),
        ("all_gather", "float32"): (10, 73_400_320),
        ("all_reduce", "float32"): (10, 8_965_794_640),
        ("all_to_all", "float32"): (20, 136_314_880),
        ("all_to_all", "int64"): (10, 4_480),
        ("all_to_all", "int32"): (15, 21_554_204),
    },
    "vllm-tp8-b200-rank0.json.gz": {("all_gather", "bfloat16"): (1, 50_272)},
}
DLRM = {
    ("all_reduce", "float32"): (3, 2_485_252),
    ("all_to_all", "float32"): (2, 49_152),
    ("all_to_all", "int64"): (1, 192),
    ("all_to_all", "int32"): (2, 15_104),
}
TWO_OF_128 = {
    0: {
        ("all_to_all", "uint8"): (2, 838_860_800),
        ("all_gather", "int8"): (2, 33_554_432),
        ("all_reduce", "float32"): (4, 314_195_708),
    },
    1: {
        ("all_to_all", "uint8"): (2, 733_812_480),
        ("all_gather", "int8"): (2, 33_554_432),
        ("all_reduce", "float32"): (4, 284_846_792),
    },
}
WIDTH = {"float32": 4, "int64": 8, "int32": 4, "bfloat16": 2, "uint8": 1, "int8": 1}


def bytes_in(collectives: pl.DataFrame) -> dict[tuple[str, str], tuple[int, int]]:
    """Collectives that ran and whose size is known: how many, and the bytes of their inputs."""
    known = collectives.filter(pl.col("dur_ns").is_not_null(), pl.col("payload_bytes").is_not_null())
    table = known.group_by("kind", "dtype").agg(pl.len(), pl.col("in_numel").sum())
    return {(kind, dtype): (count, numel * WIDTH[dtype]) for kind, dtype, count, numel in table.iter_rows()}


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_collectives_and_bytes(name: str) -> None:
    assert bytes_in(tracekit.open(CORPUS / name).collectives) == EXPECTED[name]


def test_dlrm_is_identical_on_all_ranks() -> None:
    collectives = tracekit.open(CORPUS / "dlrm-ddp-8rank-v100").collectives
    assert {rank: bytes_in(rows) for (rank,), rows in collectives.group_by("rank")} == dict.fromkeys(range(8), DLRM)


def test_two_of_128_ranks() -> None:
    collectives = tracekit.open(CORPUS / "two-of-128-ranks").collectives
    found = {rank: bytes_in(rows) for (rank,), rows in collectives.group_by("rank")}
    assert {rank: {k: found[rank][k] for k in want} for rank, want in TWO_OF_128.items()} == TWO_OF_128


def test_torchrec_has_five_kernels_of_unknown_size() -> None:
    ran = tracekit.open(CORPUS / "torchrec-16rank-a100-rank0.json.gz").collectives.drop_nulls("dur_ns")
    assert (ran.height, ran["payload_bytes"].null_count()) == (80, 5)


def test_old_ddp_run_has_durations_only() -> None:
    collectives = tracekit.open(CORPUS / "ddp-2rank-v100-memory.json.gz").collectives
    assert (
        collectives.height,
        collectives["dur_ns"].null_count(),
        collectives["payload_bytes"].null_count(),
    ) == (2020, 0, 2020)


def test_gloo_run_of_300_ranks_matches_calls_to_spans() -> None:
    collectives = tracekit.open(CORPUS / "rank-34.gloo-ddp-300rank.pt.trace.json.gz").collectives
    assert collectives.select(pl.len(), pl.col("issued_ns").null_count()).rows() == [(10, 0)]


def test_another_profilers_file_is_refused_in_one_sentence() -> None:
    with pytest.raises(InputError, match="not a Kineto trace") as caught:
        tracekit.open(CORPUS / "not-kineto-aiu.json")
    assert "\n" not in str(caught.value)


def test_nccl_calls_without_a_recorded_device_are_issued_and_never_ran() -> None:
    run = tracekit.open(CORPUS / "rank-not-found.json.gz")
    assert (run.work.height, run.collectives.height, run.collectives["dur_ns"].null_count()) == (0, 6, 6)


TRACES = [
    "cuda-event-sync.json.gz",
    "gpu-user-annotation.json.gz",
    "graph-node-ids.json",
    "h100-memory-modules.json.gz",
    "hip-graph-replay.json.gz",
    "list-at-top-level-2021.pt.trace.json.gz",
    "triton-rocm-small.json.gz",
]


@pytest.mark.parametrize("name", TRACES)
def test_every_other_trace_is_read(name: str) -> None:
    run = tracekit.open(CORPUS / name)
    assert run.steps.height > 0
    assert run.work.height > 0
    assert run.work["class"].is_in(["compute", "comm", "copy", "other"]).all()
    assert run.collectives.height == run.collectives.unique(["rank", "index"]).height
