"""The registry of tables: one line each, read by `show`, JSON, the page, the exports, `run.table` and the documents.

A line names where its table is made; the module is imported when the table is first asked for, so that names and help
cost nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tracekit.errors import UsageError
from tracekit.text import suggestion

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import polars as pl

    from tracekit.model.run import Run
    from tracekit.table_schema import Groupings, Schema

RANK, ALL_RANKS = "rank", "all ranks"


@dataclass(frozen=True)
class Table:
    """One table.

    `home` is `module:function` of a function of a run; its columns are that module's `FUNCTION_SCHEMA`, and what it can
    be grouped by its `FUNCTION_BY`, if there is one. Or `home` is an attribute of the run (`run.steps`), and `columns`
    names the schema. `needs` tells whether the rows of a rank are made from that rank's file alone. A table that is not
    `in_report` is left out of report.json, HTA's unless they are asked for. `former` is a name that it had before.
    """

    name: str
    home: str
    answers: str
    columns: str = ""
    needs: str = RANK
    in_report: bool = True
    former: str = ""

    def make(self, run: Run, by: Sequence[str] = ()) -> pl.DataFrame:
        """The table of the run, grouped by the columns `by` where they are given.

        Raises:
            UsageError: it cannot be grouped, or not by these columns.
        """
        if by and self.groupings is None:
            able = ", ".join(table.name for table in TABLES if table.groupings)
            raise UsageError(f"{self.name} has no --by: only {able} can be grouped")
        owner, _, attribute = self.home.partition(".")
        if owner == "run":
            return getattr(run, attribute)
        return self.function(run, by=tuple(by)) if by else self.function(run)

    @property
    def function(self) -> Callable[..., pl.DataFrame]:
        """The function of a run that makes it."""
        return _load(self.home)

    @property
    def schema(self) -> Schema:
        """Its columns, each with type, unit, meaning and when it is null."""
        return _load(self.columns or self._beside("SCHEMA"))

    @property
    def groupings(self) -> Groupings | None:
        """Its groupings; None where it cannot."""
        return None if self.columns else _load(self._beside("BY"), missing=None)

    def _beside(self, what: str) -> str:
        module, _, function = self.home.partition(":")
        return f"{module}:{function.upper()}_{what}"


def _load(place: str, **default: Any) -> Any:
    """The object that `module:name` names; `missing`, if given, where the module has no such name."""
    module, _, name = place.partition(":")
    home = import_module(module)
    return getattr(home, name, default["missing"]) if default else getattr(home, name)


_MODEL, _AT = "tracekit.model.", "tracekit.analyzers."
TABLES = [
    Table("ranks", "run.ranks", "the files that were read, and whose ranks they are", f"{_MODEL}run:RANKS_SCHEMA"),
    Table(
        "steps",
        "run.steps",
        "each optimizer step: when it ran, and whether it is complete",
        f"{_MODEL}steps:STEPS_SCHEMA",
    ),
    Table(
        "events",
        "run.events",
        "every event of the traces, in file order",
        "tracekit.read.decoding.columns:RUN_EVENTS_SCHEMA",
        in_report=False,
    ),
    Table(
        "work",
        "run.work",
        "everything that occupied a device: kernels, copies, operators of a CPU run",
        f"{_MODEL}devices.work:WORK_SCHEMA",
        in_report=False,
    ),
    Table(
        "collectives",
        "run.collectives",
        "every collective: what it carried, how long it took",
        f"{_MODEL}collectives.collectives:COLLECTIVES_SCHEMA",
        needs=ALL_RANKS,
    ),
    Table(
        "allocations",
        "run.allocations",
        "every allocation and release, as recorded",
        f"{_MODEL}memory.allocations:ALLOCATIONS_SCHEMA",
        in_report=False,
    ),
    Table(
        "blocks",
        "run.blocks",
        "blocks of memory from allocation to free, and what each was for",
        f"{_MODEL}memory.blocks:BLOCKS_SCHEMA",
        in_report=False,
    ),
    Table(
        "repairs",
        "run.repairs",
        "faults of the files, and what was done about them",
        "tracekit.read.traces:REPAIRS_SCHEMA",
    ),
    Table("overlap", f"{_AT}overlap:overlap", "communication hidden behind compute, and the exposed rest"),
    Table("hidden-by", f"{_AT}hidden_by:hidden_by", "the compute that hid each collective", former="hiders"),
    Table(
        "breakdown",
        f"{_AT}breakdown:breakdown",
        "each step's time: compute, exposed communication, exposed copies, idle",
    ),
    Table("idle", f"{_AT}causes.idle:idle", "idle time of each device by what it waited for"),
    Table("kernels", f"{_AT}causes.idle:kernels", "the work that took longest, by name"),
    Table("volume", f"{_AT}volume:volume", "what each step sent, beside the strategy's plan"),
    Table("totals", f"{_AT}volume:totals", "each step's volume: theory, plan, measured, and what the backend did"),
    Table("ledger", f"{_AT}ledger:ledger", "from theory to the trace in named terms that add up"),
    Table("backend", f"{_AT}volume:backend", "what the backend ran for each kind of collective"),
    Table(
        "skew",
        f"{_AT}skew:skew",
        "each collective on all of its ranks: transfer, wait, the rank that came last",
        needs=ALL_RANKS,
    ),
    Table(
        "stragglers",
        f"{_AT}skew:stragglers",
        "ranks that came last: how often, and what that cost the others",
        needs=ALL_RANKS,
    ),
    Table(
        "mismatches",
        f"{_AT}skew:mismatches",
        "collectives of which ranks recorded different numbers",
        needs=ALL_RANKS,
    ),
    Table(
        "clocks",
        f"{_AT}skew:clocks",
        "offsets between the clocks of hosts, and their spread",
        needs=ALL_RANKS,
    ),
    Table(
        "pipeline",
        f"{_AT}stages.pipeline:pipeline",
        "stages of a pipeline by micro-batch: busy, transfer, bubble",
        needs=ALL_RANKS,
    ),
    Table("bandwidth", f"{_AT}bandwidth:bandwidth", "algorithm and bus bandwidth of each collective", needs=ALL_RANKS),
    Table(
        "link",
        f"{_AT}timing.link:link",
        "transfer time by size beside its fit α + c·√s + β·s, and bus bandwidth",
        needs=ALL_RANKS,
    ),
    Table("groups", f"{_AT}groups:groups", "the process groups and what each carried", needs=ALL_RANKS),
    Table(
        "concurrency",
        f"{_AT}groups:concurrency",
        "axes or groups that communicate at the same time",
        former="together",
    ),
    Table(
        "exposure",
        f"{_AT}causes.exposure:exposure",
        "exposed time by its cause, with advice",
        needs=ALL_RANKS,
        former="blame",
    ),
    Table("ideal", f"{_AT}causes.exposure:ideal", "length of each step if all that can overlap did", former="bound"),
    Table(
        "unclassified",
        f"{_AT}unclassified:unclassified",
        "device rows of unknown kind, and collectives known by name alone",
        needs=ALL_RANKS,
        former="unknown",
    ),
    Table("memory", f"{_AT}memory.curve:memory", "memory over time, by category"),
    Table("peak", f"{_AT}memory.peak:peak", "what memory held at its peak"),
    Table("memory-ledger", f"{_AT}memory.ledger:memory_ledger", "from the closed form to the measured peak, in terms"),
    Table("growth", f"{_AT}memory.growth:growth", "memory that every step leaves behind"),
    Table(
        "model-states",
        f"{_AT}memory.model_states:model_states",
        "the closed form's bytes of parameters, gradients and optimizer state, beside what was held",
        former="floor",
    ),
    Table("hta-breakdown", f"{_AT}hta:temporal_breakdown", "HTA's idle, compute and other time", in_report=False),
    Table("hta-idle", f"{_AT}hta:idle", "HTA's causes of idle time", in_report=False),
    Table("hta-kernels", f"{_AT}hta:kernel_breakdown", "HTA's time by kernel", in_report=False),
]


def tables() -> list[Table]:
    """All tables, in the order in which they are listed; `Table.answers` says what each is for."""
    return list(TABLES)


def names() -> list[str]:
    """The names of all tables, in the order in which they are listed."""
    return [table.name for table in TABLES]


def find(name: str) -> Table:
    """The table of that name.

    Raises:
        UsageError: there is none; the message tells its present name, or offers the nearest one, or all of them.
    """
    found = next((table for table in TABLES if name in (table.name, table.former)), None)
    if found is not None and found.name != name:
        raise UsageError(f"there is no table {name!r} any more: it is called {found.name} now")
    if found is None:
        raise UsageError(f"there is no table {name!r}: {suggestion(name, names())}")
    return found
