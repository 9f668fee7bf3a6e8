"""Headings with units for people: `time_s` becomes `time (s)`."""

from __future__ import annotations

#: (suffix of a name, unit), longer suffixes first.
UNITS = (
    ("bytes_per_s", "byte/s"),
    ("flops_per_s", "FLOP/s"),
    ("ops_per_s", "1/s"),
    ("tokens_per_s_per_user", "token/s per user"),
    ("tokens_per_s_per_device", "token/s per device"),
    ("tokens_per_s", "token/s"),
    ("flops_per_byte", "FLOP/byte"),
    ("bytes", "byte"),
    ("flops", "FLOP"),
    ("hz", "Hz"),
    ("len", "token"),
    ("w", "W"),
    ("s", "s"),
)
#: Headings of names without a unit suffix.
NAMED = {
    "batch_size": "batch size (sequence)",
    "arithmetic_intensity": "arithmetic intensity (FLOP/byte)",
    "prefill_mfu": "prefill MFU (fraction)",
    "decode_mbu": "decode MBU (fraction)",
}


def heading(name: str) -> str:
    """Returns `prefill traffic (byte)` for `prefill_traffic_bytes`; without a unit, underscores become blanks."""
    if name in NAMED:
        return NAMED[name]
    stem, dot, part = name.partition(".")
    for ending, unit in UNITS:
        if stem.endswith(f"_{ending}") or stem == ending:
            known = stem.removesuffix(ending).strip("_").replace("_", " ")
            return " ".join(word for word in (known, part.replace("_", " "), f"({unit})") if word)
    return name.replace("_", " ").replace(".", " ") if dot else name.replace("_", " ")
