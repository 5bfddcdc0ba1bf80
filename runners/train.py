"""Trains a decoder on synthetic tokens under torchrun and leaves a run folder.

torchrun --standalone --nproc-per-node 2 runners/train.py --strategy fsdp2 --model tiny --out traces/mine
"""

from __future__ import annotations

import argparse
import os
import runpy
import sys
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    runpy.run_path(str(Path(__file__).with_name("by_path.py")))["join_package"]()

# Kineto and torch read these when they are loaded; marks of profiler start and allocator notes are of no use here.
os.environ.setdefault("KINETO_LOG_LEVEL", "6")
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

import torch
import torch.distributed as dist

from runners import data, options, strategies
from runners.models import Decoder, initialize
from runners.strategies.base import DTYPES, Setup, Strategy, checkpoint_blocks, freeze
from tracekit.record import Recorder, RecordError, Schedule
from tracekit.reference_models import SIZES, Size, size_of
from tracekit.strategies import find, with_runner
from tracekit.training import ERROR_PREFIX

# Above this many parameters no rank makes the model whole if it can be helped.
MAX_WHOLE_NUMEL = 2_000_000_000


def make_parser(name: str | None) -> argparse.ArgumentParser:
    """The options of every run, and those of the strategy of that name."""
    about = find(name) if name is not None else None
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    add = parser.add_argument
    add("--strategy", choices=with_runner(), required=True)
    add("--model", choices=list(SIZES), default="tiny", help="size of the decoder")
    add("--layers", type=int, default=None, help="number of blocks, in place of the size's own")
    add(
        "--tie-embeddings", action=argparse.BooleanOptionalAction, default=None, help="output weight = embedding weight"
    )
    add("--out", default=None, help="run folder; traces/<strategy>-<model>-<ranks> if not given")
    add("--overwrite", action="store_true", help="replace a run that the folder holds")
    add("--steps", type=int, default=None, help="optimizer steps; as many as the schedule needs if not given")
    add("--batch-size", type=int, default=4, help="sequences a rank and micro-batch")
    add("--seq-len", type=int, default=128, help="tokens of a sequence")
    add("--micro-batches", type=int, default=1, help="micro-batches a step (gradient accumulation)")
    add("--learning-rate", type=float, default=1e-3)
    add("--seed", type=int, default=0)
    add("--param-dtype", choices=list(DTYPES), default=about and about.param_dtype, help="dtype to compute in")
    add("--reduce-dtype", choices=list(DTYPES), default=about and about.reduce_dtype, help="dtype of reductions")
    add("--backend", choices=["nccl", "gloo"], default=None, help="NCCL where there are GPUs, else gloo, if not given")
    add("--wait", type=int, default=3, help="steps before the profiler is switched on")
    add("--warmup", type=int, default=1, help="steps with the profiler on and its events dropped")
    add("--active", type=int, default=3, help="steps recorded")
    add("--repeat", type=int, default=1, help="how often wait, warm up and record")
    if name is not None:
        options.add(parser, strategies.load(name).takes)
    return parser


def parse(argv: list[str]) -> tuple[argparse.Namespace, type[Strategy]]:
    """The options and the strategy's class; options that the strategy does not have are refused."""
    finder = argparse.ArgumentParser(add_help=False)
    finder.add_argument("--strategy", choices=with_runner())
    name = finder.parse_known_args(argv)[0].strategy
    if name is None:
        # Without a strategy the parser helps or complains, and leaves.
        make_parser(None).parse_args(argv)
        sys.exit(2)
    strategy, parser = strategies.load(name), make_parser(name)
    args, left = parser.parse_known_args(argv)
    if left:
        parser.error(options.refusal(left, name, strategy.refuses))
    longest = SIZES[args.model].max_seq_len
    if args.seq_len > longest:
        parser.error(f"--seq-len {args.seq_len} is more than the {longest} of {args.model}; give less")
    return args, strategy


def connect(args: argparse.Namespace) -> Setup:
    """Joins the other ranks: NCCL and one GPU a rank where there are GPUs, gloo and one thread a rank otherwise.

    Over gloo more ranks than GPUs share them, so that one GPU shows what several ranks do.
    """
    if torch.cuda.is_available():
        backend = args.backend or "nccl"
        rank, gpus = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
        device = torch.device("cuda", rank % gpus if backend == "gloo" else rank)
        torch.cuda.set_device(device)
    else:
        device, backend = torch.device("cpu"), args.backend or "gloo"
        torch.set_num_threads(1)
    if "RANK" in os.environ:
        dist.init_process_group(backend)
    else:
        # Started without torchrun: one rank that talks to itself. DeepSpeed asks the environment which one.
        os.environ["LOCAL_RANK"] = "0"
        dist.init_process_group(backend, store=torch.distributed.HashStore(), rank=0, world_size=1)  # pyright: ignore[reportPrivateImportUsage]
    return Setup(args, device, dist.get_rank(), dist.get_world_size())


def make_model(setup: Setup, strategy: type[Strategy], size: Size) -> Decoder:
    """The whole model, the same on all ranks; for a big one only its shapes, where the strategy can fill it sharded."""
    if strategy.from_meta and size.num_params() > MAX_WHOLE_NUMEL:
        with torch.device("meta"):
            model = Decoder(size)
    else:
        model = Decoder(size).to(setup.device)
        initialize(model, setup.args.seed)
    freeze(model, setup.args.freeze or ())
    checkpoint_blocks(model, getattr(setup.args, "activation_checkpointing", "none"))
    return model


def make_recorder(setup: Setup, strategy: Strategy, model: torch.nn.Module, optimizer: Any, size: Size) -> Recorder:
    """The recorder with what the strategy says about itself."""
    args, about = setup.args, strategy.describe()
    common = {"model": args.model, "layers": size.layers, "tied": size.tied, "vocab": size.vocab}
    common |= {"seq_len": args.seq_len, "batch_size": args.batch_size, "seed": args.seed}
    told = common | options.told(args, strategy.takes) | about.pop("options", {})
    schedule = Schedule(args.wait, args.warmup, args.active, args.repeat)
    return Recorder(
        args.out or f"traces/{args.strategy}-{args.model}-{setup.world_size}",
        model,
        strategy=args.strategy,
        options=told,
        optimizer=optimizer,
        schedule=schedule,
        micro_batches=args.micro_batches,
        overwrite=args.overwrite,
        learned=strategy.learned,
        **about,
    )


def train(setup: Setup, strategy: Strategy, recorder: Recorder, tokens: list[torch.Tensor]) -> None:
    """Runs the steps and prints rank 0's loss of each; nothing in here communicates but the strategy."""
    args = setup.args
    num_steps = recorder.schedule.num_steps if args.steps is None else args.steps
    with recorder:
        for step in range(num_steps):
            first = step * args.micro_batches
            micro_batches = [tokens[(first + i) % len(tokens)] for i in range(args.micro_batches)]
            loss = strategy.step(micro_batches).item()
            mark = " (recorded)" if recorder.recording else ""
            recorder.step()
            if setup.rank == 0:
                print(f"step {step}: loss {loss:.4f}{mark}", flush=True)


def main(argv: list[str]) -> int:
    """Trains and records. Returns 0 when done, 2 when options or folder cannot be used (one sentence on stderr)."""
    args, kind = parse(argv)
    size = size_of(args.model, layers=args.layers, tied=args.tie_embeddings)
    try:
        setup = connect(args)
        strategy = kind(setup)
        model = strategy.wrap(make_model(setup, kind, size))
        optimizer = strategy.make_optimizer(args.learning_rate)
        recorder = make_recorder(setup, strategy, model, optimizer, size)
        batches = data.batches(args.seed, setup.rank, (args.batch_size, args.seq_len), size.vocab)
        train(setup, strategy, recorder, [batch.to(setup.device) for batch in batches])
        if setup.rank == 0:
            print(f"run: {recorder.path}", flush=True)
    except RecordError as error:
        if os.environ.get("RANK", "0") == "0":
            print(f"{ERROR_PREFIX}{error}", file=sys.stderr, flush=True)
        return 2
    except KeyboardInterrupt:
        return 130
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
