"""The functions of the calls, and arguments that are no options of a run: models, chips, loads, limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from llmviewer.core import arguments
from llmviewer.language.option import whole

#: Call -> module of its function, imported when it is first asked for.
HOMES: Mapping[str, str] = {
    "analyze": "llmviewer.api.calls",
    "sweep": "llmviewer.api.calls",
    "compare": "llmviewer.api.calls",
    "crossover": "llmviewer.api.calls",
    "explain": "llmviewer.api.calls",
    "why": "llmviewer.planning.why",
    "advise": "llmviewer.planning.advise",
    "simulate": "llmviewer.simulation.call",
    "size": "llmviewer.planning.call",
    "require": "llmviewer.planning.require",
    "elasticity": "llmviewer.planning.elasticity",
    "diagnose": "llmviewer.calibrate.diagnosis.call",
}
#: Call -> options that its Python function takes as keywords beside those of `analyze`.
KEYWORDS: Mapping[str, tuple[str, ...]] = {
    "require": ("ttft", "tpot", "e2e", "tokens_per_s"),
    "diagnose": ("stage", "passes"),
    "advise": (),
    "elasticity": (),
    "explain": (),
}
_TEXT = {"type": "string"}


_SIDE = {
    "type": ["string", "object"],
    "description": (
        "A run: a line as typed after `llmviewer analyze` (llama-3.1-8b --hardware h100 --batch-size 8), or a mapping"
        " of the arguments of analyze with model and hardware."
    ),
}
_LIMIT = {"type": ["string", "number"], "description": "A limit: 2s (of the mean), or p99:80ms under a load."}
_SIZES = {"anyOf": [whole(1), {"type": "array", "items": whole(1), "minItems": 1}]}
#: Argument -> its schema, in every call that has it.
OWN: Mapping[str, Mapping[str, Any]] = {
    "model": {
        "type": ["string", "object"],
        "description": "A model: its name (llama-3.1-8b), a Hub id of the catalogue, or the fields of its config.json.",
    },
    "hardware": {
        "type": ["string", "object"],
        "description": "A chip: its name (h100-sxm, a100-80gb-sxm, mi300x), or the fields of a spec file.",
    },
    "number": {
        **_TEXT,
        "description": (
            "The number to explain: ttft_s, tpot_s, e2e_s, memory.total_bytes, memory.kv_cache_bytes,"
            " stages.decode.time_s, operators.NAME.time_s, operators.BLOCK.NAME.time_s."
        ),
    },
    "a": _SIDE,
    "b": _SIDE,
    "metric": {
        **_TEXT,
        "description": "A metric by its name: ttft_s, tpot_s, e2e_s; of some calls also output_tokens_per_s and more.",
    },
    "measured": {
        **_TEXT,
        "description": (
            f"Path of a recorded run: a profile ({arguments.RECORDERS}), or the result of a benchmark"
            f" ({arguments.BENCHMARKS})."
        ),
    },
    "stage": {**_TEXT, "enum": ["", "prefill", "decode"], "description": "The stage of a pass without marks."},
    "passes": {**whole(1), "description": "Forward passes that a table of kernels has."},
    "price": {
        "type": ["string", "array"],
        "items": _TEXT,
        "description": "Prices of your own in $ per GPU-hour: h100=2.10,h200=3.20.",
    },
    "vary": {
        "type": ["string", "array"],
        "items": _TEXT,
        "description": "Up to three figures of a chip: bandwidth, peak.bf16, capacity, l2_bandwidth, links.nvlink.",
    },
    "ttft": _LIMIT,
    "tpot": _LIMIT,
    "e2e": _LIMIT,
    "tokens_per_s": {"type": ["string", "number"], "description": "Tokens per second of one user to meet: 100."},
    "max_gpus": {**whole(1), "description": "Most devices."},
    "context": {**_SIZES, "description": "Context lengths in tokens."},
}
#: Call -> arguments whose meaning is another one there.
SPECIAL: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "sweep": {name: {**_SIZES, "description": f"{name}: a number or a list of them."} for name in (
        "batch_size", "input_len", "output_len")},
    "crossover": {"batch_size": {**_SIZES, "description": "Batch sizes of the map."}},
}  # fmt: skip


def function(call: str) -> Callable[..., Any]:
    """The Python function of a call, the same that `import llmviewer` offers."""
    found: Callable[..., Any] = getattr(import_module(HOMES[call]), call)
    return found


def described(call: str, name: str) -> Mapping[str, Any] | None:
    """The schema of an argument that is no option of a run; None for one that is."""
    if name in SPECIAL.get(call, {}):
        return SPECIAL[call][name]
    if call in ("simulate", "size"):
        found = _of_a_load(call, name)
        if found is not None:
            return found
    return OWN.get(name)


def _of_a_load(call: str, name: str) -> Mapping[str, Any] | None:
    """The schema of an option of a load or of a sizing; None for others."""
    from llmviewer.simulation.options import LOAD

    declared = LOAD
    if call == "size":
        from llmviewer.planning.options import SIZE

        declared = {**LOAD, **SIZE}
    return declared[name].schema() if name in declared else None
