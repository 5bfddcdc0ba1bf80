"""Hosts on one machine: each with a network, a host name, processes and an /etc/hosts of its own, links of one rate.

A host is the namespaces of one waiting process (unshare), joined to a bridge in a namespace of its own by a pair of
veth devices whose end in the host is shaped by tbf. Nothing in here has a name outside: a waiting process ends when the
pipe that it reads is closed, which the kernel does however this program ends, and its namespaces, devices and
everything that runs in them go with it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

TOOLS = ("ip", "tc", "unshare", "nsenter", "mount", "hostname")
MAX_HOSTS = 16
_RATE = re.compile(r"(\d+(?:\.\d+)?)(k|m|g)bit", re.IGNORECASE)
_FACTORS = {"k": 10**3, "m": 10**6, "g": 10**9}
# As much as a burst holds may pass at once, so it is small beside a collective and no less than a segment of TCP.
_BURST, _LATENCY = "256kb", "200ms"
_HUB = "ip link add bridge0 type bridge && ip link set bridge0 up && echo ready && exec cat"
_HOST = 'hostname "$1" && mount --bind "$2" /etc/hosts && ip link set lo up && echo ready && exec cat'


class LabError(RuntimeError):
    """The lab cannot be built here, or what ran in it failed; the text is one sentence."""


def bits_per_second(rate: str) -> int:
    """The rate of a link in bit/s from text as tc has it ("500mbit", "1gbit"). Raises ValueError for other text."""
    found = _RATE.fullmatch(rate.strip())
    bits = round(float(found[1]) * _FACTORS[found[2].lower()]) if found else 0
    if bits < 10**6:
        raise ValueError(f"{rate!r} is no rate of a link: write one of 1mbit or more, as in 500mbit or 1gbit")
    return bits


def refusal() -> str | None:
    """Why no lab can be built on this machine, in one sentence; None where it can be tried."""
    if sys.platform != "linux":
        return f"the lab needs Linux's network namespaces, and this is {sys.platform}: record it on a Linux machine"
    if os.geteuid() != 0:
        return "the lab needs root to make network namespaces: run it as root, or in a container with CAP_SYS_ADMIN"
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        return f"the lab needs {', '.join(missing)}: install the packages iproute2, util-linux and hostname"
    return None


class Hosts:
    """Hosts node0 … node(n−1), the address of host i being 10.77.0.(i+1), all links shaped to one rate both ways.

    Use it as a context: the hosts are gone when it is left, with all that runs in them.

    Raises:
        LabError: a tool or a right is missing, or the kernel lacks a part.
    """

    def __init__(self, num_hosts: int, rate: str) -> None:
        if not 1 <= num_hosts <= MAX_HOSTS:
            raise ValueError(f"{num_hosts} hosts: the lab holds 1 to {MAX_HOSTS}")
        self.rate_bits_s = bits_per_second(rate)
        self.names = [f"node{n}" for n in range(num_hosts)]
        self._waiting: list[int] = []
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        if reason := refusal():
            raise LabError(reason)
        try:
            self._build()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def command(self, host: int, arguments: Sequence[str]) -> list[str]:
        """The command line that runs these arguments on a host, with the files and the user of this machine."""
        place = f"/proc/{self._waiting[host]}/ns"
        # Processes of a host are those of the namespace that the waiting process made for its child.
        return [
            *("nsenter", f"--net={place}/net", f"--uts={place}/uts", f"--mount={place}/mnt"),
            *(f"--pid={place}/pid_for_children", f"--wdns={Path.cwd()}", "--", *arguments),
        ]

    def shape(self, rate: str) -> None:
        """Shapes the links anew, between two runs."""
        self.rate_bits_s = bits_per_second(rate)
        for host in range(len(self.names)):
            shaper = f"tbf rate {self.rate_bits_s}bit burst {_BURST} latency {_LATENCY}"
            _run(self.command(host, f"tc qdisc replace dev eth0 root {shaper}".split()))

    def _build(self) -> None:
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="lab-")))
        lines = ["127.0.0.1 localhost", *(f"{_address(n)} {name}" for n, name in enumerate(self.names))]
        (folder / "hosts").write_text("\n".join(lines) + "\n")
        hub = self._wait_in(["--net"], [_HUB])
        own = ["--net", "--uts", "--mount", "--pid", "--fork", "--mount-proc"]
        for n, name in enumerate(self.names):
            host = self._wait_in(own, [_HOST, "sh", name, str(folder / "hosts")])
            self._waiting.append(host)
            _run(f"ip link add port{n} netns {hub} type veth peer name eth0 netns {host}".split())
            _run(["nsenter", f"--net=/proc/{hub}/ns/net", *f"ip link set port{n} master bridge0 up".split()])
            _run(self.command(n, f"ip address add {_address(n)}/24 dev eth0".split()))
            _run(self.command(n, ["ip", "link", "set", "eth0", "up"]))
        self.shape(f"{self.rate_bits_s / 1000}kbit")

    def _wait_in(self, namespaces: list[str], script: list[str]) -> int:
        """The process that waits in new namespaces; it and they go when the stack is closed."""
        # A session of its own: an interrupt from the terminal reaches this program alone, which then takes all down.
        process = subprocess.Popen(
            [shutil.which("unshare") or "unshare", *namespaces, "sh", "-c", *script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._stack.callback(_end, process)
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            raise LabError(f"no namespace for a host: {_said(process.communicate()[1])}")
        return process.pid


def _address(host: int) -> str:
    return f"10.77.0.{host + 1}"


def _run(arguments: list[str]) -> None:
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LabError(f"`{' '.join(arguments)}` failed: {_said(done.stderr)}")


def _said(text: str) -> str:
    return " ".join(text.split()) or "it gave no reason"


def _end(process: subprocess.Popen[str]) -> None:
    """Lets the waiting process end, and waits until all in its namespaces has."""
    process.communicate()
