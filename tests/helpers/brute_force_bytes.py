"""Bytes of each kind of collective, found in a trace's rows by plain loops: the other half of the oracle."""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

from brute_force_names import is_called_so, kind_of, width_of_dtype
from brute_force_rows import Rank, Row, is_copy, is_on_device


class Moved(NamedTuple):
    """Of each rank, step and kind: collectives of known size, their payload, and what a ring's rank sends (or None);
    of each rank, the collectives of unknown size."""

    known: dict[tuple[int, int | None, str], tuple[int, int, int | None]]
    unknown: dict[int, int]


class Call(NamedTuple):
    """A collective as the CPU called it: the rows that it left inside one another, and the elements in and out."""

    number: int
    kind: str
    start: int
    end: int
    thread: object
    ids: set[object]
    holds: int
    size: Size


class Size(NamedTuple):
    """Elements in and out, bytes of one, ranks of the group; None where unknown."""

    taken: int | None
    given: int | None
    width: int | None
    group: int | None


def bytes_moved(moved: Moved, rank: Rank, moments: dict[int, int | None], step_at: Callable[[int], int | None]) -> None:
    """Add what a rank moved. `moments`: when device rows and spans were launched (by position)."""
    calls = calls_of(rank)
    spans = match_spans(rank.backend_spans, calls)
    linked = link_kernels(rank, calls) | {position: call.number for position, call in spans.items()}
    group = group_size(rank)
    ran = [row for row in rank.device_rows if is_communication(row, linked)] + rank.backend_spans
    first: dict[int, Row] = {}
    for row in sorted(ran, key=lambda row: row.start):
        if row.position in linked:
            first.setdefault(linked[row.position], row)
    sums: dict[tuple[int, int | None, str], list[tuple[int, int | None]]] = defaultdict(list)
    found = [(first.get(call.number), call) for call in calls]
    found += [(row, None) for row in ran if row.position not in linked]
    for row, call in found:
        kind, size = described(row, call)
        count = payload(kind, size._replace(group=size.group or group))
        if count is None:
            moved.unknown[rank.number] = moved.unknown.get(rank.number, 0) + 1
            continue
        at = call.start if row is None or row.position not in moments else moments[row.position]
        key = rank.number, None if at is None else step_at(at), kind
        sums[key].append((count, wire(kind, count, size.group or group)))
    for key, counts in sums.items():
        sent = [one for _, one in counts if one is not None]
        whole = sum(sent) if len(sent) == len(counts) else None
        moved.known[key] = len(counts), sum(count for count, _ in counts), whole


def described(row: Row | None, call: Call | None) -> tuple[str, Size]:
    """Return kind and size of a collective: as its own row tells them, else its call, else the span's shapes.

    A kernel tells of one collective: of a call that holds several, only the call knows.
    """
    told = size_told(row) if row and not (call and call.holds > 1) else None
    drawn = Size(first_numel(row.args), None, width_of(row.args), None) if row and not is_on_device(row) else None
    sizes = [size for size in (told, call and call.size, drawn) if size]
    by_row = row and (kind_of(row.args.get("Collective name")) or (None if call else kind_of(row.name)))
    return by_row or (call.kind if call else "other"), known_first(sizes)


def known_first(sizes: list[Size]) -> Size:
    sides = zip(*sizes, Size(None, None, None, None), strict=True)
    return Size(*(next((value for value in side if value is not None), None) for side in sides))


def payload(kind: str, size: Size) -> int | None:
    """Return the bytes of the full tensor: of an all-gather its output, of the others their input."""
    elements = size.taken
    if kind == "all_gather":
        by_ranks = size.taken * size.group if size.taken is not None and size.group else None
        elements = size.given if size.given is not None else by_ranks
    if elements == 0:
        return 0
    return elements * size.width if elements is not None and size.width else None


def wire(kind: str, count: int, group: int | None) -> int | None:
    """Return what a rank of a ring sends: passes × payload × (n−1)/n, two passes for an all-reduce."""
    if kind in ("send", "recv"):
        return count
    passes = 2 if kind == "all_reduce" else 1
    return passes * count * (group - 1) // group if group and kind != "other" else None


def group_size(rank: Rank) -> int | None:
    """Return the size of the only process group that the header tells of; None where there are several or none."""
    told = (rank.header.get("distributedInfo") or {}).get("pg_config")
    sizes = {group.get("pg_size", len(group.get("ranks", []))) for group in told} if isinstance(told, list) else set()
    return sizes.pop() if len(sizes) == 1 else None


# -- calls ---------------------------------------------------------------------------------------------------------


def calls_of(rank: Rank) -> list[Call]:
    """Return the collectives that were called: ``c10d::`` around ``record_param_comms`` around ``nccl:`` are one."""
    rows = [r for r in rank.rows if re.match(r"c10d::|nccl:|record_param_comms", r.name) and not is_on_device(r)]
    rows = [r for r in rows if r.cat != "gpu_user_annotation" and not r.cat.startswith("python")]
    nests: dict[object, list[list[Row]]] = defaultdict(list)
    for row in sorted(rows, key=lambda r: (r.start, -r.end)):
        nest = nests[row.thread]
        if nest and row.start < max(r.end for r in nest[-1]):
            nest[-1].append(row)
        else:
            nest.append([row])
    found = [call for of_thread in nests.values() for nest in of_thread if (call := _call(nest))]
    return sorted(found, key=lambda call: call.start)


def _call(nest: list[Row]) -> Call | None:
    told = [row for row in nest if kind_of(row.args.get("Collective name"))]
    spellings = [r.args["Collective name"] for r in told] + [r.name for r in nest if ":" in r.name]
    kind = next((kind for kind in map(kind_of, spellings) if kind), None)
    if kind is None:
        return None
    ids = {r.args.get("External id") for r in nest if r.name == "record_param_comms"} - {None, 0}
    outer = nest[0]
    size = size_together(told) if told else size_by_shapes(kind, nest)
    return Call(outer.position, kind, outer.start, outer.end, outer.thread, ids, max(len(told), 1), size)


def size_told(row: Row) -> Size | None:
    """Return the size that a row's own arguments tell; None where they name no collective."""
    args = row.args
    if not kind_of(args.get("Collective name")):
        return None
    taken, given = (args.get(f"{side} msg nelems", args.get(f"{side} msg size")) for side in ("In", "Out"))
    return Size(taken, given, width_of_dtype(args.get("dtype")), args.get("Group size"))


def size_together(told: list[Row]) -> Size:
    """Return the size of what one call holds: the sum of several collectives that are alike, else unknown."""
    sizes = [size for row in told if (size := size_told(row))]
    if len(sizes) == 1:
        return sizes[0]
    alike = len({(kind_of(row.args["Collective name"]), row.args.get("dtype")) for row in told}) == 1
    taken, given = ([size[side] for size in sizes] for side in (0, 1))
    sums = [sum(n or 0 for n in side) if alike and None not in [*taken, *given] else None for side in (taken, given)]
    return Size(*sums, sizes[0].width, sizes[0].group)


def size_by_shapes(kind: str, nest: list[Row]) -> Size:
    """Return the size by the shapes of the operator's tensors, else by those of the annotation, which has the input."""
    width = next((w for w in (width_of(row.args) for row in nest) if w), None)
    for row in nest:
        shapes = shapes_of(row.args)
        if row.name.startswith("c10d::") and shapes:
            output_first = kind in ("all_gather", "reduce_scatter", "all_to_all")
            taken = numel(shapes[1]) if output_first and len(shapes) > 1 else numel(shapes[0])
            given = numel(shapes[0])
            if taken is not None or given is not None:
                return Size(taken, given, width, None)
    drawn = (first_numel(row.args) for row in nest if row.name.startswith("nccl:"))
    return Size(next((n for n in drawn if n is not None), None), None, width, None)


def shapes_of(args: dict[str, Any]) -> list[Any]:
    shapes = args.get("Input Dims") or []
    return json.loads(shapes) if isinstance(shapes, str) else shapes


def first_numel(args: dict[str, Any]) -> int | None:
    """Return the elements of the first tensor; of a number 1."""
    shapes = shapes_of(args)
    return None if not shapes else 1 if shapes[0] == [] else numel(shapes[0])


def numel(shape: Any) -> int | None:
    """Return the elements of a shape or of a list of shapes; an empty one may be of no tensor: unknown."""
    if not shape:
        return None
    if all(isinstance(size, int) for size in shape):
        return math.prod(shape)
    parts = [1 if one == [] else numel(one) for one in shape]
    return None if None in parts else sum(part for part in parts if part is not None)


def width_of(args: dict[str, Any]) -> int | None:
    types = args.get("Input type") or []
    types = json.loads(types.replace("'", '"')) if isinstance(types, str) else types
    return width_of_dtype(types[0]) if types else None


# -- which call a kernel or span belongs to ------------------------------------------------------------------------


def is_communication(row: Row, linked: dict[int, int]) -> bool:
    """Whether a device row communicates: it says so, or carries a call's id, or is called so."""
    told = row.args.get("Collective name")
    return (told or "wait") != "wait" or row.position in linked or (not is_copy(row) and is_called_so(row.name))


def link_kernels(rank: Rank, calls: list[Call]) -> dict[int, int]:
    """Return the call of each communicating device row, both by position.

    By the id of the call's arguments, else the call around the launch, else, of a group's kernel, which is launched
    when its calls are over, the last of the calls since the last such launch that have no kernel.
    """
    by_id = {one: call.number for call in calls for one in call.ids}
    # Until torch 2.0 a row's external id repeats its correlation and tells nothing.
    ids = {row.position: row.args.get("External id") for row in rank.device_rows}
    linked = {
        row.position: by_id[ids[row.position]]
        for row in rank.device_rows
        if ids[row.position] != row.correlation and ids[row.position] in by_id
    }
    launched = [
        (rank.launches[row.correlation], row)
        for row in rank.device_rows
        if row.correlation in rank.launches and is_communication(row, linked)
    ]
    threads = {thread: [c for c in calls if c.thread == thread] for thread in {launch.thread for launch, _ in launched}}
    for launch, row in launched:
        mine = threads[launch.thread]
        nth = bisect_right([c.start for c in mine], launch.start) - 1
        if row.position not in linked and nth >= 0 and launch.start < mine[nth].end:
            linked[row.position] = mine[nth].number
    for launch, row in launched:
        if row.position not in linked:
            since = max(
                (o.start for o, _ in launched if o.thread == launch.thread and o.start < launch.start), default=0
            )
            with_kernel = set(linked.values())
            ended = [c for c in threads[launch.thread] if since <= c.start and c.end <= launch.start]
            waiting = [c.number for c in ended if c.number not in with_kernel]
            linked |= {row.position: waiting[-1]} if waiting else {}
    return linked


def match_spans(spans: list[Row], calls: list[Call]) -> dict[int, Call]:
    """Return the call of each backend span: the oldest one before it that asks for as much of its family.

    gloo carries out a reduce-scatter by an all-reduce of the whole input.
    """
    family = {"reduce_scatter": "reduction", "all_reduce": "reduction", "reduce": "reduction"}
    left = list(calls)
    matched: dict[int, Call] = {}
    for span in sorted(spans, key=lambda s: s.start):
        kind, elements = kind_of(span.name) or "", first_numel(span.args)
        for call in left:
            alike = family.get(call.kind, call.kind) == family.get(kind, kind)
            if alike and call.size.taken in (elements, None) and call.start <= span.start:
                matched[span.position] = call
                left.remove(call)
                break
    return matched
