"""What fits: the search for the largest batch and the edits, on a made-up need; and once on a real step."""

from __future__ import annotations

import polars as pl
import pytest
from fakes import SMALL, manifest_of

from tracekit import cli
from tracekit.errors import UsageError
from tracekit.plan.footprint import fitting
from tracekit.plan.footprint.peak import PEAK_SCHEMA


@pytest.fixture
def needs(monkeypatch):
    """Makes a step of batch b reserve `fixed / ranks + each * b` bytes, half of `each` with full checkpointing."""

    def made(fixed: int, each: int) -> None:
        def planned(manifest, model):
            share = {"full": 2, "selective-op": 1}.get(manifest.options.get("activation_checkpointing"), 0)
            batch = manifest.options["batch_size"]
            total = fixed // manifest.world_size + each * batch * (4 - share) // 4
            return pl.DataFrame([("total", total, total, total - 1, total + 1)], PEAK_SCHEMA, orient="row")

        monkeypatch.setattr(fitting, "planned", planned)
        monkeypatch.setattr(fitting, "can_run", lambda manifest, model: True)

    return made


def table(capacity, **options):
    made = manifest_of("fsdp2", SMALL, options={"batch_size": 4, **options})
    return fitting.fitting(made, "nano", capacity, lambda line: None)


@pytest.mark.parametrize(
    ("capacity", "asked", "largest"), [(10_000, "yes", 49), (601, "yes", 4), (600, "maybe", None), (450, "no", 2)]
)
def test_the_largest_batch_is_the_last_that_fits_whole(needs, capacity, asked, largest):
    needs(fixed=0 if largest == 49 else 400, each=100 if largest != 49 else 200)
    rows = table(capacity)
    assert rows["fits"][0] == asked
    found = rows.filter(edit=fitting.LARGEST)["batch_size"].to_list()
    if largest is None:
        # 200 and 3 x 100 bytes, and 1 more that is not sure.
        assert found == [3]
    else:
        assert found == [largest]


def test_edits_change_one_thing_at_a_time(needs):
    needs(fixed=4000, each=100)
    rows = table(1500)
    assert rows["edit"].to_list() == [
        *("as asked", "activation_checkpointing=selective-op", "activation_checkpointing=full"),
        *("dp_shard=4", "dp_shard=8", "dp_shard=16"),
    ]
    assert rows["fits"].to_list() == ["no", "no", "no", "yes", "yes", "yes"]
    assert rows["num_ranks"].to_list() == [2, 2, 2, 4, 8, 16]
    assert fitting.first_change(rows) == "dp_shard=4"
    assert fitting.first_change(table(1)) is None


def test_a_lower_stage_may_become_fsdp2(needs):
    needs(fixed=0, each=1)
    made = manifest_of("ddp", SMALL, options={"batch_size": 1, "bucket_mb": 25.0})
    assert "strategy fsdp2" in fitting.fitting(made, "nano", 10**6, lambda line: None)["edit"].to_list()


@pytest.mark.parametrize(("text", "nbytes"), [("80GB", 80 * 10**9), ("1.5 GiB", 3 * 2**29), ("512mib", 2**29)])
def test_sizes_are_read(text, nbytes):
    assert fitting.parse_size(text) == nbytes


@pytest.mark.parametrize("text", ["80", "GB", "80 bananas", "0GB", "-1GB"])
def test_other_sizes_are_refused(text):
    with pytest.raises(UsageError, match="is no size of memory: give one as 80GB or 79GiB"):
        fitting.parse_size(text)


def test_what_cannot_be_run_is_refused(capfd):
    asked = ["plan", "--strategy", "fsdp2-graph", "--mesh", "2", "--model", "nano", "--fit", "1GB"]
    assert cli.run(asked) == 2
    assert "cannot be run in one process to be measured" in capfd.readouterr().err
    assert cli.run(["plan", "--strategy", "fsdp2", "--mesh", "2", "--params-from", "x", "--fit", "1GB"]) == 2


@pytest.mark.slow
def test_a_real_step_fits_or_does_not(capfd):
    pytest.importorskip("torch", reason="torch is not installed: it runs torch's own code")
    asked = ["plan", "--strategy", "fsdp2", "--mesh", "2", "--model", "nano", "--seq-len", "16", "--fit", "24MiB"]
    assert cli.run([*asked, "--format", "csv"]) == 0
    out = capfd.readouterr().out.splitlines()
    assert out[0].startswith("edit,batch_size,num_ranks,live_bytes,reserved_bytes")
    assert out[1].startswith("as asked,4,2,")
