"""Constants of engine presets that are fitted, their start values and their bounds."""

from __future__ import annotations

from llmviewer.timing.engine_fit import CONSTANTS
from llmviewer.timing.engine_work import FACTORS

#: engine -> its fitted constants; all others are as in its file.
FREE: dict[str, tuple[str, ...]] = {
    "deepspeed-mii": ("eager", "step", "sequence", "attention"),
    "gpt-fast": ("gemm", "exchange"),
    "llama.cpp": ("step", "share", "integer_share", "prompt_attention"),
    "llama.cpp-2024": ("launch", "gemm", "unit_bytes", "share"),
    "mlx-lm": ("launch", "share"),
    "sglang": ("step", "sequence", "eager"),
    "trtllm": ("step", "sequence", "eager", "prompt"),
    "trtllm-cpp": ("step", "launch", "sequence", "group"),
    "vllm": ("step", "sequence", "eager", "prompt"),
    "vllm-v0": ("step", "group", "sequence", "eager"),
}
_OWN_KERNELS = ("step", "group", "sequence", "eager", "gemm", "attention", "exchange")
#: engine -> generations of chips on which it runs other kernels, or those and a backend -> its constants, fitted to
#: their rows alone.
FREE_OF_GENERATION: dict[str, dict[str, tuple[str, ...]]] = {
    "deepspeed-mii": {"gaudi2": _OWN_KERNELS},
    "llama.cpp": {
        "gb10": ("step", "sampling", "share", "integer_share", "prompt_attention"),
        "pascal": ("share", "integer_share"),
        **dict.fromkeys(
            (
                *("apple", "gcn5", "rdna3", "rdna3.5", "rdna4", "xe2", "zen4"),
                *("rdna3/vulkan", "xe2/vulkan", "NVIDIA/vulkan"),
            ),
            ("launch", "share", "integer_share"),
        ),
        **dict.fromkeys(
            ("rdna3.5/vulkan", "rdna4/vulkan"),
            ("launch", "share", "integer_share", "prompt_attention"),
        ),
    },
    "mlx-lm": {
        "m1-max": ("launch", "share"),
        **dict.fromkeys(("m2-max", "m3-ultra"), ("launch", "share", "gemm")),
        **dict.fromkeys(("m1-ultra", "m5-max"), ("launch", "routing", "share", "gemm")),
    },
    "llama.cpp-2024": {"apple": ("launch", "gemm")},
    "vllm-v0": {"cdna2": _OWN_KERNELS, "cdna3": _OWN_KERNELS},
}
#: Constants fitted to the rows of older versions of a preset alone; the others are those of its newest versions.
FREE_OF_VERSION = ("step", "sequence")
#: Most users, and longest prompt, of the runs from which `request` is taken, before other constants: there prompts
#: seldom meet, and their passes are short.
FEW_USERS, SHORT_PROMPT = 4.0, 1024.0
#: Start values, and bounds below: constants in us, factors and shares without unit.
START_VALUES = {
    "launch": 1.0,
    "layer": 5.0,
    "routing": 30.0,
    "step": 500.0,
    "group": 200.0,
    "collective": 2.0,
    "sequence": 10.0,
    "sampling": 5.0,
    "request": 2e4,
}
START_VALUES |= {"eager": 40.0, "unit_bytes": 6.0, "share": 0.85, "integer_share": 0.3, **dict.fromkeys(FACTORS, 1.0)}
MAX_VALUES = {
    **dict.fromkeys(CONSTANTS, 1e6),
    "unit_bytes": 100.0,
    "share": 1.0,
    "integer_share": 1.0,
    **dict.fromkeys(FACTORS, 20.0),
}
MIN_VALUES = {
    **dict.fromkeys(CONSTANTS, 0.0),
    "unit_bytes": 0.5,
    "share": 0.1,
    "integer_share": 0.01,
    **dict.fromkeys(FACTORS, 0.05),
}
