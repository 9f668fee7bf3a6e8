"""Operators for rows of measured latent attention of DeepSeek's shape, as the kernels of each engine compute it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from llmviewer.calibrate.rows.attention import attention
from llmviewer.calibrate.rows.table import Table, column
from llmviewer.core.ir import Operator
from llmviewer.core.workload import decode, prefill
from llmviewer.hardware.chip import Chip
from llmviewer.ops.attention import AttentionShape

if TYPE_CHECKING:
    import pandas as pd

#: Rank of the latent, rotated elements, and elements of a query and a value per head without them (DeepSeek-V3,
#: arXiv 2412.19437).
RANK, ROPE, HEAD = 512.0, 64.0, 128.0
PHASES = ("prefill", "decode")
#: Generations on which aiconfigurator times SGLang's prompts in expanded form; on others all heads attend to the latent
#: (https://github.com/ai-dynamo/aiconfigurator, collector/sglang/collect_mla.py).
SGLANG_EXPANDS_ON = frozenset(("blackwell",))

#: Engines whose rows of latent attention are never below 100 us, whatever the shape: the host launches several kernels
#: (README of the measured tables).
HOST_TIMED = ("vllm 0.14",)


def _mla(group: pd.DataFrame, first: Any, chip: Chip) -> tuple[Operator, ...]:
    """Operator of latent attention: decode in absorbed form, prompts in expanded form where the engine does."""
    batch, seq, heads = (column(group, name) for name in ("batch", "seq", "heads"))
    decoding = first["phase"] == "decode"
    absorbed = decoding or (_is_sglang(first) and chip.generation not in SGLANG_EXPANDS_ON)
    shape = AttentionShape(
        groups=(decode(batch, seq - 1.0) if decoding else prefill(batch, seq)).groups,
        heads=heads,  # type: ignore[arg-type]
        kv_heads=np.ones(len(heads)) if absorbed else heads,
        qk_dim=(RANK if absorbed else HEAD) + ROPE,
        v_dim=RANK if absorbed else HEAD,
    )
    return (attention(shape, first, chip, latent=absorbed, repeated=decoding),)


def _is_sglang(first: Any) -> bool:
    return str(first.get("engine", "")).lower().startswith("sglang")


def _engine(engine: str, first: Any) -> str:
    """The engine; `vllm-host` for vLLM 0.14, whose rows hold the time in which the host launches their kernels."""
    return f"{engine}-host" if str(first.get("engine", "")).lower().startswith(HOST_TIMED) else engine


def _other_phases(rows: pd.DataFrame) -> list[tuple[Any, str]]:
    return [(~rows["phase"].isin(PHASES), f"phase is neither {PHASES[0]} nor {PHASES[1]}")]


MLA = Table(
    shape=("phase", "batch", "seq", "heads"),
    formula=("phase", "dtype", "kv_dtype"),
    needed=("dtype", "phase"),
    words=("phase",),
    build=_mla,
    engine=_engine,
    family=lambda first: f"attention_{first['phase']}",
    contradictions=_other_phases,
)
