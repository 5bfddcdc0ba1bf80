from __future__ import annotations

import fuzz
import pytest

pytestmark = pytest.mark.slow

_CHUNK, _MUTANTS = 125, 2000


@pytest.mark.parametrize("first", range(0, _MUTANTS, _CHUNK))
def test_every_mutant_is_read_with_its_repairs_or_refused_in_a_sentence(first: int) -> None:
    assert fuzz.run(0, range(first, first + _CHUNK)) == []


def test_a_mutant_is_the_same_every_time() -> None:
    assert fuzz.make(3, 14) == fuzz.make(3, 14)


def test_the_oracle_sees_a_lost_event_a_silent_repair_and_a_traceback_in_a_refusal() -> None:
    event = b'{"ph": "X", "name": "a", "ts": 1.5, "dur": 2}'
    row = ("X", "a", 1500, 2000)
    whole = b"[" + event + b"]"
    assert fuzz.complaints(whole, [event], fuzz.Outcome([row], [], None)) == []
    assert "lost" in fuzz.complaints(whole, [event], fuzz.Outcome([], ["x"], None))[0]
    assert "without a repairs row" in fuzz.complaints(whole[:-1], [event], fuzz.Outcome([row], [], None))[0]
    assert "made up" in fuzz.complaints(whole, [event], fuzz.Outcome([row, row], [], None))[0]
    assert "not one sentence" in fuzz.complaints(b"", [], fuzz.Outcome([], [], "Traceback\n  File"))[0]
