from __future__ import annotations

import pytest

from tracekit.dtypes import DTYPES, ITEM_SIZES, dtype_of


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("float", "float32"),
        ("Float", "float32"),
        ("c10::BFloat16", "bfloat16"),
        ("long int", "int64"),
        ("Long", "int64"),
        ("unsigned char", "uint8"),
        ("Byte", "uint8"),
        ("UInt16", "uint16"),
        ("unsigned int", "uint32"),
        ("unsigned long", "uint64"),
        ("Float8_e4m3fn", "float8_e4m3fn"),
        ("c10::Float8_e5m2fnuz", "float8_e5m2fnuz"),
        ("Float8_e8m0fnu", "float8_e8m0fnu"),
        ("ComplexFloat", "complex64"),
        ("c10::complex<double>", "complex128"),
        ("c10::complex<c10::Half>", "complex32"),
        ("QInt8", None),
        ("", None),
        (None, None),
    ],
)
def test_spellings_of_a_trace(spelling, name):
    assert dtype_of(spelling) == name


def test_sizes_are_those_of_torch():
    torch = pytest.importorskip("torch", reason="needs torch to compare with")
    types = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    sizes = {str(value).removeprefix("torch."): value.itemsize for value in types}
    known = {name: size for name, size in sizes.items() if name in ITEM_SIZES}
    assert known == {name: size for name, size in ITEM_SIZES.items() if name in sizes}
    assert len(known) > 15
    assert set(sizes) <= DTYPES
