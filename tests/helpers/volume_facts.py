"""Counts of the collectives of a run's whole steps, in plain Python, and the plan's sums beside them."""

from __future__ import annotations

from collections import defaultdict

from tracekit.plan import plan

PASSES = {"all_reduce": 2}


class Facts:
    """The rows of whole steps, and what is counted of them."""

    def __init__(self, run):
        self.run, self.manifest = run, run.manifest
        self.steps = {(s["rank"], s["step"]) for s in run.steps.to_dicts() if s["complete"] and s["step"] is not None}
        self.all_rows = run.collectives.to_dicts()
        self.rows = [row for row in self.all_rows if (row["rank"], row["step"]) in self.steps]
        self.unknown = {(row["rank"], row["step"]) for row in self.rows if row["payload_bytes"] is None}
        self.psi = run.psi

    def numel(self, rows, by=()):
        """Elements × passes of each step, or of each step and group."""
        sums = defaultdict(int)
        for row in rows:
            weight = PASSES.get(row["kind"], 1) * (row["payload_numel"] or 0)
            sums[(row["rank"], row["step"]), *(row[name] for name in by)] += weight
        return sums

    def totals(self):
        """Ψ that each step moved, of those whose sizes are known."""
        sums = self.numel(self.rows)
        known = [step for step in self.steps if step not in self.unknown] or list(self.steps)
        return [sums[(step,)] / self.psi for step in known]

    def planned(self, by):
        sums = defaultdict(int)
        for row in plan(self.manifest).to_dicts():
            sums[tuple(row[name] for name in by)] += row["payload_numel"] * PASSES.get(row["kind"], 1)
        return sums

    def some(self, kind, phases=None, axis=None, layer=None):
        """Calls of a kind, in these phases, on this axis, of this layer."""
        return [
            row for row in self.rows
            if row["kind"] == kind
            and (phases is None or row["phase"] in phases)
            and (axis is None or row["axis"] == axis)
            and (layer is None or row["layer"] == layer)
        ]  # fmt: skip

    def beside(self):
        """Calls outside forward and backward."""
        return [row for row in self.rows if row["phase"] not in ("forward", "backward")]

    def a_step(self, rows):
        return sum(row["payload_numel"] or 0 for row in rows) / max(len(self.steps), 1)

    def axis(self, name):
        return next((axis.size for axis in self.manifest.mesh if axis.axis == name), 1)
