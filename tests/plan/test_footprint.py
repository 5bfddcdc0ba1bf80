from __future__ import annotations

import importlib.util

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from tracekit.plan import build
from tracekit.plan.footprint.dry_run import CHANGES_SCHEMA, changes
from tracekit.plan.footprint.peak import PEAK_SCHEMA, SLACK, TOTAL, WORKSPACES_BYTES, peak, replay
from tracekit.reference_models import find_size

MIB = 1 << 20
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")


def of(*rows: tuple[int, int, int, str]) -> pl.DataFrame:
    filled = [(storage, delta, stream, 0, "forward", "", "", name) for storage, delta, stream, name in rows]
    return pl.DataFrame(filled, schema=CHANGES_SCHEMA, orient="row")


def test_the_peak_is_that_of_all_categories_at_one_moment():
    """The parameters are 40 throughout; activations reach 100 when there are no temporaries, and 60 with 80 of them."""
    found = replay(
        of(
            (0, 40 * MIB, 0, "parameters"),
            (1, 100 * MIB, 0, "activations"),
            (1, -40 * MIB, 0, "activations"),
            (2, 80 * MIB, 0, "temporaries"),
            (2, -80 * MIB, 0, "temporaries"),
        )
    )
    assert found.live == {"parameters": 40 * MIB, "activations": 60 * MIB, "temporaries": 80 * MIB}
    assert found.live_bytes == 180 * MIB
    # The 100 are free when 60 are asked for, and are cut; the rest of 40 does not hold 80.
    assert found.reserved_bytes == (40 + 100 + 80) * MIB


def test_rows_add_up_to_the_total():
    table = peak(of((0, 3 * MIB, 0, "parameters"), (1, 5 * MIB, 1, "collective buffers")))
    assert table.rows() == [
        ("collective buffers", *[5 * MIB] * 4),
        ("parameters", *[3 * MIB] * 4),
        (SLACK, 0, 32 * MIB, 32 * MIB, 32 * MIB + WORKSPACES_BYTES),
        (TOTAL, 8 * MIB, 40 * MIB, 40 * MIB, 40 * MIB + WORKSPACES_BYTES),
    ]
    parts = table.filter(pl.col("category") != TOTAL).sum()
    assert parts.drop("category").row(0) == table.row(-1)[1:]


def test_nothing_needs_nothing():
    table = peak(of())
    assert_frame_equal(table, pl.DataFrame({"category": [SLACK, TOTAL]}).join(table, on="category", how="left"))
    assert table["live_bytes"].to_list() == [0, 0]
    assert table.schema == PEAK_SCHEMA


@needs_torch
def test_what_two_ranks_hold_of_nano_counted_by_hand():
    """Ψ = 7,248 of which rank 0 has half in fp32; twice that is Adam's state, with 4 bytes of a counter a tensor."""
    manifest = build.of_model("fsdp2", find_size("nano"), mesh={"dp_shard": 2}, options={"batch_size": 1, "seq_len": 8})
    rows = changes(manifest, "nano")
    held = rows.group_by("category").agg(pl.col("delta_bytes").sum())
    left = dict(held.filter(pl.col("delta_bytes") != 0).iter_rows())
    assert left["parameters"] == 7_248 // 2 * 4
    assert left["optimizer state"] == 2 * left["parameters"] + 4 * 21
    assert left["buffers"] == 2 * 256 * 8 * 4
    # Whole units in bf16 while they are used: the root, which is kept, and a block.
    live = rows.filter(pl.col("category") == "gathered parameters")["delta_bytes"].cum_sum().max()
    assert live >= (2 * 64 * 16 + 16 + 2_592) * 2


@needs_torch
@pytest.mark.parametrize("mode", ["full", "selective-op"])
def test_checkpointing_holds_less(mode):
    def most(**options):
        asked = {"batch_size": 2, "seq_len": 64, **options}
        manifest = build.of_model("fsdp2", find_size("tiny"), mesh={"dp_shard": 2}, options=asked)
        return replay(changes(manifest, "tiny")).live["activations"]

    assert most(activation_checkpointing=mode) < most()
