"""What the sentences on volume claim, counted anew from the rows of collectives and the manifest, in plain Python.

Nothing of the ledger is used: each claim has a rule here. A sentence on volume without a rule is a complaint, too, so
that no new claim goes unchecked.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict

from volume_facts import PASSES, Facts
from volume_reasons import CLAUSES

from tracekit.plan import plan

STAGE = {
    "ddp": 0, "zero1": 1, "zero1-deepspeed": 1, "zero2": 2, "zero2-fsdp1": 2, "zero2-fsdp2": 2,
    "zero3-deepspeed": 3, "fsdp1": 3, "fsdp2": 3, "hsdp": 3, "fsdp2-tp": 3, "fsdp2-graph": 3,
}  # fmt: skip
TIMES = {0: 2, 1: 2, 2: 2, 3: 3}
BY_KIND = {
    0: {"all_reduce": 2},
    1: {"reduce_scatter": 1, "all_gather": 1},
    2: {"reduce_scatter": 1, "all_gather": 1},
    3: {"all_gather": 2, "reduce_scatter": 1},
}
# Two decimals are told.
NEARLY = 0.005 + 1e-9
NUMBER = r"([+-]?[\d.]+)Ψ"


def complaints(run, told):
    """What is not so, or has no rule, among these sentences; nothing where all is true."""
    facts = Facts(run)
    return [wrong for sentence in told for rule, check in RULES if (match := re.match(rule, sentence))
            for wrong in check(facts, match, sentence)]  # fmt: skip


def _moved(facts, match, sentence):
    totals = facts.totals()
    low, high = float(match[1]), float(match[2] or match[1])
    if abs(min(totals) - low) > NEARLY or abs(max(totals) - high) > NEARLY:
        yield f"{min(totals):.3f}Ψ to {max(totals):.3f}Ψ moved: {sentence}"
    rest = sentence[match.end() :].rpartition("; ")[0]
    yield from (f"{wrong}: {sentence}" for wrong in _rest(facts, rest, totals))


def _rest(facts, rest, totals):
    """Complaints about what is said of a volume and the closed form."""
    for rule, check in COMPARISONS:
        if found := re.fullmatch(rule, rest):
            yield from check(facts, found, totals)
            return
    yield f"no rule for {rest!r}"


def _times(facts):
    return TIMES.get(STAGE.get(facts.manifest.strategy))


def _closed_form(facts, found, totals):
    if any(abs(total - _times(facts)) > NEARLY for total in totals):
        yield "not the closed form's total"
    for (_, kind), numel in facts.numel(facts.rows, ("kind",)).items():
        wanted = BY_KIND[STAGE[facts.manifest.strategy]].get(kind, 0)
        if abs(numel / facts.psi - wanted) > 2 * NEARLY:
            yield f"{kind} {numel / facts.psi:.3f}Ψ is not the closed form's"


def _left_over(facts, found, totals):
    planned = sum(facts.planned(()).values()) / facts.psi
    if abs(planned - float(found[1])) > 2 * NEARLY and not facts.beside():
        yield f"the plan says {planned:.3f}Ψ"
    if not any(abs(total - float(found[1]) - float(found[2])) <= 2 * NEARLY for total in totals):
        yield "plan and rest do not add up"


def _equal_although(facts, found, totals):
    if float(found[1]) != _times(facts) or any(abs(total - _times(facts)) > NEARLY for total in totals):
        yield f"not {_times(facts)}Ψ"
    yield from _clauses(facts, found[2])


def _off_because(facts, found, totals):
    off = (float(found[1]) if found[2] == "more" else -float(found[1])) + int(found[3])
    if int(found[3]) != _times(facts) or not any(abs(total - off) <= NEARLY for total in totals):
        yield "the difference is another"
    yield from _clauses(facts, found[4])


def _is_not(facts, found, totals):
    if int(found[1]) != _times(facts) or all(abs(total - _times(facts)) <= NEARLY for total in totals):
        yield "it is the closed form's"
    yield from _clauses(facts, found[2] or "")


def _by_chance(facts, found, totals):
    if int(found[1]) != _times(facts) or _parts_agree(facts):
        yield "the parts are the plan's"


COMPARISONS = (
    (r"; what it should move is unknown| at least; how that stands .*|", lambda *_: ()),
    (r", as the closed form says", _closed_form),
    (rf", where its plan says {NUMBER}: {NUMBER} stay unexplained", _left_over),
    (rf", which is {NUMBER} although (.+)", _equal_although),
    (r", ([\d.]+)Ψ (more|less) than (\d)Ψ because (.+)", _off_because),
    (r", not (\d)Ψ(?:: (.+))?", _is_not),
    (r", which is the plan's total and not its parts \((\d)Ψ in the closed form\)", _by_chance),
)


def _clauses(facts, text):
    for clause in re.split(r", although | and (?!not reduced)", text) if text else ():
        if clause not in CLAUSES:
            yield f"no rule for {clause!r}"
        elif not CLAUSES[clause](facts):
            yield f"not so: {clause}"
    if text and not _parts_agree(facts):
        yield "reasons of a plan that the trace does not follow"


def _parts_agree(facts):
    """Whether each kind and axis of each step has the plan's elements, but for calls beside forward and backward."""
    planned = facts.planned(("kind", "axis"))
    inside = [row for row in facts.rows if row["phase"] in ("forward", "backward")]
    whole, least = (facts.numel(rows, ("kind", "axis")) for rows in (facts.rows, inside))
    kinds = {*planned, *(key[1:] for key in whole)}
    return all(
        least[(step, *kind)] <= planned[kind] <= whole[(step, *kind)] for step in facts.steps for kind in kinds
    )  # fmt: skip


def _disagree(facts, match, sentence):
    planned, whole = facts.planned(("kind", "axis")), facts.numel(facts.rows, ("kind", "axis"))
    for kind, axis, psi, side in re.findall(r"(\w+)(?: over (\w+))? ([\d.]+)Ψ (more|less) than planned", match[1]):
        wanted = float(psi) if side == "more" else -float(psi)
        off = [(whole[(step, kind, axis or None)] - planned[(kind, axis or None)]) / facts.psi for step in facts.steps]
        # Calls of the loop itself, beside forward and backward, are no part of what plan and trace disagree on.
        own = facts.a_step([r for r in facts.beside() if r["kind"] == kind]) * PASSES.get(kind, 1) / facts.psi
        if not any(wanted - NEARLY <= one <= wanted + own + NEARLY for one in off):
            yield f"{kind} over {axis} is {off}Ψ off: {sentence}"


def _counted(facts, match, sentence):
    kind = {"Gathered": "all_gather", "Reduced": "reduce_scatter"}[match[1]]
    planned = Counter(row["layer"] for row in plan(facts.manifest).to_dicts() if row["kind"] == kind)
    found = Counter((row["rank"], row["step"], row["layer"]) for row in facts.some(kind))
    for first, last, times, expected in re.findall(r"(?:(\S+) to )?(\S+) (\d+) times, planned (\d+)", match[2]):
        for name in filter(None, (first, last)):
            layer = "" if name == "(root)" else name
            if planned[layer] != int(expected) or int(times) not in {found[(*step, layer)] for step in facts.steps}:
                yield f"{name} is not {match[1].lower()} {times} times, or not planned {expected}: {sentence}"
    observed = facts.manifest.observed
    if "forwards without a backward" in sentence and not any(step.other_forwards for step in observed):
        yield f"the recorder saw no such forward: {sentence}"
    if re.search("forwards? with a backward", sentence) and {facts.manifest.micro_batches} == {
        s.micro_batches for s in observed
    }:
        yield f"the recorder saw what the plan has: {sentence}"


def _own(facts, match, sentence):
    beside = Counter(row["kind"] for row in facts.beside())
    for kind, each in re.findall(r"(\w+) ([\d.]+)", match[1]):
        if float(each) * len(facts.steps) > beside[kind] + 0.5:
            yield f"{kind} outside forward and backward: {beside[kind]} in all: {sentence}"


def _bytes_moved(facts, match, sentence):
    calls = Counter((row["rank"], row["kind"]) for row in facts.all_rows)
    for kind, number in re.findall(r"(\w+) (?:[\d.]+ \w+|of unknown size) in (\d+) calls?", match[1]):
        whole = sum(n for (_, k), n in calls.items() if k == kind)
        if int(number) not in {whole, *(n for (_, k), n in calls.items() if k == kind)}:
            yield f"{kind} has {whole} calls: {sentence}"


def _ran(facts, match, sentence):
    pairs = {(row["kind"], row["backend_kind"]) for row in facts.all_rows}
    for kind, did in re.findall(r"(\w+) as (\w+)", match[1]):
        if (kind, did) not in pairs:
            yield f"{kind} was not run as {did}: {sentence}"


def _sizes(facts, match, sentence):
    known = sum(row["payload_bytes"] is not None for row in facts.all_rows)
    if (known, len(facts.all_rows)) != (int(match[1]), int(match[2])):
        yield f"{known} of {len(facts.all_rows)} are known: {sentence}"


# The kinds that a run must have to look like a strategy.
KINDS_OF = {
    "DDP": {"all_reduce"}, "ZeRO-1": {"all_reduce", "broadcast"}, "DeepSpeed's stage 1": {"all_gather"},
    "DeepSpeed's stage 2": {"all_gather"}, "DeepSpeed's stage 3": {"all_gather", "reduce_scatter"},
    "FSDP1": {"all_gather", "reduce_scatter"}, "FSDP2": {"all_gather", "reduce_scatter"},
    "FSDP1 with SHARD_GRAD_OP": {"all_gather", "reduce_scatter"},
    "FSDP2 without resharding": {"all_gather", "reduce_scatter"},
    "HSDP": {"all_gather", "reduce_scatter", "all_reduce"},
    "FSDP2 with tensor parallelism": {"all_gather", "reduce_scatter", "all_reduce"},
}  # fmt: skip


def _looks(facts, match, sentence):
    kinds = {row["kind"] for row in facts.rows}
    for name in re.split(r", | or ", match[1]):
        if name not in KINDS_OF or not KINDS_OF[name] <= kinds:
            yield f"{name} has other kinds than {sorted(kinds)}: {sentence}"


def _bytes_differ(facts, match, sentence):
    if not _parts_agree(facts):
        yield f"the elements are not as planned: {sentence}"
    wanted = defaultdict(int)
    for row in plan(facts.manifest).to_dicts():
        wanted[row["kind"]] += row["payload_bytes"]
    held = Counter()
    for row in facts.rows:
        held[row["kind"]] += row["payload_bytes"] or 0
    for kind, side in re.findall(r"(\w+) [\d.]+ \w+ (more|less)", match[1]):
        off = held[kind] - wanted[kind] * len(facts.steps)
        if not off or (off > 0) != (side == "more"):
            yield f"{kind} is {off} B off: {sentence}"
    for kind, types, others in re.findall(r"(\w+) [\d.]+ \w+ \w+ \(sent as (.+?)(?: and not as (.+?))?\)", match[1]):
        sent = {row["dtype"] for row in facts.rows if row["kind"] == kind}
        expected = {row["dtype"] for row in plan(facts.manifest).to_dicts() if row["kind"] == kind}
        if not set(types.split(" and ")) <= sent - expected or not set(filter(None, others.split(" or "))) <= expected:
            yield f"{kind} is sent as {sent} and planned as {expected}: {sentence}"


RULES = (
    (rf".*? moved {NUMBER}(?: to {NUMBER})? a step", _moved),
    (r"The plan and the trace disagree: (.+?)(?:; it looks like|\. |\.$)", _disagree),
    (r".*it looks like (.+?)\.(?: |$)", _looks),
    (r".*this looks like (.+?)\.(?: |$)", _looks),
    (r".*(Gathered) (.+?): ", _counted),
    (r".*(Reduced) (.+?): ", _counted),
    (r"Beside the strategy .+? a step: (.+?) \(", _own),
    (r"The elements are as planned, the bytes are not: (.+?) a step", _bytes_differ),
    (r"(?:Each rank|The \d+ ranks together) moved, in .+?: (.+);", _bytes_moved),
    (r"\S+(?: backend)? ran (\w+ as \w+(?: and \w+ as \w+)*)", _ran),
    (r"Sizes are known for (\d+) of (\d+) collectives", _sizes),
)
