"""tracekit: what a training step sent, what of it was hidden, and where the memory went.

>>> import tracekit
>>> run = tracekit.open("out/demo/fsdp2")  # doctest: +SKIP
>>> run.collectives  # doctest: +SKIP

Names are loaded when first used, so that `import tracekit.record` stays free of anything beyond torch.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # typing's own costs as much as Python's start
if TYPE_CHECKING:
    from tracekit import errors, theory
    from tracekit.model.run import Run
    from tracekit.model.run import open_run as open  # noqa: A004 - `tracekit.open(path)` is the public spelling
    from tracekit.table_registry import tables

__version__ = "0.1.0"

__all__ = ["Run", "__version__", "errors", "open", "tables", "theory"]

_HOMES = {
    "Run": ("tracekit.model.run", "Run"),
    "open": ("tracekit.model.run", "open_run"),
    "tables": ("tracekit.table_registry", "tables"),
    "errors": ("tracekit.errors", None),
    "theory": ("tracekit.theory", None),
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'tracekit' has no attribute {name!r}")
    module, attribute = _HOMES[name]
    home = import_module(module)
    return home if attribute is None else getattr(home, attribute)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
