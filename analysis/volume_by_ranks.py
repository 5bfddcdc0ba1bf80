"""Volume and memory of a rank as the group grows: the ZeRO paper's closed forms beside the plan for a named model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
import script

from tracekit import plan, strategies, theory
from tracekit.plan.build import of_model
from tracekit.plan.plan_totals import totals
from tracekit.reference_models import SIZES

if TYPE_CHECKING:
    import altair as alt

STRATEGIES = ["ddp", "zero1", "zero2", "zero2-fsdp2", "zero3-deepspeed", "fsdp2"]
MEASURES = ["theory_psi", "plan_psi", "wire_bytes", "theory_bytes", "held_bytes", "peak_bytes"]


def scaling(model: str, names: list[str], sizes: list[int]) -> pl.DataFrame:
    """A row a strategy and size of the group: what rank 0 sends in a step, and holds between and inside steps.

    `theory_bytes` and `held_bytes` are model states between steps; `peak_bytes` has no activations in it.
    """
    rows = [(model, strategy, ranks, *measures(model, strategy, ranks)) for strategy in names for ranks in sizes]
    return pl.DataFrame(rows, ["model", "strategy", "num_ranks", *MEASURES], orient="row")


def measures(model: str, strategy: str, ranks: int) -> tuple[object, ...]:
    """Values of MEASURES, by the closed form and by the plan."""
    size, stage = SIZES[model], theory.strategy_stage(strategy) or 0
    made = of_model(strategy, size, mesh={strategies.find(strategy).axes[0]: ranks})
    sent, holds = totals(plan.plan(made)), plan.memory(made)
    states = round(theory.zero_memory_per_gpu(made.psi, ranks, stage))
    volume = (theory.stage_passes(stage), sent["passes_numel"] / made.psi, sent["wire_bytes"])
    return (*volume, states, holds["held_bytes"].sum(), holds["peak_bytes"].sum())


def chart(table: pl.DataFrame) -> alt.Chart:
    """A line a strategy: what a rank holds between steps, and the most inside one, without activations."""
    import altair as alt

    holds = table.unpivot(["held_bytes", "peak_bytes"], index=["strategy", "num_ranks"])
    return (
        alt.Chart(holds.with_columns(pl.col("value") / 2**30), width=280, height=240)
        .mark_line(point=True)
        .encode(
            x=alt.X("num_ranks:O", title="ranks", axis=alt.Axis(labelAngle=0)),
            y=alt.Y("value:Q", title="GiB a rank").scale(type="log"),
            color=alt.Color("strategy:N", sort=STRATEGIES),
            column="variable:N",
        )
    )


if __name__ == "__main__":
    parser = script.parser(__doc__, runs=None)
    parser.add_argument("--model", choices=SIZES, default="7b", help="reference model (7b)")
    parser.add_argument(
        "--strategies", nargs="+", choices=STRATEGIES, default=STRATEGIES, metavar="S", help="all of them"
    )
    parser.add_argument("--ranks", nargs="+", type=script.positive, default=[8, 64, 512], metavar="N", help="8 64 512")
    given = parser.parse_args()
    with script.one_sentence():
        script.write(scaling(given.model, given.strategies, given.ranks), given, chart)
