"""Tables of ROCm/aiter's tuner as measured tables: products, and fused experts, of AMD's chips.

aiter (https://github.com/ROCm/aiter, MIT) times all its kernels of a shape and stores the fastest, which vLLM and
SGLang then run for this shape.  A time is that of the kernels on the device, of inputs that are quantized already, and
each run has copies of its own of all operands (aiter/test_common.py: up to 101, as far as memory has room), so that
what is larger than a 101st of the last-level cache is read from memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmviewer.calibrate.rows.routing import UNIFORM

if TYPE_CHECKING:
    import pandas as pd

#: Name in the columns `source` and `engine`.
NAME = "aiter"
#: Copies of its operands that a product runs on in turn.
COPIES = 101.0
#: Units of a chip -> its name.  An MI325X has the units and clock of an MI300X, an MI350X the units of an MI355X: the
#: tables do not tell them apart.  Tables of fused experts state no `gfx` before there was a second chip of 256 units.
CHIPS = {("gfx942", 304): "mi300x", ("gfx942", 80): "mi308x", ("gfx950", 256): "mi355x"}
USUAL_GFX = {304: "gfx942", 80: "gfx942", 256: "gfx950"}
#: Column `format` -> `dtype`.
PRODUCTS = {"bf16": "bfloat16", "fp8": "fp8", "fp8-block": "fp8_block", "int8": "int8", "mxfp4": "mxfp4"}
#: Formats of inputs and weights, and scales of fused experts -> `dtype`.
EXPERTS = {
    ("bfloat16", "bfloat16", "No"): "bfloat16",
    ("float8", "float8", "per_1x128"): "fp8_block",
    ("float8", "float8", "per_Token"): "fp8",
    ("float8", "float8", "per_Tensor"): "fp8",
    ("float8", "float8", "per_1x32"): "mxfp8",
    ("float8", "float4", "per_1x32"): "w4a8_mxfp4_mxfp8",
    ("float4", "float4", "per_1x32"): "mxfp4",
    ("bfloat16", "float4", "per_1x32"): "w4a16_mxfp4",
    ("bfloat16", "int4", "per_1x32"): "int4_wo",
}
_BOTH = {"gfx", "cu_num", "us"}
_PRODUCT, _EXPERT = {"format", "m", "n", "k"}, {"token", "model_dim", "inter_dim", "expert", "topk", "q_type"}


def translated(frame: pd.DataFrame) -> pd.DataFrame:
    """The table with our columns if its columns are those of aiter's tuner; other tables as they are.

    Rows of one matrix, or of one shape of experts, are held out together.
    """
    names = {*frame.columns}
    if names >= _BOTH | _PRODUCT:
        dtype, held_together = [PRODUCTS.get(name, "") for name in frame["format"]], ["n", "k"]
        shape = frame[["m", "n", "k"]]
    elif names >= _BOTH | _EXPERT:
        formats = zip(*(_word(frame[name]) for name in ("q_dtype_a", "q_dtype_w", "q_type")), strict=True)
        dtype, held_together = [EXPERTS.get(found, "") for found in formats], ["hidden", "inter", "experts", "topk"]
        shape = frame[["token", "model_dim", "inter_dim", "expert", "topk"]].set_axis(
            ["tokens", "hidden", "inter", "experts", "topk"], axis="columns"
        )
        shape = shape.assign(routing=UNIFORM)
    else:
        return frame
    gfx = frame["gfx"].where(frame["gfx"].notna(), frame["cu_num"].map(USUAL_GFX))
    chips = [CHIPS.get(key, f"{key[0]} with {key[1]} units") for key in zip(gfx, frame["cu_num"], strict=True)]
    found = shape.assign(device=chips, source=NAME, engine=NAME, dtype=dtype, latency_us=frame["us"])
    found["fold"] = shape[held_together].astype(str).agg("/".join, axis=1)
    alone = found.groupby(["device", "dtype"])["fold"].transform("nunique") == 1.0
    found.loc[alone, "fold"] += "/" + shape.iloc[:, 0].astype(str)  # of a single matrix, numbers of rows
    return found


def _word(column: pd.Series[str]) -> list[str]:
    """`float8` of `torch.float8_e4m3fn`, `per_1x32` of `QuantType.per_1x32`."""
    words = column.astype(str).str.rpartition(".")[2]
    return [word if word.startswith("per_") else word.partition("_")[0] for word in words]
