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


@pytest.mark.parametrize("command", ["demo", "record", "report", "show", "ledger", "predict", "view"])
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


SLOW = """
import signal, sys, time
from pathlib import Path
from tracekit import cli
from tracekit.export.files import open_output

def write(_):
    with open_output(Path(sys.argv[1])) as stream:
        stream.write("half")
        print("ready", flush=True)
        time.sleep(60)

cli._invoke = write
cli.main([])
"""


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGHUP", 129)])
def test_an_ending_signal_cleans_up(name, code, tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", SLOW, tmp_path / "new" / "a"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert len(list((tmp_path / "new").iterdir())) == 1
        process.send_signal(getattr(signal, name))
        _, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (code, f"tracekit: ended by {name}\n")
    assert list((tmp_path / "new").iterdir()) == []


def test_a_signal_that_is_ignored_stays_so(monkeypatch):
    old = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    monkeypatch.setattr(cli, "_invoke", lambda _: os.kill(os.getpid(), signal.SIGHUP) or 0)
    try:
        assert cli.run([]) == CODES["done"]
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, old)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


@pytest.mark.parametrize("form", ["json", "csv", "parquet", "table"])
@pytest.mark.parametrize("output", [[], ["-o", "/dev/full"]])
def test_a_full_disk_is_one_sentence(form, output):
    with open("/dev/full", "w") as full:  # noqa: PTH123 - a device, not a file of ours
        done = subprocess.run(
            [sys.executable, "-m", "tracekit", *PREDICT, "-f", form, *output],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    what = "/dev/full" if output else "the output"
    sentence = f"tracekit: {what} cannot be written: no space left on device\n"
    assert (done.returncode, done.stderr) == (CODES["input"], sentence)


def test_sentences_cannot_write_to_the_terminal(monkeypatch, capsys):
    failing(monkeypatch, InputError("a\x1b[31m\u202e\udcff\n" + "x" * 10**6))
    assert cli.run([]) == CODES["input"]
    err = capsys.readouterr().err
    assert err.startswith("tracekit: a\\x1b[31m\\u202e\\udcff\\x0axxx")
    assert (err.count("\n"), len(err)) == (1, 4_000 + len("tracekit: \n"))


def test_a_command_may_answer_no(monkeypatch):
    import typer

    app = typer.Typer()

    @app.command()
    def check() -> None:
        raise typer.Exit(1)

    monkeypatch.setattr(cli, "_app", lambda _: app)
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
