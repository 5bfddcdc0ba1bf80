"""A fixed sample of the fuzzer of truth; `make fuzz-ledger` runs many more."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="torch is not installed: the fuzzer trains with it")

import ledger
from ledger_configs import STRATEGIES, config

pytestmark = [pytest.mark.integration, pytest.mark.slow]
SEED, NUMBERS = 1, range(24)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The recorded configurations, all by one process and its forks."""
    path = tmp_path_factory.mktemp("fuzzed")
    ledger.record(path, SEED, list(NUMBERS))
    return path


def test_the_sample_has_every_strategy():
    assert {config(SEED, number).strategy for number in NUMBERS} == set(STRATEGIES)


@pytest.mark.parametrize("number", NUMBERS)
def test_what_is_read_planned_and_said_is_true(folder, number):
    kind, texts = ledger.verdict(folder, number)
    assert kind in ("exact", "told"), (config(SEED, number).text, texts)
