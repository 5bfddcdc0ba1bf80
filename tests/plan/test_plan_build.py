from __future__ import annotations

import json
import struct

import pytest

from tracekit.errors import InputError, UsageError
from tracekit.plan.build import manifest, mesh_of, model_buffers, model_parameters, parameters_from
from tracekit.reference_models import SIZES, Size, parameter_shapes


@pytest.mark.parametrize("name", ["nano", "tiny", "odd"])
@pytest.mark.parametrize("tied", [False, True])
def test_shapes_are_those_of_the_real_model(name, tied):
    pytest.importorskip("torch", reason="torch is not installed: it runs torch's own code")
    from dataclasses import replace

    import torch

    from runners.models import Decoder

    size = replace(SIZES[name], tied=tied)
    with torch.device("meta"):
        model = Decoder(size)
    real = [(n, list(p.shape)) for n, p in model.named_parameters(remove_duplicate=False)]
    assert parameter_shapes(size) == real
    planned = model_parameters(size)
    assert sum(p.numel for p in planned if p.tied_to is None) == size.num_params()
    assert {p.layer for p in planned} == {"", *(f"layers.{i}" for i in range(size.layers))}
    assert [(b.name, b.shape) for b in model_buffers(size)] == [(n, list(b.shape)) for n, b in model.named_buffers()]


def test_the_manifest_counts_parameters_once():
    size = Size(dim=4, layers=1, heads=1, kv_heads=1, hidden=8, vocab=16, tied=True)
    made = manifest("fsdp2", model_parameters(size), mesh={"dp_replicate": 2, "dp_shard": 3}, reshard=True)
    assert (made.psi, made.world_size) == (size.num_params(), 6)
    assert [(unit.name, unit.reshard_after_forward) for unit in made.units] == [("layers.0", True), ("", True)]


def safetensors(header) -> bytes:
    data = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(data)) + data


def test_the_header_of_a_safetensors_file_gives_names_shapes_and_units(tmp_path):
    path = tmp_path / "model.safetensors"
    tensor = {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}
    names = ["model.embed_tokens.weight", "model.layers.11.mlp.experts.3.w1.weight", "lm_head.weight"]
    path.write_bytes(safetensors({"__metadata__": {"format": "pt"}, **dict.fromkeys(names, tensor)}) + b"weights")
    found = [(p.name, p.layer, p.shape, p.dtype, p.numel) for p in parameters_from(path)]
    assert found == [
        (names[0], "", [2, 3], "bfloat16", 6),
        (names[1], "model.layers.11", [2, 3], "bfloat16", 6),
        (names[2], "", [2, 3], "bfloat16", 6),
    ]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"short",
        struct.pack("<Q", 10**12) + b"x",
        struct.pack("<Q", 50) + b"{}",
        safetensors(b"[]"),
        safetensors(b"not json"),
        safetensors({"w": {"dtype": "Q4", "shape": [1]}}),
        safetensors({"w": {"dtype": "F32", "shape": [-1]}}),
        safetensors({"w": {"dtype": "F32", "shape": [True]}}),
        safetensors({"w": 3}),
        b'{"format": 1}',
        b"{ nothing",
    ],
)
def test_a_file_that_lists_no_parameters_is_refused_in_one_sentence(tmp_path, data):
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"model\.safetensors: ") as caught:
        parameters_from(path)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        parameters_from(tmp_path / "none")


def test_meshes_are_ordered_and_checked():
    assert list(mesh_of(["dp_shard=4,dp_replicate=3"], "hsdp").items()) == [("dp_replicate", 3), ("dp_shard", 4)]
    assert mesh_of(["tp=2", "dp_shard=4"], "fsdp2-tp") == {"dp_shard": 4, "tp": 2}
    assert mesh_of(["dp_shard=4"], "hsdp") == {"dp_shard": 4}
    for wrong in ("cp=2", "dp_shard", "dp_shard=0", "dp_shard=x", "dp_shard=2,dp_shard=3"):
        with pytest.raises(UsageError, match="--mesh"):
            mesh_of([wrong], "fsdp2")


@pytest.mark.parametrize(
    ("strategy", "given", "axis"),
    [
        ("ddp", "dp_replicate=8", "dp_replicate"),
        ("ddp", "dp_shard=8", "dp_replicate"),
        ("zero1", "8", "dp_replicate"),
        ("zero2", "dp_replicate=8", "dp_shard"),
        ("fsdp2", "8", "dp_shard"),
    ],
)
def test_a_strategy_with_one_axis_has_its_ranks_on_it(strategy, given, axis):
    assert mesh_of([given], strategy) == {axis: 8}


def test_an_axis_that_a_strategy_has_not_is_refused_with_those_that_have_it():
    with pytest.raises(UsageError, match=r"--mesh: fsdp2 has dp_shard, not dp_shard and tp; fsdp2-tp have these"):
        mesh_of(["dp_shard=4,tp=2"], "fsdp2")
    with pytest.raises(UsageError, match="--mesh: ddp has dp_replicate, not tp"):
        mesh_of(["tp=2"], "ddp")
