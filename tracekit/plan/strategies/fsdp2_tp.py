"""FSDP2 over matrices that tensor parallelism has split, and the all-reduces of activations that splitting costs.

Source: torch 2.13, torch/distributed/tensor/parallel/style.py (`ColwiseParallel`, `RowwiseParallel`), and call by call
from torch's own code (tracekit.plan.proof).

- A matrix split by columns lies as Shard(0) on tp, one split by rows as Shard(1); the shard axis gathers and reduces
  the rank's own part of it. Norms, embeddings and output stay whole.
- Each matrix split by rows all-reduces its output (batch × seq × dim) in forward; each one split by columns
  all-reduces the gradient of its input in backward, where that has one: where anything before it is trained. Both
  travel in the type that the model computes in.
- Checkpointing runs forward again in backward, and stops once all that backward needs is there: before the last
  all-reduce of the block.
"""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING

from tracekit.plan import shares as named
from tracekit.plan.inputs import TENSOR, axis_size, checkpointing, gather_dtype, option, own_parameters, unit_parameters
from tracekit.plan.schema import Call
from tracekit.plan.strategies import fsdp2

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.manifest import Manifest, Parameter
    from tracekit.plan.holding import Holding
    from tracekit.plan.schema import Term

# How the runner splits a block, by the end of a weight's name.
COLUMNS = ("attention.wq", "attention.wk", "attention.wv", "feed_forward.w1", "feed_forward.w3")
ROWS = ("attention.wo", "feed_forward.w2")


def collectives(manifest: Manifest) -> list[Call]:
    """Expected collectives of one step, in the order of issue."""
    if axis_size(manifest, TENSOR) == 1:
        # A mesh of one splits nothing, but what lies on it has a norm of its own.
        return fsdp2.collectives(manifest, apart=_is_split)
    units = unit_parameters(manifest, fsdp2.managed(manifest))

    def among(layer: str, phase: str) -> list[Call]:
        parameters = units[layer]
        if phase == "forward":
            return _all_reduces(manifest, layer, phase, parameters, ROWS)
        again = _recomputed(manifest, layer, parameters)
        asked = [parameter for parameter in parameters if _is_asked(manifest, parameter)]
        return again + _all_reduces(manifest, layer, phase, asked, COLUMNS)

    return fsdp2.collectives(
        manifest, local=lambda parameter: local_shape(manifest, parameter), among=among, apart=_is_split
    )


def absent(manifest: Manifest) -> Iterator[Term]:
    """Parts of the closed form, 3Ψ, that these calls leave out: those of FSDP2, and the other tp ranks'."""
    return fsdp2.absent(manifest, local=lambda parameter: local_shape(manifest, parameter))


def memory(manifest: Manifest, rank: int) -> Holding:
    """Bytes of a rank: as FSDP2, of what tensor parallelism leaves to it."""
    place = rank // axis_size(manifest, TENSOR)
    return fsdp2.memory(manifest, place, local=lambda parameter: local_shape(manifest, parameter))


def split_dim(parameter: Parameter) -> int | None:
    """The dim that tp splits: 0 for columns, 1 for rows, None for what stays whole."""
    module = parameter.name.rpartition(".")[0]
    if module.endswith(COLUMNS):
        return 0
    return 1 if module.endswith(ROWS) else None


def _is_split(parameter: Parameter) -> bool:
    return split_dim(parameter) is not None


def local_shape(manifest: Manifest, parameter: Parameter) -> list[int]:
    """The shape of the first tp rank's part of a parameter."""
    dim, parts = split_dim(parameter), axis_size(manifest, TENSOR)
    if dim is None:
        return parameter.shape
    return [-(-size // parts) if place == dim else size for place, size in enumerate(parameter.shape)]


def _is_asked(manifest: Manifest, parameter: Parameter) -> bool:
    """True where the input of the parameter's module, which it shares with its neighbours, needs a gradient."""
    neighbours = f"{parameter.name.rpartition('.')[0].rpartition('.')[0]}."
    before = takewhile(lambda other: not other.name.startswith(neighbours), own_parameters(manifest))
    return any(other.requires_grad for other in before)


def _recomputed(manifest: Manifest, layer: str, parameters: list[Parameter]) -> list[Call]:
    if checkpointing(manifest) == "none":
        return []
    again = _all_reduces(manifest, layer, "backward", parameters, ROWS)[:-1]
    return [call._replace(term=named.RECOMPUTED) for call in again]


def _all_reduces(
    manifest: Manifest, layer: str, phase: str, parameters: list[Parameter], modules: tuple[str, ...]
) -> list[Call]:
    """One all-reduce of activations for each of the matrices; the outputs of rows are as wide as their dim 0."""
    tokens = int(option(manifest, "batch_size", default=1)) * int(option(manifest, "seq_len", default=1))
    ranks = axis_size(manifest, TENSOR)
    calls: list[Call] = []
    for parameter in parameters:
        if parameter.name.rpartition(".")[0].endswith(modules):
            numel = tokens * parameter.shape[0 if modules is ROWS else 1]
            dtype = gather_dtype(manifest, parameter)
            place = (layer, phase, 0, "all_reduce", TENSOR, ranks, dtype)
            calls.append(Call(*place, numel, numel, term=named.ACTIVATIONS))
    return calls
