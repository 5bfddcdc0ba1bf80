"""What FSDP2 of torch 2.6 lacks on a CPU, so that its code can be recorded there; no collective is changed by it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import torch


def complete_fsdp2_on_cpu() -> None:
    """Adds it, once; nothing in torch 2.7 and later, where FSDP2 runs on a CPU by itself.

    - The CPU's streams, which do nothing, have no events (torch/cpu/__init__.py, `Stream`).
    - Copying a gathered unit into its parameters counts as a change of what backward needs: on a CPU, other than on a
      GPU, `split_with_sizes_copy` counts up the versions of its outputs (torch/distributed/fsdp/_fully_shard/
      _fsdp_collectives.py, `foreach_all_gather_copy_out`; later releases keep the versions there).
    """
    stream: Any = torch.cpu.Stream
    if hasattr(stream, "record_event"):
        return
    stream.record_event = lambda _, event=None: event or torch.cpu.Event()  # pyright: ignore[reportAttributeAccessIssue]
    stream.wait_event = lambda _, __: None
    # Registered by the import of torch.distributed.fsdp.
    operators: Any = torch.ops.fsdp
    operators.split_with_sizes_copy = _keeping_versions(operators.split_with_sizes_copy)


def _keeping_versions(copy: Callable[..., None]) -> Callable[..., None]:
    def keeping(source: torch.Tensor, sizes: Sequence[int], *, dim: int, out: list[torch.Tensor]) -> None:
        autograd: Any = torch.autograd
        # What later releases use there themselves.
        keep = autograd._unsafe_preserve_version_counter  # noqa: SLF001 - see above
        with ExitStack() as stack:
            for tensor in out:
                stack.enter_context(keep(tensor))
            copy(source, sizes, dim=dim, out=out)

    return keeping
