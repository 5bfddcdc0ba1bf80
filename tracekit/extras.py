"""Extras of the installation; what is missing is one sentence that names the extra to install."""

from __future__ import annotations

from importlib.util import find_spec

from tracekit.errors import UsageError

DISTRIBUTION = "zero-tracekit"

#: The module that an extra of pyproject.toml brings, and what people call it.
EXTRAS = {
    "hta": ("hta", "HolisticTraceAnalysis (traceinsight)"),
    "record": ("torch", "torch"),
    "deepspeed": ("deepspeed", "DeepSpeed"),
    "viewer": ("viztracer", "viztracer"),
}


class MissingExtraError(UsageError):
    """An optional package is not installed; the message names what needs it and the extra that brings it."""


def installed(extra: str) -> bool:
    """True where the extra's module can be imported; it is looked for, not imported."""
    spec = find_spec(EXTRAS[extra][0])
    # A folder of that name in the working folder is found too, without a loader of code.
    return spec is not None and spec.origin is not None


def require(extra: str, what: str) -> None:
    """Does nothing where the extra is installed; `what` begins the sentence otherwise ("recording").

    Raises:
        MissingExtraError: the extra is not installed.
    """
    if not installed(extra):
        raise missing(extra, what)


def missing(extra: str, what: str, instead: str = "") -> MissingExtraError:
    """The error that says `what` needs the extra; `instead` tells another way, if there is one."""
    name = EXTRAS[extra][1]
    otherwise = f", or {instead}" if instead else ""
    return MissingExtraError(
        f"{what} needs {name}, which is not installed: pip install '{DISTRIBUTION}[{extra}]'{otherwise}"
    )
