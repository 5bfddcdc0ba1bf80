"""The page `docs/strategies.md`, written from the registry: `python -m tracekit.plan.strategies_page` prints it."""

from __future__ import annotations

import sys
from importlib import import_module
from inspect import cleandoc
from typing import TYPE_CHECKING, Any

from tracekit.reference_models import SIZES
from tracekit.strategies import STRATEGIES
from tracekit.theory import stage_passes

if TYPE_CHECKING:
    from tracekit.strategies import Strategy

_INTRODUCTION = """
# Strategies

<!-- Written by `make docs-strategies` from the registry; edit that. -->

One registry, `tracekit/strategies.py`, says what each strategy is called, which ZeRO stage it claims, what its defaults
are, and which files plan and run it. The training programs, `tracekit plan`, the ledger and the sentences of a report
read it, so that a plan with a strategy's defaults is the plan of the run that `tracekit record` makes with them.

The stage is what the name claims, and gives the closed form of the ZeRO paper; what a strategy really sends is its
plan. `tracekit plan --strategy NAME --model tiny --mesh AXIS=N` prints it, and `--table terms` how it follows from the
closed form.
"""

_ADDING = """
## Adding one

1. Append an entry to `_OURS` in `tracekit/strategies.py`: name, title, stage, framework, planner, and what differs from
   the defaults of `Strategy` (axes of the mesh, types, options that follow from the model's size).
2. Write its planner in `tracekit/plan/strategies/`: `collectives(manifest)`, the calls of one step in their order;
   `absent(manifest)`, what the closed form holds and these calls do not; `memory(manifest, rank)`, the bytes that a
   rank holds. Cite the code that it follows, by file and function, in the docstring: its first paragraph is shown
   above.
3. Write this page anew. `tracekit plan`, the closed forms and the sentences know the strategy now.
4. To record it, write a class in `runners/strategies/` and name its module as `runner`; without one the strategy can be
   planned only. `tests/integration/test_plan_from_defaults.py` then compares the plan with a recorded run.

A package of your own can add a strategy for its process with `tracekit.strategies.register`.
"""


def page() -> str:
    """The page as Markdown: a row and a section a strategy."""
    return "\n".join(
        [_INTRODUCTION.strip(), "", *_table(), "", "## How each is planned", *_sections(), _ADDING.rstrip(), ""]
    )


def _table() -> list[str]:
    """One row a strategy."""
    heads = ("name", "is", "stage", "framework", "mesh axes", "computes, reduces, stores in", "planned in", "run in")
    rows = [heads, ("---",) * len(heads), *(_row(strategy) for strategy in STRATEGIES.values())]
    return [f"| {' | '.join(row)} |" for row in rows]


def _row(strategy: Strategy) -> tuple[str, ...]:
    computed = strategy.param_dtype
    types = (computed, strategy.reduce_dtype or computed, strategy.storage_dtype or computed)
    return (
        f"`{strategy.name}`",
        strategy.title,
        f"{strategy.stage} ({stage_passes(strategy.stage)}Ψ)",
        strategy.framework,
        ", ".join(f"`{axis}`" for axis in strategy.axes),
        ", ".join(types),
        f"`{_path(strategy.planner)}`",
        f"`{_path(strategy.runner)}`" if strategy.runner else "–",
    )


def _sections() -> list[str]:
    """Planner's summary and default options of each strategy."""
    lines: list[str] = []
    for strategy in STRATEGIES.values():
        about = cleandoc(import_module(strategy.planner).__doc__ or "").partition("\n\n")[0]
        lines += ["", f"**`{strategy.name}`** – {about}", "", *_defaults(strategy)]
        if strategy.dry_run:
            lines.append("- `--prove` runs torch's own code and compares every call.")
    return lines


def _defaults(strategy: Strategy) -> list[str]:
    """The options that follow from the size of the model, for a small one and a large one."""
    small, large = strategy.defaults(SIZES["tiny"]), strategy.defaults(SIZES["7b"])
    if not small:
        return ["- Default options: the framework's own, for any size of the model."]
    told = [_setting(name, small[name], large[name]) for name in small]
    return [f"- Default options: {', '.join(told)}."]


def _setting(name: str, small: Any, large: Any) -> str:
    """`name=value`, with the value for 7b where it is another one than for tiny."""
    if small == large:
        return f"`{name}={_spelt(small)}`"
    return f"`{name}={_spelt(small)}` for tiny and `{_spelt(large)}` for 7b"


def _spelt(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else str(value)


def _path(module: str) -> str:
    return module.replace(".", "/") + ".py"


if __name__ == "__main__":
    sys.stdout.write(page())
