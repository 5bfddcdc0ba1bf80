"""What the steps of the window did, watched from outside: forwards, which of them had a backward, and which reduced."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch


class MicroBatches:
    """Watches the outermost module while it is on.

    A forward whose output gets a gradient is a micro-batch; one without is an evaluation, or its result was not used.
    `synced` says whether the gradients of the micro-batch at hand are reduced, asked when its forward or its backward
    begins.
    """

    def __init__(
        self,
        module: torch.nn.Module | None,
        synced: Callable[[], bool] | None,
        synced_at: Literal["forward", "backward"],
    ) -> None:
        self._module, self._synced, self._synced_at = module, synced, synced_at
        self._handles: list[Any] = []
        self._forwards: list[dict[str, bool]] = []
        self._steps: list[dict[str, Any]] = []

    def turn_on(self) -> None:
        """Adds the hook; a second call changes nothing."""
        if self._module is not None and not self._handles:
            self._handles = [
                self._module.register_forward_pre_hook(self._before),
                self._module.register_forward_hook(self._after),
            ]

    def turn_off(self) -> None:
        """Removes the hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def end_step(self, step: int) -> None:
        """Notes what the step did, if it was watched."""
        if self._handles:
            trained = [one for one in self._forwards if one["backward"]]
            entry: dict[str, Any] = {"step": step, "micro_batches": len(trained)}
            entry["other_forwards"] = len(self._forwards) - len(trained)
            entry["synced"] = [one["synced"] for one in trained] if self._synced else None
            self._steps.append(entry)
        self._forwards.clear()

    def learned(self) -> dict[str, Any]:
        """`observed`, an entry a step; `micro_batches` and whether each was reduced, where all steps did the same."""
        if not self._steps:
            return {}
        learned: dict[str, Any] = {"observed": self._steps}
        counts = {step["micro_batches"] for step in self._steps}
        if len(counts) == 1 and counts != {0}:
            learned["micro_batches"] = counts.pop()
        return learned

    def _before(self, _: torch.nn.Module, __: Any) -> None:
        self._forwards.append({"backward": False, "synced": self._is_synced("forward")})

    def _after(self, _: torch.nn.Module, __: Any, output: Any) -> None:
        tensor = _with_gradient(output)
        if tensor is not None and self._forwards:
            forward = self._forwards[-1]

            def begins(_: torch.Tensor) -> None:
                if not forward["backward"]:
                    forward["backward"] = True
                    if self._synced_at == "backward":
                        forward["synced"] = self._is_synced("backward")

            tensor.register_hook(begins)

    def _is_synced(self, when: str) -> bool:
        return self._synced() if self._synced is not None and self._synced_at == when else True


def sync_option(steps: Sequence[Mapping[str, Any]]) -> bool | None:
    """Whether every micro-batch was reduced (True) or the last one only (False); None where neither holds."""
    patterns = [step["synced"] for step in steps]
    if not patterns or any(not one for one in patterns):
        return None
    if all(all(one) for one in patterns):
        return True
    return False if all(one[-1] and not any(one[:-1]) for one in patterns) else None


def _with_gradient(output: Any) -> torch.Tensor | None:
    """The first tensor of an output that a backward can begin or pass at."""
    if isinstance(output, torch.Tensor):
        return output if output.requires_grad else None
    values: Sequence[Any] = ()
    if isinstance(output, Mapping):
        values = list(output.values())
    elif isinstance(output, list | tuple):
        values = output
    elif hasattr(output, "__dict__"):
        values = list(vars(output).values())
    return next((found for value in values if (found := _with_gradient(value)) is not None), None)
