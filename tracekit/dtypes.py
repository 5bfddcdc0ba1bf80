"""torch's dtypes: the bytes of an element, and how C++ and the profiler spell them in a trace."""

from __future__ import annotations

import re

# name in torch: bytes of an element, then its spellings in a trace by letters and digits alone: those of
# c10::ScalarType ("Float", "BFloat16", "ComplexFloat") and those of C++ ("long int", "c10::complex<float>").
_TABLE: dict[str, tuple[int, str]] = {
    "float64": (8, "double"),
    "float32": (4, "float"),
    "bfloat16": (2, "bfloat16 c10bfloat16"),
    "float16": (2, "half c10half"),
    "float8_e4m3fn": (1, "float8e4m3fn c10float8e4m3fn"),
    "float8_e4m3fnuz": (1, "float8e4m3fnuz c10float8e4m3fnuz"),
    "float8_e5m2": (1, "float8e5m2 c10float8e5m2"),
    "float8_e5m2fnuz": (1, "float8e5m2fnuz c10float8e5m2fnuz"),
    "float8_e8m0fnu": (1, "float8e8m0fnu c10float8e8m0fnu"),
    "int64": (8, "long longint longlong"),
    "int32": (4, "int"),
    "int16": (2, "short shortint"),
    "int8": (1, "char signedchar"),
    "uint64": (8, "uint64 unsignedlong unsignedlongint unsignedlonglong"),
    "uint32": (4, "uint32 unsignedint"),
    "uint16": (2, "uint16 unsignedshort unsignedshortint"),
    "uint8": (1, "byte unsignedchar"),
    "bool": (1, "bool"),
    "complex128": (16, "complexdouble c10complexdouble"),
    "complex64": (8, "complexfloat c10complexfloat"),
    "complex32": (4, "complexhalf c10complexhalf c10complexc10half"),
}
# Packed, quantized and sub-byte types: torch has them, and an element has no size of its own in whole bytes.
_UNSIZED = (
    "float4_e2m1fn_x2",
    *("quint8", "qint8", "qint32", "quint4x2", "quint2x4", "bits1x8", "bits2x4", "bits4x2", "bits8", "bits16"),
    *(f"{sign}int{bits}" for sign in ("u", "") for bits in range(1, 8)),
)

# Bytes of an element, by torch's name; a dtype that is not here has no known size.
ITEM_SIZES = {name: size for name, (size, _) in _TABLE.items()}
# All of torch's dtypes, of which only some can be planned with.
DTYPES = frozenset([*ITEM_SIZES, *_UNSIZED])

_NAMES = {spelling: name for name, (_, spellings) in _TABLE.items() for spelling in spellings.split()}


def dtype_of(spelling: str | None) -> str | None:
    """Return torch's name for a dtype in any spelling of a trace; None where unknown."""
    return _NAMES.get(re.sub(r"[^a-z0-9]", "", spelling.lower())) if spelling else None
