"""Every table of every run, kept and compared: what a change of the house must leave as it was.

    python tests/helpers/snapshot.py keep OUT              # tables of sample runs and public traces
    python tests/helpers/snapshot.py compare BEFORE AFTER  # exit 1 and the first differences, if there are any

`compare` knows the names that tables and columns had before they were renamed.
"""

from __future__ import annotations

import json
import os
import re
import sys
import warnings
from pathlib import Path

import polars as pl

ROOT = Path(__file__).parents[2]
SHARED = Path(os.environ.get("TRACEKIT_SHARED", ROOT.parent / "shared"))
GROUPED = (
    ("overlap", ("rank", "step")),
    ("overlap", ("layer",)),
    ("volume", ("rank", "step", "layer")),
    ("volume", ("kind", "dtype")),
    ("ledger", ("kind",)),
)
# Old names, by the new ones.
TABLES = {
    "exposure": "blame",
    "hidden-by": "hiders",
    "ideal": "bound",
    "concurrency": "together",
    "model-states": "floor",
    "unclassified": "unknown",
}
COLUMNS: dict[str, dict[str, str]] = {
    "ideal": {"ideal_ns": "bound_ns"},
    "concurrency": {"concurrent_ns": "together_ns"},
    "hidden-by": {"hidden_by": "hider", "hidden_by_layer": "hider_layer", "hidden_by_phase": "hider_phase"},
}
# What is new since.
NEW_TABLES = {"events"}
NEW_COLUMNS = {"hidden-by": ["seq"]}


def keep(out: Path) -> None:
    """Writes a folder a run: a Parquet file a table, and what is said of the run as JSON."""
    import tracekit
    from tracekit import table_registry
    from tracekit.report.description import description, summary
    from tracekit.report.sentences import sentences

    for path in runs():
        folder = out / f"{path.parent.name}__{path.name}"
        folder.mkdir(parents=True)
        about: dict[str, object] = {}
        try:
            run = tracekit.open(path, cache=False)
        except tracekit.errors.TracekitError as error:
            about["error"] = f"{type(error).__name__}: {error}"
        else:
            for name, by in [*((name, ()) for name in table_registry.names()), *GROUPED]:
                try:
                    run.table(name, by=by).write_parquet(folder / f"{'-'.join([name, *(by and ('by', *by))])}.parquet")
                except Exception as error:  # noqa: BLE001 - what a table refuses is compared too
                    about[name] = f"{type(error).__name__}: {error}"
            about |= {"verdicts": sentences(run), "facts": description(run), "summary": summary(run)}
        (folder / "about.json").write_text(json.dumps(about, indent=1, default=str))


def runs() -> list[Path]:
    """The sample runs and the public ones that lie beside the checkout."""
    folders = [ROOT / "traces", SHARED / "corpus", SHARED / "cases2"]
    found = [path for folder in folders if folder.is_dir() for path in sorted(folder.iterdir())]
    return [path for path in found if path.suffix != ".md"]


def compare(before: Path, after: Path) -> list[str]:
    """The differences, a line each."""
    told: list[str] = []
    for folder in sorted(before.iterdir()):
        other = after / folder.name
        if not other.is_dir():
            told.append(f"{folder.name}: missing")
            continue
        told += differences(folder, other)
    return told


def differences(before: Path, after: Path) -> list[str]:
    """The differences of one run."""
    ours, theirs = (json.loads(anywhere((folder / "about.json").read_text())) for folder in (before, after))
    changed = [key for key in sorted({*ours, *theirs}) if ours.get(key) != theirs.get(key)]
    told = [f"{before.name} {key}: {ours.get(key)} -> {theirs.get(key)}" for key in changed]
    for path in sorted(after.glob("*.parquet")):
        name, by, columns = path.stem.partition("-by-")
        old = before / f"{TABLES.get(name, name)}{by}{columns}.parquet"
        if not old.is_file() and name in NEW_TABLES:
            continue
        if not old.is_file():
            told.append(f"{before.name} {path.stem}: new")
            continue
        was, now = (placeless(pl.read_parquet(file)) for file in (old, path))
        now = now.rename(COLUMNS.get(name, {}), strict=False)
        now = now.drop(column for column in NEW_COLUMNS.get(name, []) if column not in was.columns)
        if not was.equals(now, null_equal=True) or was.schema != now.schema:
            told.append(f"{before.name} {path.stem}: {difference(was, now)}")
    new = {path.stem for path in after.glob("*.parquet")}
    known = {TABLES.get(stem.partition("-by-")[0], stem.partition("-by-")[0]) for stem in new}
    gone = [path.stem for path in before.glob("*.parquet") if path.stem.partition("-by-")[0] not in known]
    return told + [f"{before.name} {stem}: gone" for stem in sorted(gone)]


def anywhere(text: str) -> str:
    """The text without the folder that a checkout or the public traces lie in."""
    return re.sub(r"/[^\s\"]*/(traces|corpus|cases2)/", r"\1/", text)


def placeless(frame: pl.DataFrame) -> pl.DataFrame:
    """The frame with file names that do not tell where a checkout lies."""
    files = pl.col("file").map_elements(anywhere, pl.String)
    return frame.with_columns(files) if "file" in frame.columns else frame


def difference(was: pl.DataFrame, now: pl.DataFrame) -> str:
    """What tells the two frames apart first."""
    if was.schema != now.schema:
        return f"schema {dict(was.schema)} -> {dict(now.schema)}"
    if was.height != now.height:
        return f"{was.height} -> {now.height} rows"
    for place, (old, new) in enumerate(zip(was.iter_rows(), now.iter_rows(), strict=True)):
        if old != new:
            return f"row {place}: {old} -> {new}"
    return "equal rows, other values that print alike"


def main(args: list[str]) -> int:
    """Runs one of the two commands."""
    warnings.simplefilter("ignore")
    match args:
        case ["keep", out]:
            keep(Path(out))
            return 0
        case ["compare", before, after]:
            told = compare(Path(before), Path(after))
            print("\n".join(told) or "equal")
            return 1 if told else 0
        case _:
            print(__doc__, file=sys.stderr)
            return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
