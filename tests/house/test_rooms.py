"""The map of the house as a table: which room imports which, no circles, and rooms and modules that fit in the head."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FACTS = "facts"
# Each room, and the rooms that it may import; every room may import the facts and itself.
MAY_IMPORT = {
    # Modules directly in tracekit/: what every room may use. The registries name modules of other rooms as text.
    FACTS: set(),
    "record": set(),
    "read": set(),
    "model": {"read"},
    "plan": set(),
    "timing": {"plan"},
    "analyzers": {"read", "model", "plan", "timing"},
    "report": {"read", "model", "plan", "timing", "analyzers", "export"},
    "export": {"read", "model", "plan", "timing", "analyzers"},
    "cli": {"read", "model", "plan", "timing", "analyzers", "report", "export", "record"},
}
# Imports for types alone, which cost nothing and tie nothing at run time, may look up: a table's function takes a run.
SOURCES = {path: ast.parse(path.read_text("utf-8")) for path in sorted((ROOT / "tracekit").rglob("*.py"))}
MOST_MODULES, MOST_LINES = 15, 320


def module_of(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in SOURCES}


def room_of(module):
    """The room of a module; the program's own entries belong to the command line."""
    parts = module.split(".")
    if module == "tracekit.__main__":
        return "cli"
    return parts[1] if len(parts) > 1 and parts[1] in MAY_IMPORT else FACTS


def is_for_types(node):
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def statements(tree, *, inside):
    """Import statements that run: at the top of the module, and `inside` functions too."""
    todo = list(tree.body)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif not is_for_types(node) and (inside or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)):
            todo += [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt | ast.ExceptHandler)]


def imported(module, *, inside):
    """The modules that the module imports, `from a import b` meaning a.b where that is a module."""
    found = set()
    for node in statements(SOURCES[MODULES[module]], inside=inside):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        else:
            assert node.level == 0, f"{module}: imports are written whole"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in MODULES else node.module for name in names}
    return found


@pytest.mark.parametrize("module", MODULES)
def test_imports_follow_the_map(module):
    room = room_of(module)
    used = {name: room_of(name) for name in imported(module, inside=True) if name.split(".")[0] == "tracekit"}
    against = {name for name, other in used.items() if other not in {room, FACTS, *MAY_IMPORT[room]}}
    assert against == set()
    outside = {name.split(".")[0] for name in imported(module, inside=True)}
    assert not outside & {"runners", "analysis", "tests"}


def test_every_room_is_on_the_map():
    rooms = {path.name for path in (ROOT / "tracekit").iterdir() if (path / "__init__.py").is_file()}
    assert rooms <= set(MAY_IMPORT)
    # An order from the bottom up exists: the map itself has no circle.
    assert order_of(MAY_IMPORT) is not None


def order_of(graph):
    """The nodes, each after what it imports; None where a circle has none."""
    left, order = {node: set(others) & set(graph) - {node} for node, others in graph.items()}, []
    while left:
        free = sorted(node for node, others in left.items() if not others & set(left))
        if not free:
            return None
        order += free
        left = {node: others for node, others in left.items() if node not in free}
    return order


def test_a_circle_is_found():
    assert order_of({"a": {"b"}, "b": {"c"}, "c": set()}) == ["c", "b", "a"]
    assert order_of({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": set()}) is None


def test_imports_are_found():
    everything = imported("tracekit.model.run", inside=True)
    assert {"tracekit.read.traces", "tracekit.table_registry"} <= everything
    assert "tracekit.cli.show" not in imported("tracekit.cli", inside=False)
    assert "tracekit.extras" in imported("tracekit.analyzers.hta", inside=False)


def test_no_modules_import_one_another_in_a_circle():
    graph = {module: imported(module, inside=False) for module in MODULES}
    # A package's __init__ is run before its modules and may name them for its users.
    graph = {
        module: {other for other in others if not module.startswith(f"{other}.")} for module, others in graph.items()
    }
    if order_of(graph) is None:
        left = dict(graph)
        while True:
            free = {node for node, others in left.items() if not others & set(left) - {node}}
            if not free:
                break
            left = {node: others for node, others in left.items() if node not in free}
        pytest.fail(f"in a circle, or on top of one: {sorted(left)}")


# Folders that hold more, each with the reason.
CROWDED = {
    "tracekit": 16,  # what every room may use: a fact a module, and the two registries
}


def test_no_folder_holds_more_modules_than_one_remembers():
    folders = {path.parent for path in SOURCES} | {path.parent for path in (ROOT / "runners").rglob("*.py")}
    crowded = {}
    for folder in (*folders, ROOT / "analysis"):
        modules = [path for path in folder.glob("*.py") if not path.name.startswith("__")]
        if len(modules) > CROWDED.get(str(folder.relative_to(ROOT)), MOST_MODULES):
            crowded[str(folder.relative_to(ROOT))] = len(modules)
    assert crowded == {}


# Longer ones, each with the reason.
LONG = {}


def test_no_module_is_longer_than_one_holds_in_the_head():
    files = [*SOURCES, *(ROOT / "runners").rglob("*.py"), *(ROOT / "analysis").rglob("*.py")]
    lengths = {str(path.relative_to(ROOT)): len(path.read_text("utf-8").splitlines()) for path in files}
    assert {name: length for name, length in lengths.items() if length > LONG.get(name, MOST_LINES)} == {}
    assert {name for name in LONG if lengths.get(name, 0) <= MOST_LINES} == set(), "no longer an exception"
