"""Files that are no Kineto traces, known by their first bytes, their name or their keys, with what can be done."""

from __future__ import annotations

import re

# First bytes, once gzip or zstd around them has been undone.
_BY_CONTENT = {
    b"\x1f\x8b": "gzip inside a compressed file (gunzip undoes one layer)",
    b"\x28\xb5\x2f\xfd": "zstd inside a compressed file (zstd -d undoes one layer)",
    b"BZh": "bzip2 (bunzip2 undoes it)",
    b"\xfd7zXZ\0": "xz (unxz undoes it)",
    b"7z\xbc\xaf\x27\x1c": "a 7z archive (7z x takes the trace out)",
    b"Rar!": "a RAR archive (unrar x takes the trace out)",
    b"PK\x03\x04": "a zip archive (unzip takes the trace out)",
    b"SQLite format 3\0": "an SQLite database, as nsys exports one (record with torch.profiler)",
    b"version https://git-lfs": "a pointer of Git LFS (git lfs pull gets the file)",
    b"PAR1": "Parquet",
    b"<": "HTML or XML",
}
_TAR_MAGIC, _TAR_MAGIC_AT = b"ustar", 257
_PICKLE = re.compile(rb"\x80[\x02-\x05]")

_BY_NAME = {
    re.compile(pattern, re.IGNORECASE): what
    for pattern, what in {
        r"\.(nsys-rep|qdrep|qdstrm)$": "an nsys report (record with torch.profiler)",
        r"\.sqlite3?$": "an SQLite database, as nsys exports one (record with torch.profiler)",
        r"\.ncu-rep$": "an ncu report (record with torch.profiler)",
        r"\.et$": "a Chakra execution trace (export the Kineto trace beside it)",
        r"(nccl_trace|flight_?recorder|fr_trace)[^/]*$": "a dump of the flight recorder (not a trace of time)",
        r"\.bz2$": "bzip2 (bunzip2 undoes it)",
        r"\.xz$": "xz (unxz undoes it)",
        r"\.7z$": "a 7z archive (7z x takes the trace out)",
        r"\.rar$": "a RAR archive (unrar x takes the trace out)",
        r"\.(pb|pftrace|perfetto-trace)$": "a binary trace of Perfetto or XLA (export JSON)",
    }.items()
}
_BY_KEYS = {
    re.compile(rb'"schema"\s*:\s*"[^"]*chakra', re.IGNORECASE): "a Chakra execution trace",
    re.compile(rb'"nodes"\s*:\s*\[.*"(?:ctrl_deps|rf_id)"\s*:', re.DOTALL): "an execution trace of PyTorch (Chakra)",
    re.compile(rb'"entries"\s*:\s*\[.*"(?:pg_id|collective_seq_id)"\s*:', re.DOTALL): "a dump of the flight recorder",
}
_KEYS_WITHIN = 2**16


def is_pickle(head: bytes) -> bool:
    """Return whether a file begins as a pickle does."""
    return bool(_PICKLE.match(head))


def is_tar(head: bytes) -> bool:
    """Return whether a file begins as a tar archive does."""
    return head[_TAR_MAGIC_AT : _TAR_MAGIC_AT + len(_TAR_MAGIC)] == _TAR_MAGIC


def by_content(text: bytes) -> str | None:
    """Return the format that the first bytes are known to be of, or None."""
    if b"\0" in text[:8] and text[:8].translate(None, b"\0").lstrip(b"\xff\xfe")[:1] in (b"{", b"["):
        return "JSON in UTF-16 or UTF-32 (iconv -t UTF-8 makes UTF-8 of it)"
    if is_tar(text):
        return "a tar archive under another name (call it .tar or .tar.gz and it is read)"
    return next((what for magic, what in _BY_CONTENT.items() if text.startswith(magic)), None)


def by_name(name: str) -> str | None:
    """Return the format that a file's name is known to be of, or None."""
    return next((what for pattern, what in _BY_NAME.items() if pattern.search(name)), None)


def by_keys(text: bytes) -> str | None:
    """Return the format that has such keys in its JSON, or None."""
    return next((what for pattern, what in _BY_KEYS.items() if pattern.search(text[:_KEYS_WITHIN])), None)
