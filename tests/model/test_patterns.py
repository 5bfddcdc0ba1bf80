from __future__ import annotations

from pathlib import Path

import pytest
from kineto import GEMM, kernel, span, step, write

import tracekit
from tracekit import cli
from tracekit.analyzers.overlap import overlap
from tracekit.analyzers.unclassified import unclassified
from tracekit.errors import UsageError
from tracekit.model.patterns import Pattern
from tracekit.report.sentences import sentences

RING = kernel("my_ring_reduce<4>", 1060, 100, stream=20, correlation=2)
ODD = span("mystery", 1120, 10, cat="mtia_ccp_events", tid=3, pid=0)


def test_a_users_pattern_makes_a_kernel_communication(tmp_path: Path) -> None:
    trace = write(tmp_path / "r.json", [step(5, 1000, 200), *GEMM, *RING])
    assert tracekit.open(trace).work["class"].to_list() == ["compute", "compute"]
    (tmp_path / "tracekit-patterns.toml").write_text('[[communication]]\nname = "^my_ring"\nkind = "all_reduce"\n')
    run = tracekit.open(trace)
    assert run.work["class"].to_list() == ["compute", "comm"]
    assert run.collectives.select("kind", "kind_from", "payload_bytes", "overlapped_ns", "exposed_ns").rows() == [
        ("all_reduce", "name", None, 50_000, 50_000)
    ]


def test_patterns_are_given_or_named_or_lie_beside_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = write(tmp_path / "run" / "cycle0" / "r.json", [step(5, 1000, 200), *RING])
    text = '[[communication]]\nname = "ring"\nkind = "{}"\n'
    kinds = {"above.toml": "reduce", "named.toml": "broadcast", "given.toml": "all_gather"}
    files = {name: tmp_path / name for name in kinds}
    for name, path in files.items():
        path.write_text(text.format(kinds[name]))

    def kind(**options) -> list[str]:
        return tracekit.open(trace, **options).collectives["kind"].to_list()

    assert kind() == []
    files["above.toml"].rename(tmp_path / "run" / "tracekit-patterns.toml")
    assert kind() == ["reduce"]
    monkeypatch.setenv("TRACEKIT_PATTERNS", str(files["named.toml"]))
    assert kind() == ["broadcast"]
    assert kind(patterns=files["given.toml"]) == ["all_gather"]
    assert kind(patterns=[Pattern("^my_ring", "all_reduce")]) == ["all_reduce"]
    assert kind(patterns=[]) == []


def test_the_command_takes_a_file_of_patterns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = write(tmp_path / "r.json", [step(5, 1000, 200), *RING])
    path = tmp_path / "mine.toml"
    path.write_text('[[communication]]\nname = "^my_ring"\nkind = "reduce"\n')
    command = ["show", "collectives", str(trace), "--columns", "kind", "--format", "csv", "-o", "-"]
    assert cli.run([*command, "--patterns", str(path)]) == 0
    assert capsys.readouterr().out.splitlines() == ["kind", "reduce"]
    assert cli.run([*command, "--patterns", str(tmp_path / "nowhere.toml")]) == 2
    assert "nowhere.toml: not a file of patterns" in capsys.readouterr().err


def test_the_working_folder_does_not_decide_what_is_communication(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = write(tmp_path / "run" / "rank0" / "r.json", [step(5, 1000, 200), *RING])
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "tracekit-patterns.toml").write_text('[[communication]]\nname = "ring"\n')
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert tracekit.open(trace).work["class"].to_list() == ["compute"]


@pytest.mark.parametrize("pattern", [Pattern("("), Pattern("a", "gossip"), Pattern(7)])  # type: ignore[arg-type]
def test_a_given_pattern_that_is_none(tmp_path: Path, pattern: Pattern) -> None:
    trace = write(tmp_path / "r.json", [step(5, 1000, 200)])
    with pytest.raises(UsageError, match="patterns=: "):
        tracekit.open(trace, patterns=[pattern])


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[[communication]]\nname = 7\n", "needs text as its name and a kind"),
        ('[[communication]]\nname = "a"\nkind = "gossip"\n', "needs text as its name and a kind"),
        ('[[communication]]\nname = "("\n', "not a regular expression"),
        ("communication = 3\n", "not a file of patterns"),
        ("[[communication]\n", "not a file of patterns"),
    ],
)
def test_a_file_of_patterns_that_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, sentence: str
) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    monkeypatch.setenv("TRACEKIT_PATTERNS", str(path))
    with pytest.raises(UsageError, match=sentence) as caught:
        tracekit.open(write(tmp_path / "r.json", [step(5, 1000, 200), *RING]))
    assert str(path) in str(caught.value)


def test_a_named_file_that_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEKIT_PATTERNS", str(tmp_path / "nowhere.toml"))
    with pytest.raises(UsageError, match="not a file of patterns"):
        tracekit.open(write(tmp_path / "r.json", [step(5, 1000, 200), *RING]))


def test_guesses_and_unknown_rows_are_listed_with_their_share(tmp_path: Path) -> None:
    gather = kernel("ncclDevKernel_AllGather_RING_LL()", 1200, 80, stream=20, correlation=3)
    run = tracekit.open(write(tmp_path / "r.json", [step(5, 1000, 400), *GEMM, *gather, ODD]))
    table = unclassified(run)
    assert table.select("what", "name", "num_rows", "dur_ns").rows() == [
        ("collective known by its name alone", "ncclDevKernel_AllGather_RING_LL()", 1, 80_000),
        ("device row of unknown kind", "mystery", 1, 10_000),
    ]
    assert table["share"].round(6).to_list() == [round(80 / 190, 6), round(10 / 190, 6)]


def test_nothing_unknown(tmp_path: Path) -> None:
    assert unclassified(tracekit.open(write(tmp_path / "r.json", [step(5, 1000, 200), *GEMM]))).height == 0
    assert unclassified(tracekit.open(write(tmp_path / "s.json", [step(5, 1000, 200)]))).height == 0


def test_annotations_without_kernels_are_not_zero_communication(tmp_path: Path) -> None:
    call = span("c10d::allreduce_", 1010, 20)
    note = span("nccl:all_reduce", 1012, 10, cat="user_annotation", Input_Dims=[[64]], Input_type=["float"])
    run = tracekit.open(write(tmp_path / "r.json", [step(5, 1000, 200), call, note, span("aten::mm", 1100, 50)]))
    # The device was not recorded, so the CPU's own operators are no measure of its compute.
    assert run.work.height == 0
    assert overlap(run).select("num_collectives", "comm_ns", "exposed_ns", "overlap_ratio").rows() == [
        (1, None, None, None)
    ]
    assert "was the device's activity recorded" in sentences(run)[0]
