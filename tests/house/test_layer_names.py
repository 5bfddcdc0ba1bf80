from __future__ import annotations

import polars as pl
import pytest

from tracekit.layer_names import ends, is_root, layer_label, span


@pytest.mark.parametrize(
    ("layers", "name"),
    [
        (["layers.2"], "layers.2"),
        ([""], ""),
        (["layers.2", "layers.3"], "layers.2..layers.3"),
        (["", "layers.0", "layers.1"], "(root)..layers.1"),
        (["layers.0", ""], "layers.0..(root)"),
    ],
)
def test_a_span_is_named_after_its_ends(layers, name):
    assert span(layers) == name
    assert [is_root(end) for end in ends(name)] == [layer == "" for layer in dict.fromkeys((layers[0], layers[-1]))]


def test_the_root_and_the_unknown_layer_have_labels():
    frame = pl.DataFrame({"layer": ["", None, "layers.0", "(root)..layers.3"]})
    assert frame.select(layer_label().alias("label"))["label"].to_list() == [
        "(root)",
        "(no layer)",
        "layers.0",
        "(root)..layers.3",
    ]
