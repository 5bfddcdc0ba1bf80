"""Volume and memory of a rank as the group grows: the ZeRO paper's closed forms beside the plan for a named model."""

from __future__ import annotations

import altair as alt
import polars as pl
import script

from tracekit import plan, theory
from tracekit.plan.build import manifest, model_buffers, model_parameters
from tracekit.plan.plan_totals import totals
from tracekit.reference_models import SIZES

STRATEGIES = ["ddp", "zero1", "zero2", "zero2-fsdp2", "zero3-deepspeed", "fsdp2"]
MEASURES = ["theory_psi", "plan_psi", "wire_bytes", "theory_bytes", "held_bytes", "peak_bytes"]


def scaling(model: str, strategies: list[str], sizes: list[int]) -> pl.DataFrame:
    """A row a strategy and size of the group: what rank 0 sends in a step, and holds between and inside steps.

    `theory_bytes` and `held_bytes` are model states between steps; `peak_bytes` has no activations in it.
    """
    rows = [(model, strategy, ranks, *measures(model, strategy, ranks)) for strategy in strategies for ranks in sizes]
    return pl.DataFrame(rows, ["model", "strategy", "num_ranks", *MEASURES], orient="row")


def measures(model: str, strategy: str, ranks: int) -> tuple[float | int | None, ...]:
    """Values of MEASURES, by the closed form and by the plan."""
    size, stage = SIZES[model], theory.STRATEGY_STAGES[strategy]
    made = manifest(strategy, model_parameters(size), mesh={"dp_shard": ranks}, buffers=model_buffers(size))
    sent, holds = totals(plan.plan(made)), plan.memory(made)
    states = round(theory.zero_memory_per_gpu(made.psi, ranks, stage))
    volume = (theory.stage_passes(stage), sent["passes_numel"] / made.psi, sent["wire_bytes"])
    return (*volume, states, holds["held_bytes"].sum(), holds["peak_bytes"].sum())


def chart(table: pl.DataFrame) -> alt.Chart:
    """A line a strategy: bytes that a rank holds between steps."""
    return (
        alt.Chart(table.with_columns(pl.col("held_bytes") / 2**30), title="Held by a rank between steps")
        .mark_line(point=True)
        .encode(
            x=alt.X("num_ranks:O", title="ranks"),
            y=alt.Y("held_bytes:Q", title="GiB").scale(type="log"),
            color=alt.Color("strategy:N", sort=STRATEGIES, title=None),
        )
        .properties(width=400)
    )


if __name__ == "__main__":
    parser = script.parser(__doc__, runs=None)
    parser.add_argument("--model", choices=SIZES, default="7b", help="reference model (7b)")
    parser.add_argument("--strategies", nargs="+", choices=STRATEGIES, default=STRATEGIES, metavar="S", help="all of them")
    parser.add_argument("--ranks", nargs="+", type=int, default=[8, 64, 512], metavar="N", help="8 64 512")
    given = parser.parse_args()
    with script.one_sentence():
        script.write(scaling(given.model, given.strategies, given.ranks), given, chart)
