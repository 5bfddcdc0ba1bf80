"""The manifest that the recorder leaves beside the traces, typed; reading it needs no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import msgspec

from tracekit.errors import InputError
from tracekit.read.sources import MANIFEST_NAME

FORMAT = 1

T = TypeVar("T")


class Axis(msgspec.Struct, frozen=True):
    """One axis of the device mesh."""

    axis: str
    size: int


class Precision(msgspec.Struct, frozen=True):
    """dtypes in torch's spelling ("bfloat16"); null where the strategy leaves them as stored."""

    param_dtype: str | None = None
    reduce_dtype: str | None = None
    buffer_dtype: str | None = None
    storage_dtype: str | None = None


class Parameter(msgspec.Struct, frozen=True):
    """One parameter with its full (unsharded) shape; `layer` is its owning unit, "" the root."""

    name: str
    shape: list[int]
    dtype: str
    numel: int
    requires_grad: bool = True
    layer: str = ""
    tied_to: str | None = None


class Buffer(msgspec.Struct, frozen=True):
    """One buffer of the model."""

    name: str
    shape: list[int]
    dtype: str
    numel: int


class Flat(msgspec.Struct, frozen=True):
    """FSDP1's flat parameter of a unit, padding included."""

    numel: int
    shard_numel: int
    padding_numel: int = 0


class Unit(msgspec.Struct, frozen=True):
    """One wrapped unit, in wrap order; `reshard_after_forward` null means the strategy's default."""

    name: str
    reshard_after_forward: bool | int | None = None
    flat: Flat | None = None


class TraceFile(msgspec.Struct, frozen=True):
    """One recorded window of one rank."""

    cycle: int
    file: str | None = None
    complete: bool | None = None
    reason: str | None = None
    first_step: int | None = None
    last_step: int | None = None


class Held(msgspec.Struct, frozen=True):
    """Bytes of model state that a rank held at the start of the active window."""

    parameters: int = 0
    gradients: int = 0
    optimizer_state: int = 0
    buffers: int = 0


class RankInfo(msgspec.Struct, frozen=True):
    """What one rank says of itself."""

    rank: int
    host: str | None = None
    device: str | None = None
    pid: int | None = None
    held_bytes: Held | None = None
    traces: list[TraceFile] = []


class StepTimes(msgspec.Struct, frozen=True):
    """Step times of rank 0 before and inside the profiled window, in ns."""

    unprofiled_ns: list[int] = []
    profiled_ns: list[int] = []
    overhead_ratio: float | None = None


class Manifest(msgspec.Struct, frozen=True):
    """A recorded run: what was trained, how it was sharded, on what, and which files hold it."""

    format: int
    strategy: str
    world_size: int
    psi: int
    psi_train: int
    tool: str | None = None
    options: dict[str, Any] = {}
    mesh: list[Axis] = []
    backend: str | None = None
    versions: dict[str, str | None] = {}
    precision: Precision = Precision()
    micro_batches: int = 1
    schedule: dict[str, int] = {}
    parameters: list[Parameter] = []
    buffers: list[Buffer] = []
    units: list[Unit] = []
    grad_order: list[str] | None = None
    hosts: list[str] = []
    devices: list[str] = []
    step_times: StepTimes = StepTimes()
    ranks: list[RankInfo] = []


def read_manifest(folder: Path) -> Manifest | None:
    """Return the manifest of a run folder, with what each rank wrote of itself folded in; null where there is none.

    Raises:
        InputError: the manifest is there but damaged, or of a later format.
    """
    path = folder / MANIFEST_NAME
    if not path.is_file():
        return None
    manifest = _decode(path, Manifest)
    if manifest.format > FORMAT:
        raise InputError(f"{path}: manifest format {manifest.format} is newer than {FORMAT}; update tracekit")
    ranks = {r.rank: r for r in manifest.ranks}
    ranks |= {r.rank: r for r in (_decode(p, RankInfo) for p in sorted(folder.glob("rank*.meta.json")))}
    return msgspec.structs.replace(manifest, ranks=[ranks[r] for r in sorted(ranks)])


def _decode(path: Path, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not a manifest that tracekit wrote ({error}); record the run again") from None
