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
# Processes of rows that Kineto draws beside the program's.
DRAWN_PROCESSES = ("Spans", "Traces")
STEP_MARK_PREFIX = "ProfilerStep#"
# Categories (in lower case) of rows on the CPU, some of which tell a stream or device too.
ON_CPU = r"^(cpu_op|operator|user_annotation|python_function|cpu_instant_event)$|(^|_)(runtime|driver)$"
# Every backend names its launches so: cuda_runtime, cuda_driver, xpu_runtime, mtia_runtime, Runtime (2021).
LAUNCH = r"(^|_)(runtime|driver)$"
# Categories of rows on a device, whatever they tell besides.
ON_DEVICE = r"^((concurrent_)?kernel|(gpu_)?mem(cpy|set)|gpu_user_annotation)$|_ccp_events$"
