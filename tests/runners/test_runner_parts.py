from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from runners import data
from runners.models import Decoder, initialize
from tracekit import training as launch
from tracekit.reference_models import SIZES, size_of


def test_sizes_of_known_models():
    known = {"nano": 7_248, "tiny": 4_458_752, "1b": 1_235_814_400, "7b": 6_738_415_616, "70b": 68_976_648_192}
    assert {name: SIZES[name].num_params() for name in known} == known


@pytest.mark.parametrize("name", SIZES)
def test_the_closed_form_counts_the_model(name):
    with torch.device("meta"):
        model = Decoder(SIZES[name])
    assert sum(p.numel() for p in model.parameters()) == SIZES[name].num_params()


def test_layers_and_tying_change_a_size():
    assert size_of("nano", layers=5).num_params() == 7248 + 3 * 2592
    assert size_of("nano", tied=True).num_params() == 7248 - 64 * 16
    assert size_of("1b", tied=False).num_params() == 1_235_814_400 + 128256 * 2048


def test_a_seed_makes_the_same_model_and_batches():
    models = [Decoder(SIZES["nano"]) for _ in range(2)]
    for model in models:
        initialize(model, seed=3)
    for one, other in zip(*(model.state_dict().values() for model in models), strict=True):
        assert torch.equal(one, other)
    first, second = data.batches(3, 0, (2, 8), 64)
    assert first.shape == (2, 9)
    assert torch.equal(first, data.batches(3, 0, (2, 8), 64)[0])
    assert not torch.equal(first, second)
    assert not torch.equal(first, data.batches(3, 1, (2, 8), 64)[0])


def test_a_model_filled_from_meta_has_its_rotary_table():
    whole = Decoder(SIZES["nano"])
    with torch.device("meta"):
        empty = Decoder(SIZES["nano"])
    empty.to_empty(device="cpu")
    initialize(empty, seed=3)
    assert torch.equal(empty.rope, whole.rope)
    assert torch.equal(empty.norm.weight, torch.ones(16))


def test_the_decoder_does_not_look_ahead():
    model = Decoder(SIZES["nano"])
    initialize(model, seed=0)
    tokens = torch.arange(8).reshape(1, 8)
    changed = tokens.clone()
    changed[0, 5] = 63
    before, after = model(tokens), model(changed)
    assert torch.equal(before[0, :5], after[0, :5])
    assert not torch.equal(before[0, 5:], after[0, 5:])


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (["usage: train.py", "train.py: error: unrecognized arguments: --bogus"], "unrecognized arguments: --bogus"),
        (["error: /x holds a run already", "torch.x.ChildFailedError: ", "E1: failed"], "/x holds a run already"),
        (
            ["[rank0]: RuntimeError: CUDA error: out of memory", "torch.distributed.x.ChildFailedError: no"],
            "RuntimeError: CUDA error: out of memory",
        ),
        (["nothing told"], "the program ended with code 7"),
        ([], "the program ended with code 7"),
    ],
)
def test_why_a_run_failed(lines, reason):
    assert launch.reason(lines, 7) == reason


def test_the_environment_keeps_what_the_user_set(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    monkeypatch.delenv("KINETO_LOG_LEVEL", raising=False)
    assert (launch.environment()["OMP_NUM_THREADS"], launch.environment()["KINETO_LOG_LEVEL"]) == ("8", "6")


def test_launching_needs_no_torch():
    modules = "tracekit.training, tracekit.reference_models, runners.strategies"
    code = f"import sys, {modules}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
