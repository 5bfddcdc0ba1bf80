"""A file that is not a trace is named by the format of its first bytes."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from pathlib import Path

import pytest
import zstandard
from kineto import COMMON, document

import tracekit
from tracekit.errors import InputError

TEXT = json.dumps(document(COMMON))
DATA = TEXT.encode()


@pytest.mark.parametrize(
    ("content", "look"),
    [
        (TEXT.encode("utf-16"), "JSON in UTF-16"),
        (TEXT.encode("utf-16-le"), "JSON in UTF-16"),
        (TEXT.encode("utf-16-be"), "JSON in UTF-16"),
        (TEXT.encode("utf-32"), "JSON in UTF-16 or UTF-32"),
        (gzip.compress(gzip.compress(DATA)), "gzip inside a compressed file"),
        (zstandard.compress(gzip.compress(DATA)), "gzip inside a compressed file"),
        (gzip.compress(zstandard.compress(DATA)), "zstd inside a compressed file"),
        (bz2.compress(DATA), "bzip2"),
        (lzma.compress(DATA), "xz"),
        (b"PK\x03\x04rest", "a zip archive"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "a pointer of Git LFS"),
        (b"<!DOCTYPE html><html></html>", "HTML or XML"),
    ],
)
def test_other_formats_are_named(content: bytes, look: str, tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=f"rank0.json: not JSON text but what looks like {look}"):
        tracekit.open(path)


def test_text_without_a_mark_is_not_guessed_at(tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    path.write_bytes(b"\0\0\0\0hello")
    with pytest.raises(InputError, match="neither JSON nor a damaged trace"):
        tracekit.open(path)
