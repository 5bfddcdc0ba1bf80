"""torch.compile for the runners, with what the compiler made: graphs, graph breaks, collectives inside the graphs."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch

from runners.models import Decoder
from tracekit.record import clean_name

Inner = Callable[..., Any]
# Functional collectives by their kinds; each is a node of the graph that AOTAutograd hands to the backend.
KINDS = {
    "all_gather_into_tensor": "all_gather",
    "all_gather_into_tensor_out": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "all_reduce": "all_reduce",
    "all_to_all_single": "all_to_all",
    "broadcast": "broadcast",
}
# Casts, waits and views between a reduction and the graph's output.
MAX_STEPS = 8


class Compiler:
    """Compiles what `--compile` asks for, and remembers every graph that AOTAutograd made."""

    def __init__(self, args: argparse.Namespace, device: torch.device, *, whole: bool = False) -> None:
        self.scope: str | None = "model" if whole else args.compile
        self._whole = whole
        self._backend = args.compile_backend or ("inductor" if device.type == "cuda" else "aot_eager")
        self.graphs: list[list[dict[str, Any]]] = []

    def compile_blocks(self, model: Decoder) -> None:
        """Compiles every block in place if blocks are asked for; before wrapping, as hooks of wrappers break graphs."""
        if self.scope == "blocks":
            for block in model.layers:
                block.compile(backend=self._counting_backend)

    def compile_model(self, model: torch.nn.Module) -> Callable[..., Any]:
        """The callable to use for the wrapped model: itself, or its compiled form if the whole model is asked for."""
        if self.scope != "model":
            return model
        return torch.compile(model, backend=self._counting_backend, fullgraph=self._whole)

    def learned(self) -> dict[str, Any]:
        """The manifest's `compile`: None without compiling, else counts over all graphs compiled so far."""
        if self.scope is None:
            return {"compile": None}
        # Its module is not among torch's names until something compiles.
        from torch._dynamo.utils import counters

        breaks: dict[str, int] = {}
        for reason, count in counters["graph_break"].items():
            # The first line names the kind of break; what follows are places on this machine and advice.
            title = str(reason).strip().partition("\n")[0].strip()
            breaks[title] = breaks.get(title, 0) + int(count)
        return {
            "compile": {
                "scope": self.scope,
                "backend": self._backend,
                "fullgraph": self._whole,
                "graphs": len(self.graphs),
                "graph_breaks": sum(breaks.values()),
                "graph_break_reasons": breaks,
                "collectives_in_graph": [calls for graph in self.graphs for calls in graph],
            }
        }

    def _counting_backend(self, graph: Any, inputs: Any, **options: Any) -> Any:
        names = [_parameter_name(node) for node in graph.graph.nodes if node.op == "placeholder"]

        def note(graph: torch.fx.GraphModule, phase: str) -> None:
            index = len(self.graphs)
            found = [_collective(node, names) for node in graph.graph.nodes]
            self.graphs.append([{"graph": index, "phase": phase} | call for call in found if call])

        if self._backend == "inductor":
            from torch._inductor.compile_fx import compile_fx, compile_fx_inner

            def inner(graph: Any, inputs: Any, **kwargs: Any) -> Any:
                note(graph, "backward" if kwargs.get("is_backward") else "forward")
                return compile_fx_inner(graph, inputs, **kwargs)

            return compile_fx(graph, inputs, inner_compile=inner)
        from torch._dynamo.backends.common import aot_autograd
        from torch._dynamo.backends.debugging import boxed_nop

        def eager(phase: str) -> Inner:
            def take(graph: Any, inputs: Any) -> Any:
                note(graph, phase)
                return boxed_nop(graph, inputs)

            return take

        return aot_autograd(fw_compiler=eager("forward"), bw_compiler=eager("backward"))(graph, inputs, **options)


def _collective(node: torch.fx.Node, names: Sequence[str | None]) -> dict[str, Any] | None:
    """Kind, dtype, elements and parameter of a node that is a functional collective, None for any other.

    `names` are those of the parameters among the graph's inputs. A gather's parameter is the input that it comes from,
    a reduction's the one whose gradient it makes; None where neither is found.
    """
    name = str(node.target)
    if node.op != "call_function" or not name.startswith("_c10d_functional."):
        return None
    kind = KINDS.get(name.split(".")[1])
    source = node.args[0]
    if kind is None or not isinstance(source, torch.fx.Node):
        return None
    index = _source_index(source) if kind == "all_gather" else _gradient_index(node)
    before, after = source.meta["val"], node.meta["val"]
    return {
        "kind": kind,
        "dtype": str(after.dtype).removeprefix("torch."),
        "in_numel": math.prod(before.shape),
        "out_numel": math.prod(after.shape),
        "parameter": names[index] if index is not None and index < len(names) else None,
    }


def _source_index(node: torch.fx.Node) -> int | None:
    """The graph input that a node is computed from, along its first arguments."""
    while node.op != "placeholder":
        first = node.args[0] if node.args else None
        if not isinstance(first, torch.fx.Node):
            return None
        node = first
    return _input_index(node.meta.get("desc"))


def _gradient_index(node: torch.fx.Node) -> int | None:
    """The graph input whose gradient a node becomes, along its first users."""
    for _ in range(MAX_STEPS):
        user = next(iter(node.users), None)
        if user is None:
            return None
        if user.op == "output":
            outputs: Any = user.args[0]
            described = user.meta["desc"][list(outputs).index(node)]
            return _input_index(getattr(_whole(described, "grad_of"), "grad_of", None))
        node = user
    return None


def _input_index(described: Any) -> int | None:
    """The number of a graph input; a DTensor's local tensor is described as a part of it, its `base`."""
    return getattr(_whole(described, "idx"), "idx", None)


def _whole(described: Any, attribute: str) -> Any:
    """The description itself or the first one that it is a part of, that has the attribute; else None."""
    while described is not None and not hasattr(described, attribute):
        described = getattr(described, "base", None)
    return described


def _parameter_name(node: torch.fx.Node) -> str | None:
    """The name of the parameter that a graph input stands for, None for another tensor."""
    source = getattr(node.meta.get("grapharg"), "source", None)
    text = str(source.name) if source is not None else ""
    parts = re.findall(r"_(?:modules|parameters)\['([^']+)'\]", text)
    return clean_name(".".join(parts)) if "_parameters[" in text else None
