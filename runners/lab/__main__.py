"""Records a run on several hosts of a lab on this machine, their links shaped to a rate. Needs root and iproute2.

python -m runners.lab --hosts 2 --rate 1gbit --strategy fsdp2 --out out/lab/fsdp2-1gbit --async-unshard

Options that are not listed go to the training program (runners/train.py), as those of runners/launch/multi_node.sh do.
"""

from __future__ import annotations

import argparse
import runpy
import signal
import sys
from pathlib import Path

if __package__ in (None, ""):
    runpy.run_path(str(Path(__file__).parents[1] / "by_path.py"))["join_package"]()

from runners.lab.hosts import MAX_HOSTS, Hosts, LabError, bits_per_second
from runners.lab.record import record
from tracekit.strategies import with_runner
from tracekit.training import ERROR_PREFIX


def _parse(argv: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """The lab's own options, and the others."""
    parser = argparse.ArgumentParser(
        prog="runners.lab",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--hosts", type=int, default=2, help="hosts, one rank on each")
    add("--rate", default="1gbit", help="what a host's link carries each way: 500mbit, 1gbit, …")
    add("--strategy", choices=with_runner(), default="fsdp2", help="how to shard")
    add("--out", type=Path, default=None, help="run folder; out/lab/<strategy>-<rate>-<hosts> if not given")
    args, others = parser.parse_known_args(argv)
    try:
        bits_per_second(args.rate)
    except ValueError as error:
        parser.error(f"--rate: {error}")
    if not 1 <= args.hosts <= MAX_HOSTS:
        parser.error(f"--hosts {args.hosts}: the lab holds 1 to {MAX_HOSTS}")
    args.out = args.out or Path("out/lab") / f"{args.strategy}-{args.rate}-{args.hosts}"
    return args, others


def _leave(number: int, _: object) -> None:
    raise SystemExit(128 + number)


def main(argv: list[str]) -> int:
    """Records. Returns 0 when done, 2 where no lab can be built or the run failed (one sentence on stderr)."""
    args, others = _parse(argv)
    signal.signal(signal.SIGTERM, _leave)
    try:
        with Hosts(args.hosts, args.rate) as hosts:
            record(hosts, args.strategy, args.out, others, on_line=lambda line: print(line, flush=True))
    except LabError as error:
        print(f"{ERROR_PREFIX}{error}", file=sys.stderr, flush=True)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
