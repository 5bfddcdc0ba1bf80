"""The command line's manners: exit codes, one sentence on stderr, nothing but text in a pipe."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys

import pytest

from tracekit import __version__, cli
from tracekit.errors import InputError, UsageError

CODES = {"done": 0, "no": 1, "input": 2, "own": 3}
PREDICT = ["predict", "--params", "7e9"]


def tracekit(*args, env=None, **options):
    return subprocess.run(
        [sys.executable, "-m", "tracekit", *args],
        capture_output=True,
        text=True,
        env={**os.environ, **(env or {})},
        check=False,
        **options,
    )


def failing(monkeypatch, error):
    def fail(*_):
        raise error

    monkeypatch.setattr(cli, "_invoke", fail)


def test_version(capsys):
    assert cli.run(["--version"]) == CODES["done"]
    assert capsys.readouterr().out == f"tracekit {__version__}\n"


def test_module_and_main_are_the_same_program():
    done = tracekit("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"tracekit {__version__}\n", "")


@pytest.mark.parametrize("command", ["demo", "record", "report", "show", "predict", "view"])
def test_every_command_explains_itself_with_an_example(command, capsys):
    assert cli.run([command, "--help"]) == CODES["done"]
    out = capsys.readouterr().out
    assert f"Usage: tracekit {command}" in out
    assert f"Example: tracekit {command}" in out.replace("Examples", "Example")


def test_no_command_prints_the_help(capsys):
    cli.run([])
    printed = capsys.readouterr()
    assert "Usage: tracekit" in printed.out + printed.err


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["shwo"], r"^tracekit: No such command 'shwo'\. Did you mean 'show'\? \(see tracekit --help\)\n$"),
        (["predict", "--parms", "1"], r"^tracekit: No such option: --parms .*\n$"),
        (["predict"], r"^tracekit: Missing option '--params' .*\n$"),
        (["show", "steps", "x", "--limit", "many"], r"^tracekit: Invalid value for '--limit': .*\n$"),
        (["show", "steps", "x", "--format", "xml"], r"^tracekit: Invalid value for '--format' / '-f': .*\n$"),
    ],
)
def test_wrong_options_are_one_line_and_exit_2(args, sentence, capsys):
    assert cli.run(args) == CODES["input"]
    printed = capsys.readouterr()
    assert printed.out == ""
    assert re.match(sentence, printed.err)


@pytest.mark.parametrize("error", [InputError("r0.json is empty"), UsageError("--x is wrong")])
def test_a_users_error_is_one_sentence_and_exit_2(error, monkeypatch, capsys):
    failing(monkeypatch, error)
    assert cli.run([]) == CODES["input"]
    assert capsys.readouterr() == ("", f"tracekit: {error}\n")


def test_our_own_fault_is_one_sentence_and_exit_3(monkeypatch, capsys):
    monkeypatch.delenv("TRACEKIT_DEBUG", raising=False)
    failing(monkeypatch, KeyError("layer\nx"))
    assert cli.run([]) == CODES["own"]
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "KeyError" in err
    assert "TRACEKIT_DEBUG=1" in err


def test_our_own_fault_shows_its_traceback_when_asked(monkeypatch):
    monkeypatch.setenv("TRACEKIT_DEBUG", "1")
    failing(monkeypatch, KeyError("layer"))
    with pytest.raises(KeyError):
        cli.run([])


def test_interrupted(monkeypatch, capsys):
    failing(monkeypatch, KeyboardInterrupt())
    assert cli.run([]) == 128 + signal.SIGINT
    assert capsys.readouterr() == ("", "tracekit: interrupted\n")


def test_a_command_may_answer_no(monkeypatch):
    import typer

    app = typer.Typer()

    @app.command()
    def check() -> None:
        raise typer.Exit(1)

    monkeypatch.setattr(cli, "app", app)
    assert cli.run([]) == CODES["no"]


@pytest.mark.parametrize("args", [PREDICT, [*PREDICT, "--format", "json"], ["--help"]])
def test_a_reader_that_goes_away_is_no_error(args):
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "tracekit", *args], stdout=write, stderr=subprocess.PIPE, text=True, check=False
        )
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


def test_a_pipe_gets_no_colour_and_no_cut_line():
    done = tracekit(*PREDICT, "--dtype", "float32", env={"COLUMNS": "40", "TERM": "xterm-256color"})
    assert done.returncode == 0
    assert "\x1b" not in done.stdout + done.stderr
    rows = [line for line in done.stdout.splitlines() if line.startswith("│")]
    assert len(rows) == 12
    assert "…" not in done.stdout


def run_on_a_terminal(args, env):
    """What the command writes to a pseudo-terminal of 100 columns."""
    import fcntl
    import pty
    import struct
    import termios

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    with subprocess.Popen(
        [sys.executable, "-m", "tracekit", *args], stdin=theirs, stdout=theirs, stderr=theirs, env=env
    ):
        os.close(theirs)
        written = b""
        try:
            while part := os.read(ours, 4096):
                written += part
        except OSError:
            pass  # the other end has gone: that is how a terminal says so
    os.close(ours)
    return written.decode()


def test_a_terminal_gets_styles_and_no_colour_means_none():
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100"}
    env.pop("NO_COLOR", None)
    colour = re.compile(r"\x1b\[(?:\d+;)*(?:3[0-8]|9[0-7])[;m]")
    assert colour.search(run_on_a_terminal(["--help"], env))
    plain = run_on_a_terminal(["--help"], {**env, "NO_COLOR": "1"})
    assert "Usage: " in plain
    assert not colour.search(plain)
    table = run_on_a_terminal(PREDICT, {**env, "NO_COLOR": "1"})
    assert not colour.search(table)
    assert max(len(line.rstrip()) for line in table.splitlines() if "│" in line) <= 100
