"""Volume of a step, in multiples of Ψ, beside the ZeRO paper's 2Ψ and 3Ψ, and the terms that make the difference."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
import script

import tracekit

if TYPE_CHECKING:
    import altair as alt

SOURCES = ["theory", "plan", "measured", "backend"]


def volume_beside_theory(run: tracekit.Run) -> pl.DataFrame:
    """One row: the closed form, the plan, the trace and what the backend ran, of the lowest rank's first step."""
    first = run.table("totals").head(1)
    terms = run.table("ledger").join(first, on=["rank", "step"], how="semi")
    named = terms.filter(~pl.col("term").is_in(["theory", "measured"]), pl.col("psi").round(3) != 0)
    why = ", ".join(f"{psi:+.3f}Ψ {term}" for term, psi in named.select("term", "psi").iter_rows())
    about = pl.lit(run.name).alias("run"), pl.lit(run.psi, pl.Int64).alias("num_params")
    return first.select(*about, *(f"{source}_psi" for source in SOURCES), pl.lit(why).alias("why"))


def chart(table: pl.DataFrame) -> alt.LayerChart | alt.FacetChart:
    """Four bars a run, and lines at 2Ψ and 3Ψ."""
    import altair as alt

    psi = table.unpivot([f"{source}_psi" for source in SOURCES], index="run", variable_name="source", value_name="psi")
    bars = (
        alt.Chart(psi.with_columns(pl.col("source").str.strip_suffix("_psi")), title="Elements × passes a step")
        .mark_bar()
        .encode(
            x=alt.X("psi:Q", title="multiples of Ψ"),
            y=alt.Y("run:N", title=None),
            yOffset=alt.YOffset("source:N", sort=SOURCES),
            color=alt.Color("source:N", sort=SOURCES, title=None),
            tooltip=["run", "source", alt.Tooltip("psi:Q", format=".4f")],
        )
    )
    return bars + alt.Chart(pl.DataFrame({"psi": [2, 3]})).mark_rule(strokeDash=[4, 4]).encode(x="psi:Q")


if __name__ == "__main__":
    given = script.parser(__doc__, runs="several").parse_args()
    with script.one_sentence():
        script.write(pl.concat(volume_beside_theory(tracekit.open(run)) for run in given.runs), given, chart)
