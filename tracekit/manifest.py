"""The manifest that the recorder leaves beside the traces, typed and with its numbers in range; needs no torch.

Ranges are those of what could be: a manifest is a file that anybody may have edited, and what is read of it is divided
by, multiplied and put into columns of 64 bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from tracekit.dtypes import DTYPES
from tracekit.errors import InputError

FORMAT = 1
MANIFEST_NAME = "manifest.json"
# What each rank writes of itself, beside it.
RANK_ENTRIES = "rank*.meta.json"

T = TypeVar("T")

# Times 16 bytes, the most that a parameter takes, this still is a 64-bit number.
_MOST_NUMEL = 10**17
_MOST_RANKS = 2**20
# Collectives of a step: files with more rows than this are not read in one piece anyway.
_MOST_CALLS = 10**7
Numel = Annotated[int, msgspec.Meta(ge=0, le=_MOST_NUMEL)]
Bytes = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Nanoseconds = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Ranks = Annotated[int, msgspec.Meta(ge=1, le=_MOST_RANKS)]
Small = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Step = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Measure = Annotated[int, msgspec.Meta(ge=0, le=2**53)] | Annotated[float, msgspec.Meta(ge=0, le=2**53)]


def _require_dtype(dtype: str | None) -> None:
    if dtype is not None and dtype not in DTYPES:
        raise ValueError(f"there is no data type {dtype[:40]!r}")


class Axis(msgspec.Struct, frozen=True):
    """One axis of the device mesh."""

    axis: str
    size: Ranks


class Precision(msgspec.Struct, frozen=True):
    """dtypes in torch's spelling ("bfloat16"); None where the strategy leaves them as stored."""

    param_dtype: str | None = None
    reduce_dtype: str | None = None
    buffer_dtype: str | None = None
    storage_dtype: str | None = None

    def __post_init__(self) -> None:
        """Refuse a dtype that torch does not have."""
        for dtype in (self.param_dtype, self.reduce_dtype, self.buffer_dtype, self.storage_dtype):
            _require_dtype(dtype)


class Parameter(msgspec.Struct, frozen=True):
    """One parameter with its full (unsharded) shape; `layer` is its owning unit, "" the root.

    `placements` of a DTensor by mesh axis, as "Shard(0)".
    """

    name: str
    shape: list[Numel]
    dtype: str
    numel: Numel
    requires_grad: bool = True
    layer: str = ""
    tied_to: str | None = None
    placements: dict[str, str] = {}

    def __post_init__(self) -> None:
        """Refuse a dtype that torch does not have."""
        _require_dtype(self.dtype)


class Buffer(msgspec.Struct, frozen=True):
    """One buffer of the model."""

    name: str
    shape: list[Numel]
    dtype: str
    numel: Numel

    def __post_init__(self) -> None:
        """Refuse a dtype that torch does not have."""
        _require_dtype(self.dtype)


class Flat(msgspec.Struct, frozen=True):
    """FSDP1's flat parameter of a unit, padding included."""

    numel: Numel
    shard_numel: Numel
    padding_numel: Numel = 0


class Unit(msgspec.Struct, frozen=True):
    """One wrapped unit, in wrap order; `reshard_after_forward` of None means the strategy's default.

    `precision` where it is the unit's own.
    """

    name: str
    reshard_after_forward: bool | Ranks | None = None
    flat: Flat | None = None
    precision: Precision | None = None


class TraceFile(msgspec.Struct, frozen=True):
    """One recorded window of one rank."""

    cycle: Small
    file: str | None = None
    complete: bool | None = None
    reason: str | None = None
    first_step: Step | None = None
    last_step: Step | None = None


class Held(msgspec.Struct, frozen=True):
    """Bytes of model state that a rank held at the start of the active window."""

    parameters: Bytes = 0
    gradients: Bytes = 0
    optimizer_state: Bytes = 0
    buffers: Bytes = 0
    collective_buffers: Bytes = 0


class RankInfo(msgspec.Struct, frozen=True):
    """One rank: its process, device, state and traces."""

    rank: Annotated[int, msgspec.Meta(ge=0, lt=_MOST_RANKS)]
    host: str | None = None
    device: str | None = None
    pid: Step | None = None
    held_bytes: Held | None = None
    traces: list[TraceFile] = []


class StepTimes(msgspec.Struct, frozen=True):
    """Step times of rank 0 before and inside the profiled window, in ns."""

    unprofiled_ns: list[Nanoseconds] = []
    profiled_ns: list[Nanoseconds] = []
    overhead_ratio: Annotated[float, msgspec.Meta(ge=0, le=10**9)] | None = None


class ObservedStep(msgspec.Struct, frozen=True):
    """What the recorder saw a step of the window do: forwards with a backward, and forwards without one."""

    step: Step
    micro_batches: Small = 0
    other_forwards: Small = 0


class Manifest(msgspec.Struct, frozen=True):
    """A recorded run: what was trained, how it was sharded, on what, and which files hold it."""

    format: Annotated[int, msgspec.Meta(ge=1, le=FORMAT)]
    strategy: str
    world_size: Ranks
    psi: Annotated[int, msgspec.Meta(ge=1, le=_MOST_NUMEL)]
    psi_train: Numel
    tool: str | None = None
    options: dict[str, Any] = {}
    mesh: list[Axis] = []
    backend: str | None = None
    versions: dict[str, str | None] = {}
    precision: Precision = Precision()
    micro_batches: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 1
    schedule: dict[str, Small] = {}
    parameters: list[Parameter] = []
    buffers: list[Buffer] = []
    units: list[Unit] = []
    grad_order: list[str] | None = None
    hosts: list[str] = []
    devices: list[str] = []
    step_times: StepTimes = StepTimes()
    observed: list[ObservedStep] = []
    unknown_because: str | None = None
    ranks: list[RankInfo] = []

    def __post_init__(self) -> None:
        """Refuse counts that are possible one by one, but whose product no step of a trace could hold."""
        calls = self.micro_batches * (len(self.parameters) + len(self.units) + 1)
        if calls > _MOST_CALLS:
            raise ValueError(
                f"micro_batches {self.micro_batches:,} with {len(self.parameters):,} parameters in "
                f"{len(self.units):,} units is {calls:,} collectives a step, and a trace holds no more than "
                f"{_MOST_CALLS:,}"
            )
        elements = self.micro_batches * max(self.psi, sum(entry.numel for entry in self.parameters))
        if elements > _MOST_NUMEL:
            raise ValueError(f"micro_batches times parameters is {elements:,} elements a step, above {_MOST_NUMEL:,}")


class _Options(msgspec.Struct, frozen=True):
    """The options that plans calculate with, as the manifest has them; None is their default."""

    reduce_bucket_size: Measure | None = None
    bucket_mb: Measure | None = None
    batch_size: Measure | None = None
    seq_len: Measure | None = None
    backward_prefetch: Measure | None = None
    stage3_prefetch_bucket_size: Measure | None = None
    stage3_max_reuse_distance: Measure | None = None
    stage3_max_live_parameters: Measure | None = None
    stage3_param_persistence_threshold: Measure | None = None
    stage3_model_persistence_threshold: Measure | None = None
    ignored_parameters: list[str] | None = None
    grad_accum_dtype: str | None = None

    def __post_init__(self) -> None:
        """Refuse a dtype that torch does not have."""
        _require_dtype(self.grad_accum_dtype)


class _Calculated(msgspec.Struct, frozen=True):
    """The part of a manifest that :class:`Manifest` takes as it comes."""

    options: _Options = _Options()


class _Head(msgspec.Struct):
    """The fields that identify the writer, whatever the rest holds: other programs write a manifest.json too."""

    format: Any = None
    strategy: Any = None
    tool: Any = None

    @property
    def is_ours(self) -> bool:
        """True where tracekit wrote it, of this or a later format."""
        signed = isinstance(self.tool, str) and self.tool.startswith("tracekit")
        return signed or None not in (self.format, self.strategy)


def read_manifest(folder: Path) -> Manifest | None:
    """Return the manifest of a run folder, with the entries that ranks wrote in files of their own.

    None where there is none, or where another program's file has its name (:func:`is_foreign`).

    Raises:
        InputError: the manifest is there but damaged, out of range, or of a later format.
    """
    if not (folder / MANIFEST_NAME).is_file():
        return None
    paths = [folder / MANIFEST_NAME, *folder.glob(RANK_ENTRIES)]
    return manifest_from(folder, {path.name: _bytes(path) for path in paths})


def manifest_from(folder: Path, files: Mapping[str, bytes]) -> Manifest | None:
    """Return the manifest that files of a folder, or of an archive, hold by their names, as :func:`read_manifest`.

    Raises:
        InputError: as :func:`read_manifest`.
    """
    path, data = folder / MANIFEST_NAME, files[MANIFEST_NAME]
    head = _head(data, path)
    if not head.is_ours:
        return None
    if isinstance(head.format, int) and head.format > FORMAT:
        raise InputError(f"{path}: manifest format {head.format} is newer than {FORMAT}; update tracekit")
    manifest = _decode(data, path, Manifest)
    _decode(data, path, _Calculated)
    ranks = {r.rank: r for r in manifest.ranks}
    entries = sorted(name for name in files if name != MANIFEST_NAME)
    ranks |= {r.rank: r for r in (_decode(files[name], folder / name, RankInfo) for name in entries)}
    return msgspec.structs.replace(manifest, ranks=[ranks[r] for r in sorted(ranks)])


def is_foreign(data: bytes, path: Path) -> bool:
    """Return whether a file of a manifest's name holds another program's.

    Raises:
        InputError: it is not JSON.
    """
    return not _head(data, path).is_ours


def _head(data: bytes, path: Path) -> _Head:
    try:
        return msgspec.json.decode(data, type=_Head)
    except msgspec.ValidationError:
        return _Head()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _refusal(path, str(error)) from None


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error}); check its permissions") from None


def _decode(data: bytes, path: Path, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _refusal(path, str(error)) from None


def _refusal(path: Path, reason: str) -> InputError:
    return InputError(
        f"{path}: not a manifest that tracekit wrote ({reason}); "
        f"record the run again, or remove the file to read the traces without it"
    )
