"""Seeded damage to bytes. What was left alone is known from the way it was done, not found out afterwards."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

TOKENS = [
    b"inf", b"-inf", b"nan", b"NaN", b"Infinity", b"-Infinity", b"null", b"true", b"1e999", b"-1e-999", b"1" * 25,
    b"9" * 400, b"-", b".", b"e", b"0", b'"', b'""', b"\\", b"\\u", b"\\ud800", b"\\x41", b"\\q", b"'", b"/* */",
    b"\n", b"\x00", b"\x01\x1f", b"\x7f", b"\xff\xfe", b"\xc3", b"\xe2\x82", b"\xef\xbb\xbf", b" ",
    b"[", b"]", b"{", b"}", b"}}", b"]}", b",", b",,", b":", b"[" * 3000, b'{"a":' * 2000,
    b'"traceEvents": [', b'"ph": "X"', b'"ts": 7', b'"name": "twice"', b'"args": []', b'"dur": "soon"', b'{"ph": "X"}',
]  # fmt: skip


class Piece(NamedTuple):
    """`data`, which is original bytes from `start` on, or new ones where `start` is null."""

    data: bytes
    start: int | None


def mutate(rng: random.Random, data: bytes) -> list[Piece]:
    """Return the data after one to three strokes of damage, in pieces."""
    pieces = [Piece(data, 0)]
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        stroke = rng.choice(_STROKES)
        pieces = stroke(rng, pieces)
    return pieces


def joined(pieces: list[Piece]) -> bytes:
    """Return the damaged bytes."""
    return b"".join(p.data for p in pieces)


def intact(pieces: list[Piece], spans: list[tuple[int, int]]) -> list[int]:
    """Return how often each of these spans of the original is still there in one stretch with its neighbouring bytes.

    The neighbours, up to the brackets of the events before and after, count: without the comma between two events it
    is a matter of taste where one begins.
    """
    counts = []
    for n, (start, end) in enumerate(spans):
        before = spans[n - 1][1] - 1 if n else start - 1
        after = spans[n + 1][0] + 1 if n + 1 < len(spans) else end + 1
        counts.append(sum(_holds(p, before, after) for p in pieces))
    return counts


def _holds(piece: Piece, start: int, end: int) -> bool:
    return piece.start is not None and piece.start <= start and end <= piece.start + len(piece.data)


def _split(pieces: list[Piece], at: int) -> tuple[list[Piece], list[Piece]]:
    """Cut the pieces at a byte of the joined data."""
    left: list[Piece] = []
    for number, piece in enumerate(pieces):
        if at < len(piece.data):
            rest = Piece(piece.data[at:], None if piece.start is None else piece.start + at)
            return [*left, Piece(piece.data[:at], piece.start)], [rest, *pieces[number + 1 :]]
        left.append(piece)
        at -= len(piece.data)
    return left, []


def _range(rng: random.Random, pieces: list[Piece]) -> tuple[list[Piece], list[Piece], list[Piece]]:
    """Before, inside and after a range of random place and length, mostly short."""
    size = sum(len(p.data) for p in pieces)
    start = rng.randrange(size + 1)
    length = rng.choice((1, 1, 2, rng.randrange(1, 16), rng.randrange(1, 400), rng.randrange(1, size + 2)))
    before, rest = _split(pieces, start)
    inside, after = _split(rest, length)
    return before, inside, after


def _flip(rng: random.Random, pieces: list[Piece]) -> list[Piece]:
    before, rest = _split(pieces, rng.randrange(max(1, sum(len(p.data) for p in pieces))))
    inside, after = _split(rest, 1)
    return [*before, Piece(bytes(b ^ (1 << rng.randrange(8)) for b in joined(inside)), None), *after]


def _scramble(rng: random.Random, pieces: list[Piece]) -> list[Piece]:
    before, inside, after = _range(rng, pieces)
    return [*before, Piece(rng.randbytes(min(64, len(joined(inside)))), None), *after]


def _insert(rng: random.Random, pieces: list[Piece]) -> list[Piece]:
    before, inside, after = _range(rng, pieces)
    return [*before, Piece(rng.randbytes(rng.randrange(1, 9)), None), *inside, *after]


def _delete(rng: random.Random, pieces: list[Piece]) -> list[Piece]:
    before, _, after = _range(rng, pieces)
    return [*before, *after]


def _duplicate(rng: random.Random, pieces: list[Piece]) -> list[Piece]:
    before, inside, after = _range(rng, pieces)
    return [*before, *inside, *inside, *after]


def _truncate(rng: random.Random, pieces: list[Piece]) -> list[Piece]:
    return _split(pieces, rng.randrange(sum(len(p.data) for p in pieces) + 1))[0]


def _behead(rng: random.Random, pieces: list[Piece]) -> list[Piece]:
    return _split(pieces, rng.randrange(sum(len(p.data) for p in pieces) + 1))[1]


def _swap_token(rng: random.Random, pieces: list[Piece]) -> list[Piece]:
    """Put a token in the place of one value, key or punctuation."""
    before, rest = _split(pieces, rng.randrange(sum(len(p.data) for p in pieces) + 1))
    text = joined(rest)
    skip = next((n for n, b in enumerate(text[:200]) if b in b' ,:"[{'), 0) + rng.randrange(2)
    length = next((n for n, b in enumerate(text[skip : skip + 200]) if b in b' ,:"]}\n'), 0)
    kept, rest = _split(rest, skip)
    return [*before, *kept, Piece(rng.choice(TOKENS), None), *_split(rest, length * rng.randrange(2))[1]]


def _insert_token(rng: random.Random, pieces: list[Piece]) -> list[Piece]:
    before, after = _split(pieces, rng.randrange(sum(len(p.data) for p in pieces) + 1))
    return [*before, Piece(rng.choice(TOKENS), None), *after]


def _second_key(rng: random.Random, pieces: list[Piece]) -> list[Piece]:
    """Write a key of an event once more, at its start."""
    before, rest = _split(pieces, rng.randrange(sum(len(p.data) for p in pieces) + 1))
    place = joined(rest).find(b'{"')
    if place < 0:
        return pieces
    kept, rest = _split(rest, place + 1)
    key = rng.choice(
        (b'"ts": 1,', b'"dur": -3,', b'"name": "first",', b'"ph": "Q",', b'"args": {"stream": 1},', b'"args": 3,')
    )
    return [*before, *kept, Piece(key, None), *rest]


_Stroke = Callable[[random.Random, list[Piece]], list[Piece]]
_STROKES: list[_Stroke] = [
    _flip, _flip, _scramble, _insert, _delete, _delete, _duplicate, _truncate, _behead,
    _swap_token, _swap_token, _swap_token, _insert_token, _insert_token, _second_key,
]  # fmt: skip
