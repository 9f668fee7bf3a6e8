"""Constants of an engine from another card, times what torch's kernels take on this one over what they take there."""

from __future__ import annotations

from collections.abc import Mapping

from llmviewer.core.frozen import frozen
from llmviewer.timing.kernels.families import FAMILIES
from llmviewer.timing.kernels.family import Constants
from llmviewer.timing.kernels.gemm import EQUIVALENTS
from llmviewer.timing.profile import Profile

#: Family -> constants that say what a chip does, the regime whose ratio of times they take, and its power: shares of
#: rates shrink as times grow.  Floors, launches and tiles are the kernel's, and stay.
MOVED: dict[str, Mapping[str, tuple[str, float]]] = {
    "gemm": {"memory": ("memory", -1.0), "compute": ("compute", -1.0), "balance": ("compute", 1.0)},
    "attention_prefill": {"memory": ("memory", -1.0), "compute": ("compute", -1.0), "special": ("compute", -1.0)},
    "attention_decode": {
        "memory": ("memory", -1.0), "key": ("compute", 1.0), "key_width": ("compute", 1.0), "head_key": ("compute", 1.0)
    },
    "streaming": {"memory": ("memory", -1.0), "unit": ("memory", -1.0)},
}  # fmt: skip
#: Engine whose kernels `calibrate run` times on every card.
TORCH = "torch"
#: Chip -> kind of fit -> torch's fit there under another engine's name: vidur times linear layers that call torch's
#: (https://github.com/microsoft/vidur/blob/main/vidur/profiling/mlp/mlp_impl.py).
TIMED_BY_OTHERS = {"a100-80gb-sxm": {"gemm/fp16": "gemm/fp16/vllm"}}


@frozen(kw_only=False)
class Ratios:
    """Time of torch's kernels on this card over that with their constants from a chip, by regime, and their fit."""

    key: str
    chip: str
    by_regime: tuple[tuple[str, float], ...]

    def __str__(self) -> str:
        times = ", ".join(f"{ratio:.2f} ({regime})" for regime, ratio in self.by_regime)
        return f"{self.key} takes {times} of its time by {self.chip}"


def torch_fit(profile: Profile, kind: str) -> str:
    """Key of torch's fit of a kind (family/variant), or of the other 16-bit format, in a profile; empty without one."""
    (family, variant), named = kind.split("/"), TIMED_BY_OTHERS.get(profile.chip, {})
    kinds = (f"{family}/{name}" for name in (variant, *EQUIVALENTS.get(variant, ())))
    keys = (key for one in kinds for key in (f"{one}/{TORCH}", named.get(one, "")))
    return next((key for key in keys if key in profile), "")


def ratios(own: Profile, kind: str, chip: str) -> Ratios | None:
    """The ratios of a user's profile for torch's kernels of a kind beside those of a chip; None if it does not."""
    key = torch_fit(own, kind)
    known = own.fit(key).against.get(chip) if key and "\nagainst:" in own.texts[key] else None  # parsed only then
    return Ratios(key, chip, tuple(known.items())) if known else None


def scaled(constants: Constants, family: str, found: Ratios) -> Constants:
    """Constants of a family times these ratios, within the bounds of its formula."""
    by_regime, changed = dict(found.by_regime), dict(constants)
    for known in FAMILIES[family].constants:
        regime, power = MOVED[family].get(known.name, ("", 0.0))
        if known.name in constants and regime in by_regime:
            moved = constants[known.name] * by_regime[regime] ** power
            changed[known.name] = min(max(moved, known.low), known.high)
    return changed
