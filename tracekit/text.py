"""Text from files, escaped and cut so that it can be printed: names in traces and manifests are not trusted."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_LONGEST_NAME, _LONGEST_KERNEL = 60, 36
_NAMESPACE = re.compile(r"\b\w+::")
# Paths and sentences may be longer, but not without end.
_LONGEST_LINE = 4_000


def plain(text: str) -> str:
    """Return the name, unprintable characters escaped, cut to a readable length."""
    return _printable(text, _LONGEST_NAME)


def plain_line(text: str) -> str:
    """Return a path or sentence, escaped likewise, as one line of at most some thousand characters."""
    return _printable(text, _LONGEST_LINE)


def kernel_name(name: str | None) -> str:
    """Return the name of a kernel as people call it: without return type and namespaces, cut to fit beside a bar."""
    text = (name or "unnamed").removeprefix("void ").replace("(anonymous namespace)::", "")
    # Namespaces stand before the name, and in arguments of templates as well.
    return _printable(_NAMESPACE.sub("", text), _LONGEST_KERNEL)


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return `did you mean X? (there are A, B, C)`, or the list alone where no name is close."""
    from difflib import get_close_matches

    names = list(known)
    near = get_close_matches(name, names, n=1)
    listed = f"there are {', '.join(names)}"
    return f"did you mean {near[0]}? ({listed})" if near else listed


def _printable(text: str, longest: int) -> str:
    if text.isprintable() and len(text) <= longest:
        return text
    # Controls, marks that reverse or hide text, halves of surrogate pairs: all that Unicode does not call printable.
    spelt = "".join(c if c.isprintable() else _spelt(c) for c in text[: longest + 1])
    return spelt if len(spelt) <= longest else spelt[: longest - 1] + "…"


def _spelt(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
