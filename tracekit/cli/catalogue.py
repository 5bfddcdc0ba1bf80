"""Every table that `show` prints: its name, where it is made, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tracekit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl

    from tracekit.model.run import Run


@dataclass(frozen=True)
class Table:
    """One table. `home` is an attribute of the run (`run.steps`) or, by its path, a function of one."""

    name: str
    home: str
    answers: str
    groups: bool = False


TABLES = (
    Table("ranks", "run.ranks", "which files were read, and whose ranks they are"),
    Table("steps", "run.steps", "when each optimizer step ran, and whether it is whole"),
    Table("work", "run.work", "everything that occupied a device"),
    Table("collectives", "run.collectives", "every collective: what it carried, how long it took"),
    Table("allocations", "run.memory", "every allocation and release, as recorded"),
    Table("repairs", "run.repairs", "what was wrong with the files, and what was done about it"),
    Table("overlap", "analyzers.overlap.overlap", "which communication was hidden behind compute", groups=True),
    Table("hiders", "analyzers.hidden_by.hiders", "which compute hid each piece of communication"),
    Table("breakdown", "analyzers.breakdown.breakdown", "what each step's time was spent on, to the nanosecond"),
    Table("volume", "analyzers.volume.volume", "what each step sent, beside what it should send", groups=True),
    Table(
        "totals",
        "analyzers.volume.totals",
        "each step's volume: theory, plan, measured, and what the backend did",
    ),
    Table("ledger", "analyzers.ledger.ledger", "from theory to the trace in named terms that add up", groups=True),
    Table("backend", "analyzers.volume.backend", "what the backend ran for each kind of collective"),
    Table("skew", "analyzers.skew.skew", "each collective on all of its ranks: transfer, wait, who came last"),
    Table(
        "stragglers",
        "analyzers.skew.stragglers",
        "how often each rank came last, and what that cost the others",
    ),
    Table("mismatches", "analyzers.skew.mismatches", "where ranks recorded different numbers of one collective"),
    Table(
        "clocks",
        "analyzers.skew.clocks",
        "how far the clocks of the hosts are apart, and how well that is known",
    ),
    Table("bandwidth", "analyzers.bandwidth.bandwidth", "algorithm and bus bandwidth of each collective"),
    Table("groups", "analyzers.groups.groups", "the process groups and what each carried"),
    Table("together", "analyzers.groups.together", "which axes or groups communicate at the same time"),
    Table(
        "blame",
        "analyzers.exposure.blame",
        "why each exposed nanosecond was exposed, and which knob changes it",
    ),
    Table("bound", "analyzers.exposure.bound", "how short each step could be if all that can overlap did"),
    Table(
        "unknown",
        "analyzers.unclassified.unknown",
        "device rows of unknown kind, and collectives known by name alone",
    ),
    Table("memory", "analyzers.memory.timeline", "memory over time, by category"),
    Table("peak", "analyzers.memory.peak", "what memory held at its highest"),
    Table("floor", "analyzers.memory.floor", "what a device must hold at least, beside what it held"),
    Table("hta-breakdown", "analyzers.hta.temporal_breakdown", "HTA's idle, compute and other time"),
    Table("hta-idle", "analyzers.hta.idle", "HTA's causes of idle time"),
    Table("hta-kernels", "analyzers.hta.kernel_breakdown", "HTA's time by kernel"),
)
_BY_NAME = {table.name: table for table in TABLES}


def find(name: str) -> Table:
    """The table of that name.

    Raises:
        UsageError: there is none; the message offers the nearest name, or all of them.
    """
    if name not in _BY_NAME:
        raise UsageError(f"there is no table {name!r}: {suggestion(name, _BY_NAME)}")
    return _BY_NAME[name]


def suggestion(name: str, known: Sequence[str] | dict[str, Table]) -> str:
    """`did you mean X? There are A, B, C`, or the list alone where nothing is near."""
    near = get_close_matches(name, known, n=1)
    listed = f"there are {', '.join(known)}"
    return f"did you mean {near[0]}? ({listed})" if near else listed


def make(table: Table, run: Run, by: Sequence[str] = (), **more: Any) -> pl.DataFrame:
    """The table of the run, grouped by the columns `by` where it can be; `more` are arguments of its own.

    Raises:
        UsageError: it cannot be grouped.
    """
    home, _, attribute = table.home.rpartition(".")
    if by and not table.groups:
        able = ", ".join(other.name for other in TABLES if other.groups)
        raise UsageError(f"{table.name} has no --by: only {able} can be grouped")
    if home == "run":
        return getattr(run, attribute)
    function = getattr(import_module(f"tracekit.{home}"), attribute)
    return function(run, by=tuple(by), **more) if by else function(run, **more)
