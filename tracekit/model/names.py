"""Names and patterns that decide what an event is: all of them, but for the few that decoding needs (spellings.py)."""

from __future__ import annotations

import re
from collections.abc import Callable

from tracekit.read.decoding.spellings import LAUNCH, LINK, PYTHON_FRAME, STEP_MARK_PREFIX

# -- categories (compared in lower case; the 2021 spellings are Operator, Runtime, Kernel, Memcpy, Memset) ---------
KERNELS = ("kernel", "concurrent_kernel")
COPIES = ("gpu_memcpy", "gpu_memset", "memcpy", "memset")
OTHER_DEVICES = "_ccp_events"
# Rows without a category in a process that is labelled as a device (read/decoding/labelled.py): "npu_kernel".
LABELLED_KERNEL, LABELLED_COPY, LABELLED_DRAWN = "pu_kernel", "pu_copy", ("pu_wait", "pu_drawn")
CPU_OPS = ("cpu_op", "operator")
ANNOTATION = "user_annotation"
# Rows that carry a stream or a device but are not work: waits, spans drawn around kernels, profiler overhead.
NEVER_WORK = ("gpu_user_annotation", "overhead", PYTHON_FRAME, "trace")
SYNC = r"_sync$"
OPTIMIZER_STEP = r"^Optimizer\.step#"
BACKWARD_OP = "autograd::engine::evaluate_function"
# Rows of a CPU run whose own time is autograd's bookkeeping or a hook: computation inside them has rows of its own.
AUTOGRAD_FRAME = r"^(torch::)?autograd::|Backward\d*$"
CALL_OR_WAIT = r"c10d|^record_param_comms|wait|^\w*ccl\w*::"
STEP_MARK = rf"^{STEP_MARK_PREFIX}(\d+)$"


def family_of(category: str | None) -> str:
    """Return the field of Kinds (model/event_kinds.py) that events of this category belong to."""
    lower = (category or "").lower()
    if lower in CPU_OPS:
        return "operators"
    if lower == ANNOTATION:
        return "annotations"
    if category == LINK:
        return "links"
    if re.search(LAUNCH, lower):
        return "launches"
    return "drawn" if lower in NEVER_WORK or re.search(SYNC, lower) or lower.endswith(LABELLED_DRAWN) else "others"


def role_of(category: str | None) -> str | None:
    """Return the role of events of this category on a device: kernel, copy or other; None for other categories."""
    lower = (category or "").lower()
    if lower in KERNELS or lower.endswith(LABELLED_KERNEL):
        return "kernel"
    if lower in COPIES or lower.endswith(LABELLED_COPY):
        return "copy"
    return "other" if lower.endswith(OTHER_DEVICES) else None


KindOf = Callable[[str | None], str | None]
# To torch, AMD's GPUs are cuda devices too.
_CUDA = ("", "cuda", "hip", "roc", "rocm", "glow")
# Of a category "mtia_ccp_events" or "hpu_op": mtia, hpu.
_OWN_DEVICE = re.compile(r"^(mtia|hpu|xpu|npu)_")


def launched_kind_of(category: str | None) -> str | None:
    """Return the kind of device that a runtime's category names (``xpu_runtime``: xpu); None for cuda's and none."""
    kind = re.sub(r"_?(runtime|driver)$", "", (category or "").lower())
    return None if kind in _CUDA else kind


def device_kind_of(category: str | None) -> str | None:
    """Return the kind of device that a device row's own category names; None where it names none."""
    found = _OWN_DEVICE.match((category or "").lower())
    return found[1] if found else None


# -- collectives ---------------------------------------------------------------------------------------------------
NCCL_ANNOTATION = "nccl:"
# Launches after which something runs on the device.
STARTS_WORK = "(?i)launch|memcpy|memset"
CALL_PREFIXES = ("c10d::", "nccl:", "record_param_comms")
BACKEND_SPAN = r"^(gloo|mpi|ucc|xccl):"
# Backends that may hand a collective to a device; their spans then are only its enqueueing.
ENQUEUES = r"^(mpi|ucc|xccl):"
# Backends of devices (nccl, rccl, xccl, hccl): a rank that calls one has a device, whether that was recorded or not.
OF_DEVICES = r"^([a-z]*ccl):(?:[^:]|$)"

# Device rows that are communication by name alone: the last resort, anchored where the name allows it.
COMM_KERNEL = (
    r"(?i)^(void )?(nccl|rccl|msccl|oneccl|ccl::|hccl|hcom_|deep_?ep::|nvshmem)"
    r"|(one|two)_?shot_?all_?reduce|multimem_(all|one|reduce)|cross_device_reduce|::(quick_?)?all_?reduce"
    # TransformerEngine's user buffers, torch's own NVSHMEM kernels, expert parallelism of MORI.
    r"|(^|[ :])k?userbuffers_|(^|[ :])nvshmem(_extension|[ix]?_)|::ep_?(dispatch|combine)\w*kernel"
)
# A compiler's fused kernel is called after all that it fuses, whatever that hands on to communication.
FUSED_KERNEL = r"^triton_"
# Names that speak of communication and are not known to be it.
LIKE_COMMUNICATION = (
    r"(?i)all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|(^|[^a-z])a2a([^a-z]|$)|send_?recv|user_?buffers"
    r"|shmem|rdma|ibgda|peer_?to_?peer|(^|[^a-z])p2p([^a-z]|$)|ep_?dispatch|ep_?combine|mnnvl"
)
# The name that Kineto writes in place of every name with a byte that cannot be printed.
LOST_NAME = "unknown"
PEER_COPY = r"(?i)^memcpy (ptop|p2p)"


# Normalised spelling (letters only) -> kind; the first prefix that fits decides, so longer ones come first.
_KINDS = (
    ("allreduce", "all_reduce"),
    ("twoshotallreduce", "all_reduce"),
    ("oneshotallreduce", "all_reduce"),
    ("crossdevicereduce", "all_reduce"),
    ("multimemallreduce", "all_reduce"),
    ("allgather", "all_gather"),
    ("reducescatter", "reduce_scatter"),
    ("alltoall", "all_to_all"),
    ("broadcast", "broadcast"),
    ("reduce", "reduce"),
    ("sendrecv", "other"),
    ("send", "send"),
    ("recv", "recv"),
    ("barrier", "other"),
    ("monitoredbarrier", "other"),
    ("gather", "other"),
    ("scatter", "other"),
    ("coalesced", "other"),
)
_ANYWHERE = 8  # the first so many words name a collective wherever they stand in a name
_SPELLING_PREFIX = re.compile(
    r"^(?:void )?(?:c10d::|_c10d_functional::|(?:nccl|gloo|mpi|ucc|xccl):"
    r"|nccl(?:Symk)?(?:Dev)?Kernel_?|nccl|rccl|msccl(?:pp::|Kernel_?)|oneccl_|ccl::|hccl_?|hcom_)",
    re.IGNORECASE,
)


def kind_of(spelling: str | None) -> str | None:
    """Return the kind of collective that a spelling names; None where it names none ("wait")."""
    if not spelling:
        return None
    bare = re.sub(r"[^a-z]", "", _SPELLING_PREFIX.sub("", spelling).lower())
    exact = next((kind for prefix, kind in _KINDS if bare.startswith(prefix)), None)
    # Custom kernels bury the word in a C++ signature: "void vllm::cross_device_reduce_2stage<...>".
    return exact or next((kind for word, kind in _KINDS[:_ANYWHERE] if word in bare), None)


# -- annotations that name a layer ---------------------------------------------------------------------------------
# FSDP2: "FSDP::pre_forward (layers.0)", "FSDP::backward_prefetch for layers.2", "FSDP::pre_backward" (the root).
FSDP_ANNOTATION = r"^FSDP::(\w+)(?: for (.*)| \((.*)\))?$"
# Communication of FSDP2.
FSDP_COMM = r"^FSDP::(all_gather|post_backward_reduce)( \(|$)"
# Ranges in which FSDP2 and FSDP1 allocate what they gather and reduce.
MEMORY_RANGE = (
    r"^(?:FSDP::|FullyShardedDataParallel\.)"
    r"(all_gather_copy_out|all_gather|post_backward_reduce|_post_backward_hook|_pre_\w+)(?: .*)?$"
)
# The recorder's: "tracekit::forward (layers.0)", "tracekit::forward" (the root), "tracekit::backward".
RECORDER_FORWARD = r"^tracekit::forward(?: \((.*)\))?$"
RECORDER_PHASE = r"^tracekit::(forward|backward|optimizer)"
MODULE_FRAME_PREFIX = "nn.Module: "
MODULE_FRAME = r"^nn\.Module: (.+)_(\d+)$"
RECORDER_BACKWARD = "tracekit::backward"
# torch/nn/parallel/distributed.py, `DistributedDataParallel.forward`.
DDP_FORWARD = "DistributedDataParallel.forward"
