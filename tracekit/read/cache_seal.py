"""Seals of cache entries: made with a secret of the user, so that only what this user's tracekit wrote is believed.

The secret lies in the user's cache folder, readable by the user alone. Where it cannot be kept there, each process has
its own, and no entry outlives it. ``TRACEKIT_TRUST_CACHE=1`` believes entries of others, as in a folder that a team
shares; edited ones are still noticed, by their digests.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO
from uuid import uuid4

TRUST = "TRACEKIT_TRUST_CACHE"
_SECRET_BYTES = 32


class Digested:
    """A stream to write to that knows the digest of what was written."""

    def __init__(self, stream: IO[bytes]) -> None:
        """Pass everything on to the stream."""
        self._stream = stream
        self._digest = hashlib.blake2b(digest_size=32)

    def write(self, data: bytes) -> int:
        """Write, and count into the digest."""
        self._digest.update(data)
        return self._stream.write(data)

    def flush(self) -> None:
        """Pass it on."""
        self._stream.flush()

    def digest(self) -> str:
        """Return the digest of all that was written."""
        return self._digest.hexdigest()


def digest(data: bytes) -> str:
    """Return the digest of a member of an entry."""
    return hashlib.blake2b(data, digest_size=32).hexdigest()


def seal(text: bytes) -> str:
    """Return the seal of a text: one that nobody without the secret can make."""
    return hashlib.blake2b(text, key=_secret(_secret_path()), digest_size=32).hexdigest()


def is_ours(text: bytes, its_seal: str) -> bool:
    """Return whether this user sealed the text, or trusts whoever did."""
    return os.environ.get(TRUST) == "1" or hmac.compare_digest(seal(text), its_seal)


def _secret_path() -> Path | None:
    from platformdirs import user_cache_path

    with suppress(OSError, RuntimeError):
        return user_cache_path("tracekit", appauthor=False) / "secret"
    return None


@cache
def _secret(path: Path | None) -> bytes:
    fresh = secrets.token_bytes(_SECRET_BYTES)
    with suppress(OSError):
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_name(f"{path.name}.{uuid4().hex}")
            partial.touch(0o600)
            try:
                partial.write_bytes(fresh)
                with suppress(FileExistsError):
                    # Of several processes that make it at once, the first one's stays.
                    os.link(partial, path)
            finally:
                partial.unlink()
    with suppress(OSError):
        if path is not None and path.stat().st_uid == os.geteuid() and len(kept := path.read_bytes()) == _SECRET_BYTES:
            return kept
    return fresh
