"""Spellings of events that are decoded in their own way; the meaning of all others is decided in model/names.py."""

from __future__ import annotations

PYTHON_FRAME = "python_function"
# Name of an instant at which memory was allocated or freed.
MEMORY = "[memory]"
# Category of flows from a forward operator to its backward.
LINK = "fwdbwd"
# Categories of flows from a launch to the row of the device.
LAUNCH_FLOWS = ("ac2g", "async", "async_cpu_to_gpu")
# Prefixes of names of events whose arguments describe a collective.
COMM_PREFIXES = ("nccl:", "c10d", "gloo:", "record_param_comms", "_c10d", "mpi:", "ucc:", "xccl:")
