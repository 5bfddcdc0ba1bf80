"""Runs whose trace is exactly what their plan expects."""

from __future__ import annotations

from fakes import SMALL, manifest_of, run_of, step

from tracekit.manifest import Precision
from tracekit.plan import plan


def as_planned(manifest, *, number=5, rank=0) -> list[dict[str, object]]:
    """The collectives of one step, exactly as the manifest's plan expects them."""
    return [
        {
            "rank": rank,
            "step": number,
            "lane": "stream 20",
            "backend_kind": row["kind"],
            **{name: row[name] for name in ("layer", "phase", "kind", "axis", "group_size", "dtype")},
            **{name: row[name] for name in ("in_numel", "out_numel", "payload_bytes", "passes")},
            "payload_numel": row["out_numel"] if row["kind"] == "all_gather" else row["in_numel"],
            "wire_bytes": row["payload_bytes"] * row["passes"] // 2,
            "start_ns": place,
            "dur_ns": 1,
        }
        for place, row in enumerate(plan(manifest).iter_rows(named=True))
    ]


def run_as_planned(manifest, *more, **tables):
    collectives = [*as_planned(manifest), *more]
    return run_of(manifest, steps=[step(5, 0, 100)], collectives=collectives, **tables)


FSDP2 = manifest_of("fsdp2", SMALL)
ZERO2 = manifest_of("zero2", SMALL, precision=Precision("bfloat16", None), options={"reduce_bucket_size": 8})
