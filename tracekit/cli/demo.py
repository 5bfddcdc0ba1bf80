"""`tracekit demo`: train twice on this machine, record both, explain both."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracekit.cli.record import record
from tracekit.cli.report import tell_report
from tracekit.extras import require
from tracekit.text import plain_line

if TYPE_CHECKING:
    from collections.abc import Callable

# On a CPU, FSDP2 hides nothing unless its all-gathers are issued ahead and without waiting.
STRATEGIES = {"fsdp2": ("--async-unshard", "--forward-prefetch", "1"), "zero2": ()}
_LOSS = re.compile(r"^step \d+: loss (\d+\.\d+)")


def add_to(app: typer.Typer) -> None:
    """Adds the command to the app."""
    app.command("demo", epilog="Example: [bold]tracekit demo --out out/demo[/]")(command)


def command(
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", metavar="FOLDER", help="Where its runs and report go; those of an earlier demo are replaced."
        ),
    ] = Path("out/demo"),
) -> None:
    """Train FSDP2 and ZeRO-2 (DeepSpeed) here on two CPU ranks, and explain what each sent, hid and held."""
    import tracekit
    from tracekit.cli.console import console, progress
    from tracekit.cli.summary import draw
    from tracekit.report.description import summary
    from tracekit.report.write import write_report

    require("deepspeed", "the demo's ZeRO-2 run")
    losses: list[tuple[float, float] | None] = []
    for strategy in STRATEGIES:
        with progress(f"recording {strategy} on 2 ranks") as tell:
            losses.append(_record(strategy, out / strategy, tell))
    with progress("analysing both runs"):
        runs = [tracekit.open(out / strategy) for strategy in STRATEGIES]
        paths = write_report(runs, out / "report", force=True)
        numbers = {run.name: {"psi": run.psi, **summary(run)} for run in runs}
    draw(numbers, losses, console())
    tell_report(paths)
    page, folder = (plain_line(str(path)) for path in (paths.html, paths.html.parent))
    print(f"open {page} in a browser; tracekit view {folder} shows the trace")


def _record(strategy: str, folder: Path, tell: Callable[[str], None]) -> tuple[float, float] | None:
    """Records over what an earlier demo left; the first and the last loss."""
    seen: list[float] = []

    def take(line: str) -> None:
        tell(line)
        if match := _LOSS.match(line):
            seen.append(float(match[1]))

    record(strategy, folder, nproc=2, model="tiny", force=True, args=STRATEGIES[strategy], on_line=take)
    return (seen[0], seen[-1]) if len(seen) > 1 else None
