"""Damage small traces in thousands of ways and check what the reader makes of each: ``python tests/fuzz/fuzz.py``.

Environment: N mutants (20000), SEED (0). Mutant number n of a seed is always the same; a failure names both, and
``ONLY=n`` runs that one alone and leaves the file in fuzz-<seed>-<n>.
"""

from __future__ import annotations

import gzip
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

import zstandard
from fuzz_fixtures import Fixture, fixtures
from fuzz_mutations import Piece, intact, joined, mutate
from fuzz_oracle import Outcome, complaints

import tracekit
from tracekit.errors import TracekitError
from tracekit.read.decode import decode
from tracekit.read.decoding import batches, content

SECONDS_A_MUTANT = 10
HEADER = b'"traceEvents"'
EVERY_NTH_TO_TABLES = 25
MAX_GROWTH_BYTES = 700 * 2**20


class Mutant(NamedTuple):
    """`data`: the file. `text`: its text as far as zlib or zstd come. `must_keep`: the text of every intact event.

    `of_two`: another file follows in it, or a part of itself that holds the beginning or end of the file.
    """

    data: bytes
    text: bytes
    must_keep: list[bytes]
    packed_damage: bool
    block_bytes: int
    of_two: bool


@cache
def _all() -> list[Fixture]:
    return fixtures()


def make(seed: int, number: int) -> Mutant:
    """Return one mutant, the same for the same numbers."""
    rng = random.Random(f"{seed}/{number}")
    fixture = rng.choice(_all())
    pack = rng.choice((None, None, "gz", "zstd"))
    block = rng.choice((*5 * [batches.BATCH_BYTES], 700, 4096))
    if pack is not None and rng.random() < 0.6:
        return _packed(rng, fixture, pack, block)
    pieces = mutate(rng, fixture.text)
    kept = _kept(fixture, pieces)
    of_two = _is_of_two(joined(pieces), fixture)
    if rng.random() < 0.1:
        # Two files written into one: the end of another one follows.
        other = rng.choice(_all())
        cut = rng.choice((0, rng.randrange(len(other.text))))
        more = [Piece(other.text[cut:], cut)]
        pieces, kept, of_two = [*pieces, *more], [*kept, *_kept(other, more)], True
    text = joined(pieces)
    return Mutant(_pack(text, pack), text, kept, packed_damage=False, block_bytes=block, of_two=of_two)


def _kept(fixture: Fixture, pieces: list[Piece]) -> list[bytes]:
    counts = intact(pieces, fixture.spans)
    return [fixture.text[a:b] for (a, b), count in zip(fixture.spans, counts, strict=True) for _ in range(count)]


def _packed(rng: random.Random, fixture: Fixture, pack: str, block: int) -> Mutant:
    """Damage of the compressed bytes: what other decompressors bring out before it must be kept."""
    half = rng.randrange(len(fixture.text))
    parts = [_pack(part, pack) for part in (fixture.text[:half], fixture.text[half:])]
    data = joined(mutate(rng, b"".join(parts)))
    text = _unpack(data, pack)
    same = next(
        (n for n, (a, b) in enumerate(zip(text, fixture.text, strict=False)) if a != b),
        min(len(text), len(fixture.text)),
    )
    kept = [fixture.text[a:b] for a, b in fixture.spans if b < same]
    of_two = _is_of_two(text, fixture)
    return Mutant(data, text, kept, packed_damage=True, block_bytes=block, of_two=of_two)


def _is_of_two(text: bytes, fixture: Fixture) -> bool:
    return text.count(HEADER) > 1 or text.count(fixture.text[-12:]) > 1


def _pack(text: bytes, pack: str | None) -> bytes:
    if pack is None:
        return text
    return (
        gzip.compress(text, 6, mtime=0)
        if pack == "gz"
        else zstandard.ZstdCompressor(write_checksum=True).compress(text)
    )


def _unpack(data: bytes, pack: str) -> bytes:
    """Return the text before the first damage, with zlib and zstandard fed byte by byte; later members too."""
    text = bytearray()
    while data:
        machine = zlib.decompressobj(wbits=31) if pack == "gz" else zstandard.ZstdDecompressor().decompressobj()
        used = 0
        try:
            for used in range(1, len(data) + 1):
                text += machine.decompress(data[used - 1 : used])
                if machine.eof:
                    break
        except (zlib.error, zstandard.ZstdError):
            return bytes(text)
        data = data[used:]
    return bytes(text)


@contextmanager
def _alarm(seconds: int) -> Iterator[None]:
    def ring(_signal: int, _frame: object) -> None:
        raise TimeoutError(f"more than {seconds} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def read(path: Path) -> Outcome:
    """Read one file and return what came of it, errors that are no refusal being raised."""
    try:
        decoded = decode(path)
    except TracekitError as error:
        return Outcome([], [], str(error))
    events = decoded.columns.merged()
    base = decoded.metadata.base_ns or 0
    times = [None if t is None else t - base for t in events["ts_ns"]]
    rows = list(zip(events["ph"], events["name"], times, events["dur_ns"], strict=True))
    return Outcome(rows, [f.what for f in decoded.findings], None, base)


def _tables(path: Path) -> None:
    with suppress(TracekitError):
        run = tracekit.open(path)
        for table in (run.ranks, run.steps, run.work, run.collectives, run.allocations, run.repairs):
            assert table.width


def check(seed: int, number: int, folder: Path) -> list[str]:
    """Return the complaints about one mutant."""
    mutant = make(seed, number)
    path = folder / "rank0.json"
    path.write_bytes(mutant.data)
    saved = content.BLOCK_BYTES, batches.BATCH_BYTES, batches._SEARCH_BYTES
    content.BLOCK_BYTES, batches._SEARCH_BYTES = (min(mutant.block_bytes, saved[n]) for n in (0, 2))
    batches.BATCH_BYTES = mutant.block_bytes
    try:
        with _alarm(SECONDS_A_MUTANT):
            outcome = read(path)
            if number % EVERY_NTH_TO_TABLES == 0:
                _tables(path)
    except Exception:  # noqa: BLE001 - whatever comes out is the finding
        return [traceback.format_exc(limit=-4)]
    finally:
        content.BLOCK_BYTES, batches.BATCH_BYTES, batches._SEARCH_BYTES = saved
    refused_as_two = mutant.of_two and "several ranks wrote this file" in (outcome.refusal or "")
    return complaints(mutant.text, [] if refused_as_two else mutant.must_keep, outcome)


def run(seed: int, numbers: range) -> list[str]:
    """Check mutants and return what failed; the growth of memory over all of them is bounded too."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    failed: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for number in numbers:
            failed += [f"SEED={seed} ONLY={number}: {complaint}" for complaint in check(seed, number, Path(folder))]
    grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    if grown > MAX_GROWTH_BYTES:
        failed.append(f"SEED={seed}: memory grew by {grown} bytes over {len(numbers)} mutants")
    return failed


def main() -> int:
    """Run as the environment says, print failures and a count."""
    seed, only = int(os.environ.get("SEED", "0")), os.environ.get("ONLY")
    numbers = range(int(os.environ.get("N", "20000"))) if only is None else range(int(only), int(only) + 1)
    if only is not None:
        Path(f"fuzz-{seed}-{only}").write_bytes(make(seed, int(only)).data)
    start = time.monotonic()
    failed = run(seed, numbers)
    print("\n".join(failed))
    print(f"{len(numbers)} mutants of seed {seed} in {time.monotonic() - start:.0f} s, {len(failed)} complaints")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
