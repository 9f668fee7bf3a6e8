"""Units in headings: `time_s` is a name in code, `time (s)` one for people."""

from __future__ import annotations

#: ending of a name -> unit; longer ones first.
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
#: Names that say their unit nowhere.
NAMED = {
    "batch_size": "batch size (sequence)",
    "arithmetic_intensity": "arithmetic intensity (FLOP/byte)",
    "prefill_mfu": "prefill MFU (fraction)",
    "decode_mbu": "decode MBU (fraction)",
}


def heading(name: str) -> str:
    """`prefill_traffic_bytes` -> `prefill traffic (byte)`; names without a unit with blanks for underscores."""
    if name in NAMED:
        return NAMED[name]
    stem, dot, part = name.partition(".")
    for ending, unit in UNITS:
        if stem.endswith(f"_{ending}") or stem == ending:
            known = stem.removesuffix(ending).strip("_").replace("_", " ")
            return " ".join(word for word in (known, part.replace("_", " "), f"({unit})") if word)
    return name.replace("_", " ").replace(".", " ") if dot else name.replace("_", " ")
