"""The packages of the wheel: tracekit, and the folder runners/ as its `tracekit/_runners`, to be started by path."""

from __future__ import annotations

from setuptools import find_packages, setup

RUNNERS = "tracekit._runners"

setup(
    packages=[
        *find_packages(include=["tracekit", "tracekit.*"]),
        RUNNERS,
        *(f"{RUNNERS}.{name}" for name in find_packages("runners")),
    ],
    package_dir={RUNNERS: "runners"},
)
