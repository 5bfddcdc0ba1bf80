"""The bytes of a trace file, decompressed by what they are and not by how the file is called."""

from __future__ import annotations

from pathlib import Path

from tracekit.errors import InputError

GZIP_MAGIC = b"\x1f\x8b"


def read_content(path: Path) -> bytes:
    """Return the JSON text of a trace file, gzip undone where the first two bytes say so.

    Raises:
        InputError: the file cannot be read, is empty, or its gzip data is damaged.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); check the path and its permissions") from None
    if data[:2] == GZIP_MAGIC:
        data = _gunzip(path, data)
    if not data.strip():
        raise InputError(f"{path}: the file is empty; was the profiler stopped before it wrote the trace?")
    return data


def _gunzip(path: Path, data: bytes) -> bytes:
    import zlib

    from isal import igzip

    try:
        return igzip.decompress(data)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise InputError(
            f"{path}: its gzip data ends early or is damaged ({error}); copy the file again or record the run again"
        ) from None
