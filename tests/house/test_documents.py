"""Documents, help texts and docstrings name no file, target, command, option, table or name that is missing."""

from __future__ import annotations

import ast
import re
import shlex
import tomllib
from pathlib import Path

import pytest
import typer
from cases import rows

from tracekit import cli, table_registry

ROOT = Path(__file__).parents[2]
# CHANGELOG.md names what is gone.
DOCUMENTS = [
    path
    for path in (*ROOT.glob("README*.md"), ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/*.md"), *ROOT.glob("*/README.md"))
    if path.parent.name not in {"out", "build"}
]
MODULES = [path for room in ("tracekit", "runners", "analysis") for path in sorted((ROOT / room).rglob("*.py"))]
# What CONTRIBUTING.md adds, what is made when something runs, and what a wheel has.
NOT_THERE = re.compile(
    r"^(out|runs|dist|\.venv|traces/mine|tracekit/_runners)(/|$)|longest|LONGEST|fsdp2[-_]muon|"
    r"^(manifest|report|collectives|overlap)\.(json|html)$"
)
ROOMS = [path.name for path in ROOT.glob("tracekit/*/")]
FOLDERS = ("tracekit", "runners", "analysis", "tests", "docs", "traces", ".ci", *ROOMS)
COMMANDS = typer.main.get_command(cli._app([])).commands
TARGETS = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]


def fences(text, language):
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def code(text):
    """What stands in backticks, and the lines of shell in fences without their comments."""
    plain = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    lines = [line.partition(" #")[0].strip() for fence in fences(text, "bash") for line in fence.splitlines()]
    return [*(found.strip() for found in re.findall(r"`([^`\n]+)`", plain)), *filter(None, lines)]


def missing_path(word):
    """The word, if it is a path of this repository and nothing lies there."""
    word = re.sub(r":\w+$|::?[\w.]+$", "", word.strip(".,;:()"))
    if NOT_THERE.search(word) or not re.fullmatch(r"[\w.*-]+(/[\w.*-]+)*/?", word) or "NAME" in word:
        return None
    if "/" in word:
        there = any(any(ROOT.glob(f"{base}{word}")) for base in ("", "tracekit/", "tests/"))
        return word if word.split("/")[0] in FOLDERS and not there else None
    # What begins with an underscore is a file of torch.
    return word if re.search(r"^[^_].*\.(py|md)$", word) and not any(ROOT.rglob(word)) else None


def missing_command(line):
    """What a `tracekit …` line names that the program lacks; None where all of it exists."""
    words = shlex.split(line.replace("…", ""), comments=True)
    if len(words) < 2 or words[1].startswith("-"):
        return None
    name, *args = words[1:]
    if name not in COMMANDS:
        return name
    options = {option for parameter in COMMANDS[name].params for option in (*parameter.opts, *parameter.secondary_opts)}
    options |= {"--help", "-h"}
    # `record` hands options of a strategy on to the training program.
    known = options | (runner_options() if name == "record" else set())
    gone = [word for word in args if word.startswith("-") and word != "-" and word.partition("=")[0] not in known]
    tables = {*table_registry.names(), "TABLE"}
    if name == "show" and args and not args[0].startswith("-") and args[0] not in tables:
        gone.append(args[0])
    return " ".join(gone) or None


def runner_options():
    from runners.options import OPTIONS

    common = re.findall(r"\badd\(\"(--[a-z-]+)\"", (ROOT / "runners" / "train.py").read_text("utf-8"))
    return {*common} | {f"--{name}" for name in OPTIONS} | {f"--no-{name}" for name in OPTIONS}


def missing_name(name):
    """The dotted name, if neither a module nor anything defined in one is called so."""
    home, parts = ROOT, name.split(".")
    while parts and (home / parts[0]).is_dir():
        home /= parts.pop(0)
    if parts and (home / f"{parts[0]}.py").is_file():
        home /= f"{parts.pop(0)}.py"
    if not parts:
        return None
    home = home if home.suffix else home / "__init__.py"
    wanted = re.escape(parts[0])
    defined = rf'^ *(?:(?:def|class) )?{wanted}\b|"{wanted}"'
    return None if home.is_file() and re.search(defined, home.read_text("utf-8"), re.MULTILINE) else name


def wrong_words(spans):
    """Everything that these pieces of code name and that does not exist."""
    wrong, tables = [], {*table_registry.names(), "TABLE"}
    for span in spans:
        if span.startswith("make "):
            wrong += [word for word in span.split()[1:] if re.fullmatch(r"[a-z-]+", word) and word not in TARGETS]
        elif re.match(r"(\.venv/bin/)?tracekit \w", span):
            wrong += filter(None, [missing_command(span)])
        for extras in re.findall(r"\[([a-z]+(?:,[a-z]+)*)\]", span) if "pip" in span or "zero-tracekit" in span else []:
            wrong += [extra for extra in extras.split(",") if extra not in EXTRAS]
        wrong += filter(None, map(missing_path, span.split()))
        wrong += [
            found for found in re.findall(r"(?<![\w/.-])tracekit\.[a-z_]\w*(?:\.\w+)*", span) if missing_name(found)
        ]
        wrong += [name for name in re.findall(r"\.table\(\"([\w-]+)\"", span) if name not in tables]
    return wrong


@pytest.mark.parametrize("document", DOCUMENTS, ids=[str(path.relative_to(ROOT)) for path in DOCUMENTS])
def test_documents_name_nothing_that_is_missing(document):
    text = document.read_text("utf-8")
    assert wrong_words([*code(text), *(line for fence in fences(text, "python") for line in fence.splitlines())]) == []
    links = [link for link in re.findall(r"\]\(([^)#]+)[^)]*\)", text) if "://" not in link]
    assert [link for link in links if not (document.parent / link).exists()] == []


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_help_names_nothing_that_is_missing(name, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "1000")
    assert cli.run([name, "--help"]) == 0
    assert capsys.readouterr().out
    said = [COMMANDS[name].help or "", COMMANDS[name].epilog or ""]
    said += [getattr(parameter, "help", None) or "" for parameter in COMMANDS[name].params]
    text = re.sub(r"\[/?[a-z]*\]", "\n", " ".join(said))
    shown = [line.strip() for line in text.splitlines() if line.strip().startswith(("tracekit ", "make "))]
    assert wrong_words(shown) == []
    assert [path for path in re.findall(r"[\w/-]+/[\w.-]+\.(?:py|md|toml)\b", text) if missing_path(path)] == []


@pytest.mark.parametrize("module", MODULES, ids=[str(path.relative_to(ROOT)) for path in MODULES])
def test_docstrings_name_nothing_that_is_missing(module):
    tree = ast.parse(module.read_text("utf-8"))
    homes = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    texts = [ast.get_docstring(node) or "" for node in ast.walk(tree) if isinstance(node, homes)]
    text = " ".join(texts).replace("``", "`")
    paths = re.findall(r"(?<![\w/.~-])(?:tracekit|runners|analysis|tests|docs|traces)/[\w./-]*\w", text)
    assert [path for path in paths if missing_path(path)] == []
    assert wrong_words(span for span in code(text) if not span.startswith("make ") or span.count(" ") == 1) == []
    dotted = re.findall(r"(?<![\w/.-])(?:tracekit|runners)\.[a-z_]\w*(?:\.\w+)*", text)
    assert [name for name in dotted if missing_name(name)] == []


def test_comments_name_files_that_exist():
    files = [*MODULES, *(ROOT / "tests").rglob("*.py"), ROOT / "Makefile", ROOT / "pyproject.toml", ROOT / "setup.py"]
    wrong = []
    for file in files:
        said = re.findall(r"#.*", file.read_text("utf-8"))
        paths = re.findall(r"(?<![\w/.~-])(?:tracekit|runners|analysis|tests|docs)/[\w./-]*\.\w+", " ".join(said))
        wrong += [f"{file.relative_to(ROOT)}: {path}" for path in paths if missing_path(path)]
    assert wrong == []


@pytest.mark.parametrize(
    ("span", "wrong"),
    rows(
        [
            ("target", "make tset", ["tset"]),
            ("command", "tracekit shwo overlap traces/fsdp2", ["shwo"]),
            ("option", "tracekit show overlap traces/fsdp2 --setp 4", ["--setp"]),
            ("table", "tracekit show blame traces/fsdp2", ["blame"]),
            ("file", "tracekit/model/lanes.py", ["tracekit/model/lanes.py"]),
            ("name", "tracekit.opne", ["tracekit.opne"]),
            ("extra", "pip install .[hat]", ["hat"]),
            ("python", 'run.table("blame")', ["blame"]),
            ("sound", "tracekit show overlap traces/fsdp2 --by layer", []),
        ]
    ),
)
def test_what_is_missing_is_found(span, wrong):
    assert wrong_words([span]) == wrong


README = (ROOT / "README.md").read_text("utf-8")
TOUR = [found for found in code(README) if re.match(r"tracekit (show|plan|predict|report) .*(traces/|--)", found)]


@pytest.fixture
def beside_traces(tmp_path, monkeypatch):
    """A working folder that has the sample runs, and takes whatever a command writes."""
    (tmp_path / "traces").symlink_to(ROOT / "traces")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("line", TOUR)
def test_commands_of_the_tour_work(line, beside_traces, capsys):
    if line.endswith("--help"):
        pytest.skip("help is read above")
    assert cli.run(shlex.split(line)[1:]) == 0, capsys.readouterr().err


def test_the_tour_has_commands():
    assert len(TOUR) >= 12


def test_python_of_the_readme_works(beside_traces):
    reading, recording = fences(README, "python")
    names = {}
    exec(compile(reading, "README.md", "exec"), names)
    assert names["run"].collectives.height > 0
    assert "with Recorder(" in recording
    compile(recording, "README.md", "exec")
