"""What the runners' options mean, and what a strategy refuses."""

from __future__ import annotations

import argparse
import subprocess
import sys

import pytest
import torch

from runners import options, strategies, train
from runners.models import Decoder
from runners.strategies.base import checkpoint_blocks, freeze, trainable
from tracekit import training as launch
from tracekit.record import RecordError, clean_name
from tracekit.record.frameworks.ddp import _groups
from tracekit.reference_models import SIZES
from tracekit.strategies import CHECKPOINTING, with_runner


@pytest.mark.parametrize(("text", "value"), [("default", None), ("true", True), ("false", False), ("2", 2)])
def test_reshard_settings(text, value):
    assert options.reshard(text) is value


def test_reshard_of_a_unit():
    assert options.reshard_of_unit("layers.0=false") == ("layers.0", False)
    assert options.reshard_of_unit("root=true") == ("", True)
    assert options.reshard_of_unit("layers.1=4") == ("layers.1", 4)


@pytest.mark.parametrize(
    ("take", "text"),
    [
        (options.reshard, "maybe"),
        (options.reshard, "0"),
        (options.reshard_of_unit, "layers.0"),
        (options.positive, "0"),
        (options.positive, "-1"),
        (options.positive, "1.5"),
        (options.depth, "-1"),
        (options.positive_real, "0"),
        (options.positive_real, "inf"),
        (options.positive_real, "nan"),
        (options.positive_real, "x"),
    ],
)
def test_values_that_make_no_sense(take, text):
    with pytest.raises(argparse.ArgumentTypeError):
        take(text)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")  # torch's ZeroRedundancyOptimizer uses it
@pytest.mark.parametrize("name", with_runner())
@pytest.mark.slow
def test_every_strategy_takes_options_that_exist(name):
    strategy = strategies.load(name)
    assert strategy.takes <= options.OPTIONS.keys()
    assert strategy.refuses.keys() <= options.OPTIONS.keys()


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["--strategy", "ddp", "--tp", "2"], "ddp has no --tp: leave it out"),
        (
            ["--strategy", "zero2-fsdp2", "--reshard-after-forward=true"],
            "zero2-fsdp2 has no --reshard-after-forward: it keeps every unit gathered; fsdp2 takes this option",
        ),
        (
            ["--strategy", "zero2", "--no-sync-every-micro-batch"],
            "zero2 has no --sync-every-micro-batch: the engine reduces once a step in stage 1, every micro-batch in",
        ),
        (["--strategy", "fsdp2-graph", "--compile", "blocks"], "fsdp2-graph has no --compile: it is always compiled"),
        (["--strategy", "fsdp2", "--bogus", "1"], "unrecognized arguments: --bogus 1"),
        # An abbreviation would be taken for another option where a strategy has only the longer one.
        (["--strategy", "fsdp2", "--clip", "1"], "unrecognized arguments: --clip 1"),
        (["--strategy", "fsdp2", "--reshard", "layers.0"], "names no setting; write UNIT=true"),
        (["--strategy", "fsdp2", "--seq-len", "999999"], "is more than the 2048 of tiny"),
    ],
)
def test_refusals_are_one_sentence(capsys, argv, sentence):
    with pytest.raises(SystemExit) as caught:
        train.parse(argv)
    assert caught.value.code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert launch.reason([last], 2).startswith(sentence) or sentence in last


def test_told_options_are_json():
    args, strategy = train.parse(["--strategy", "fsdp2", "--reshard", "layers.0=false", "--freeze", "norm"])
    told = options.told(args, strategy.takes)
    assert (told["reshard"], told["freeze"], told["forward_prefetch"]) == ({"layers.0": False}, ["norm"], 0)
    assert told["sync_every_micro_batch"] is True
    assert told["compile"] is None


def test_freezing_by_name():
    model = Decoder(SIZES["nano"])
    freeze(model, ["tok_emb", r"attention\.w[qk]"])
    # 2 * (16*16 twice) and 64*16 less.
    assert sum(p.numel() for p in trainable(model)) == 7248 - 4 * 256 - 1024


@pytest.mark.parametrize(
    ("pattern", "sentence"), [("nothing", "finds no parameter"), ("(", "no regular expression"), ("", "leaves no")]
)
def test_freezing_without_use(pattern, sentence):
    with pytest.raises(RecordError, match=sentence):
        freeze(Decoder(SIZES["nano"]), [pattern])


@pytest.mark.parametrize("mode", CHECKPOINTING)
def test_checkpointed_blocks_keep_their_names_and_results(mode):
    model = Decoder(SIZES["nano"])
    tokens = torch.arange(8).reshape(1, 8)
    before, names = model(tokens), [name for name, _ in model.named_parameters()]
    checkpoint_blocks(model, mode)
    assert torch.equal(model(tokens), before)
    assert [clean_name(name) for name, _ in model.named_parameters()] == names


def test_ddp_buckets_as_torch_writes_them():
    assert _groups("3 2, 1, 0") == [[3, 2], [1], [0]]
    assert _groups("") == _groups(None) == []


def test_odd_has_no_size_that_four_ranks_divide():
    size = SIZES["odd"]
    assert size.num_params() == 106_554
    assert all(numel % 4 for numel in (size.dim, size.hidden, size.vocab, size.dim // size.heads * size.kv_heads))


@pytest.mark.slow
def test_a_program_without_strategy_says_so():
    done = subprocess.run([sys.executable, str(launch.TRAIN)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "--strategy" in done.stderr.splitlines()[-1]
