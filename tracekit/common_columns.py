"""Columns that several tables have, each described once; a table that means more by one says so with `but`."""

from __future__ import annotations

import polars as pl

from tracekit.table_schema import Column

_UNSIZED = "no size is known"
NO_PSI = "without a manifest, which has Ψ"

# Where in the run.
RANK = Column("rank", pl.Int32, "Rank of the process that recorded it.")
CYCLE = Column("cycle", pl.Int32, "Active window of the profiler's schedule, counted from 0.")
STEP = Column(
    "step",
    pl.Int64,
    "Optimizer step, by the number of its `ProfilerStep#` mark; work belongs to the step that launched it.",
    "launched outside of every step, or the trace has no step marks",
)
INDEX = Column("index", pl.Int64, "Position of its event among the entries of its file, from 0.")
DEVICE = Column("device", pl.String, "Device of the rank: `cuda:0` and so on, or `cpu`.")
LANE = Column("lane", pl.String, "Where work runs serially: a stream of the device, or a thread.")
HOST = Column("host", pl.String, "Name of the machine.", "in neither trace nor manifest")

# What it was for.
LAYER = Column(
    "layer",
    pl.String,
    "Module by its fully qualified name; with FSDP the wrapped unit (empty: the root), of a bucket the span "
    "`first..last` that it covers.",
    "in neither trace nor manifest",
)
LAYER_FROM = Column(
    "layer_from",
    pl.String,
    "How the layer was found: FSDP2, recorder, manifest (sizes in the order of gradients), nn.Module, autograd, or "
    "pipeline (the stage).",
    "the layer is unknown",
)
PHASE = Column("phase", pl.String, "Part of the step: forward, backward, optimizer or other.")
NAME = Column("name", pl.String, "Name of the event in the trace.")

# Collectives.
KIND = Column(
    "kind",
    pl.String,
    "Collective that was asked for: all_gather, reduce_scatter, all_reduce, broadcast, reduce, all_to_all, send, recv "
    "or other.",
)
BACKEND_KIND = Column(
    "backend_kind",
    pl.String,
    "Collective that the backend ran for it: gloo, for one, emulates reduce_scatter by all_reduce.",
)
AXIS = Column("axis", pl.String, "Axis of the device mesh: dp_replicate, dp_shard or tp.", "its axis is unknown")
GROUP = Column("group", pl.String, "Process group, by its name in the trace.", "the trace names none (gloo, old NCCL)")
GROUP_SIZE = Column("group_size", pl.Int32, "Number of ranks in the process group.", "in neither trace nor mesh")
SEQ = Column(
    "seq", pl.Int64, "Sequence number of the collective in its group.", "the trace has none (before torch 2.12)"
)
DTYPE = Column("dtype", pl.String, "Data type of the elements, by torch's name.", "not in the trace")
IN_NUMEL = Column("in_numel", pl.Int64, "Elements of this rank's input.", _UNSIZED)
OUT_NUMEL = Column("out_numel", pl.Int64, "Elements of this rank's output.", _UNSIZED)
PAYLOAD_BYTES = Column(
    "payload_bytes",
    pl.Int64,
    "Bytes of the full tensor: of an all-gather its output, of a reduce-scatter its input, else the tensor.",
    _UNSIZED,
)
WIRE_BYTES = Column(
    "wire_bytes",
    pl.Int64,
    "Bytes that one rank of a ring of n sends: passes × payload × (n-1)/n.",
    "size, group size or passes are unknown",
)
NUM_COLLECTIVES = Column("num_collectives", pl.Int64, "Number of collectives.")
COVERAGE = Column("coverage", pl.Float64, "Share of the collectives whose size is known.")

# Elements × passes.
NUMEL = Column("numel", pl.Int64, "Elements of the payloads, summed over what is known of them.", _UNSIZED)
PASSES_NUMEL = Column(
    "passes_numel",
    pl.Int64,
    "Elements × passes: an all-reduce crosses twice, an all-gather, reduce-scatter, broadcast or reduce once.",
    _UNSIZED,
)
PSI = Column("psi", pl.Float64, "Elements × passes over Ψ, the number of parameters.", f"{_UNSIZED}, or {NO_PSI}")

# Time.
START_NS = Column("start_ns", pl.Int64, "When it began, since the epoch, on the clock of its host.")
END_NS = Column("end_ns", pl.Int64, "When it ended (exclusive), since the epoch, on the clock of its host.")
DUR_NS = Column("dur_ns", pl.Int64, "How long it took.")
TS_NS = Column("ts_ns", pl.Int64, "When it happened, since the epoch, on the clock of its host.")
STEP_NS = Column(
    "step_ns",
    pl.Int64,
    "Length of the step on the device: on a GPU from the start of its first work to that of the next step's (the last "
    "step: to the end of its work), on the CPU from step mark to step mark.",
)
OVERLAPPED_NS = Column("overlapped_ns", pl.Int64, "Time during which compute ran on another lane of the same device.")
EXPOSED_NS = Column("exposed_ns", pl.Int64, "Time during which no such compute ran.")
TRANSFER_NS = Column(
    "transfer_ns",
    pl.Int64,
    "What the transfer itself took: the shortest duration over the ranks of the collective.",
    "a rank of the group is missing, the collective cannot be matched for certain, or its kind does not bind its ranks",
)
WAIT_NS = Column(
    "wait_ns",
    pl.Int64,
    "Time spent waiting for ranks that came later: the duration less `transfer_ns`.",
    "as `transfer_ns`",
)

# Memory.
ALLOCATED_BYTES = Column("allocated_bytes", pl.Int64, "Bytes in use on the device.")
RESERVED_BYTES = Column(
    "reserved_bytes",
    pl.Int64,
    "Bytes that the caching allocator holds of the device, in use or not.",
    "on a CPU, whose allocator keeps nothing back",
)
CATEGORY = Column("category", pl.String, "What the memory was for.")
