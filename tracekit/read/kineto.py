"""Whether complete events are those of a Kineto trace: other programs write the same JSON."""

from __future__ import annotations

import re
from pathlib import Path

from tracekit.errors import InputError
from tracekit.read.decoding.columns import Columns
from tracekit.read.decoding.spellings import COMM_PREFIXES

# Categories of every torch and accelerator since 2021; runtimes and drivers are called by their own names.
_CATEGORY = re.compile(
    r"cpu_op|operator|kernel|concurrent_kernel|(gpu_)?mem(cpy|set)|(gpu_|cpu_)?user_annotation|python_function"
    r"|cpu_instant_event|overhead|ac2g|async_(gpu|cpu|npu)|fwdbwd|forward_backward|enqueue|dequeue|trace"
    r"|\w*_?(runtime|driver)|\w*(_op|_kernel|_ccp_events|_insight|_activity|_counters?)|collective_comm|cuda_\w+|(x|h|m)pu_\w+"
    r"|(?:hpu|npu|mtia|glow|privateuse1)\w*",
    re.IGNORECASE,
)
_NAME = re.compile(r"ProfilerStep#?|Optimizer\.|aten::|c10d::|torch|autograd::|nn\.Module|" + "|".join(COMM_PREFIXES))
_SHOWN = 5


def refuse_other(columns: Columns, path: Path) -> None:
    """Do nothing where any event has a category or name that torch.profiler writes.

    Raises:
        InputError: none has, naming the categories and names that were seen.
    """
    if columns.frames.height or columns.memory.height or columns.device.height or columns.comm.height:
        return
    categories = columns.events["cat"].unique(maintain_order=True).drop_nulls().to_list()
    if any(_CATEGORY.fullmatch(category) for category in categories):
        return
    names = columns.events["name"].unique(maintain_order=True).drop_nulls().to_list()
    if any(_NAME.match(name) for name in names):
        return
    seen = f"the categories {_listed(categories)}" if categories else "no categories"
    raise InputError(
        f"{path}: not a Kineto trace (its {columns.events.height} events have {seen} and names such as "
        f"{_listed(names) or 'none'}, and no step mark or operator); tracekit reads what torch.profiler exports"
    )


def _listed(texts: list[str]) -> str:
    more = ", …" if len(texts) > _SHOWN else ""
    return ", ".join(repr(text[:60]) for text in texts[:_SHOWN]) + more
