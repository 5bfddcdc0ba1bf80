"""The commands of docs/memory.md, run as they stand there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tracekit import cli

pytestmark = [pytest.mark.integration, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "memory.md").read_text("utf-8")
COMMANDS = [line for block in re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]


def test_every_question_is_on_the_page():
    numbers = [int(number) for number in re.findall(r"(?:\*\*|and )(\d+)\.", PAGE)]
    assert numbers == list(range(1, 15))


@pytest.mark.parametrize("command", COMMANDS)
def test_the_command_answers(monkeypatch, capfd, command):
    pytest.importorskip("torch", reason="torch is not installed: it runs torch's own code")
    monkeypatch.chdir(ROOT)
    program, *args = shlex.split(command)
    assert program == "tracekit"
    assert cli.run(args) == 0
    out = capfd.readouterr().out
    if "--table memory" in command:
        # The total is known whole: in no row of this table is a number missing.
        assert "total" in out
        assert "–" not in out
    assert out.count("\n") >= 2 or "growth" in command
