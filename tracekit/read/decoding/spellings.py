"""How events are written that are decoded in a way of their own; what all others mean is told by model/names.py."""

from __future__ import annotations

PYTHON_FRAME = "python_function"
# The name of an instant at which memory was allocated or freed.
MEMORY = "[memory]"
# From a forward operator to its backward.
LINK = "fwdbwd"
# From a launch to the row of the device.
LAUNCH_FLOWS = ("ac2g", "async", "async_cpu_to_gpu")
# Of rows whose arguments tell of a collective.
COMM_PREFIXES = ("nccl:", "c10d", "gloo:", "record_param_comms", "_c10d", "mpi:", "ucc:", "xccl:")
