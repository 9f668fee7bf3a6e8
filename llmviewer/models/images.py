"""Images in a prompt: the tokens that one takes, and the vision tower that reads it, as a model of its own.

Resizing is that of the models' own processors.  Qwen: `smart_resize` with the limits of their preprocessor_config.json,
https://github.com/huggingface/transformers/blob/main/src/transformers/models/qwen2_vl/image_processing_qwen2_vl.py
Gemma 3: 896 x 896 without pan and scan, https://huggingface.co/docs/transformers/model_doc/gemma3
Shapes of the towers are those of modeling_qwen2_vl.py, modeling_qwen2_5_vl.py, modeling_qwen3_vl.py and
modeling_gemma3.py beside it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from llmviewer.core.dtypes import Dtype, get_dtype
from llmviewer.core.errors import UserError, quoted
from llmviewer.core.frozen import frozen
from llmviewer.core.ir import Block, Operator, Tensor, whole
from llmviewer.core.workload import Step
from llmviewer.language.option import Kind, Option, Panel
from llmviewer.layers.attention import Attention, Projections
from llmviewer.layers.decoder import DecoderLayer, Norms
from llmviewer.layers.feed_forward import Mlp
from llmviewer.models.model import Embedding, Head, Model
from llmviewer.models.vision import number
from llmviewer.ops.attention import AttentionShape
from llmviewer.ops.elementwise import Activation, Norm, activate, activation, add, elementwise, layer_norm, rms_norm
from llmviewer.ops.gemm import Linear

IMAGES: Mapping[str, Option] = {
    "images": Option(
        kind=Kind.WORD,
        help="Images beside the text of each prompt, COUNTxWIDTHxHEIGHT: 3x1024x1024, several joined by commas.",
        panel=Panel.WORKLOAD,
    )
}
_FORM = re.compile(r"(\d{1,4})x(\d{1,5})x(\d{1,5})", re.ASCII)
#: Largest ratio of the sides of an image that Qwen's processor takes.
MOST_OBLONG = 200.0
#: x sigmoid(1.702 x), CLIP's GELU: SiLU and the factor.
QUICK_GELU = Activation(5.0, 1.0)
GELU = activation("gelu")
#: Figures of a section that its class has too, by the model type of the wrapper.
DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "qwen2_vl": {"embed_dim": 1280, "mlp_ratio": 4, "depth": 32, "num_heads": 16},
    "qwen2_5_vl": {"hidden_size": 1280, "intermediate_size": 3420, "depth": 32, "num_heads": 16, "window_size": 112},
}


@frozen
class Images:
    """Images of one size in every prompt.  width, height: pixels."""

    count: int
    width: int
    height: int


def parse(text: str) -> tuple[Images, ...]:
    """Images of a text like 3x1024x1024,1x640x480.  Raises UserError."""
    matches = [_FORM.fullmatch(part.strip().lower().replace("\u00d7", "x")) for part in text.split(",")]
    sizes = [tuple(map(int, one.groups())) for one in matches if one]
    if len(sizes) < len(matches) or not all(map(all, sizes)):
        raise UserError(
            f"--images is {quoted(text)}; allowed: COUNTxWIDTHxHEIGHT in pixels, each at least 1, joined by commas "
            "(3x1024x1024)"
        )
    return tuple(Images(count=count, width=width, height=height) for count, width, height in sizes)


@frozen(eq=False)
class Seen:
    """Images of one size as a model reads them.

    rows, columns: patches of the resized image.  tokens: of one image in the prompt.  tower: the vision tower with its
    projector, of which each image is a sequence of patches.  note: what of its tokens is not counted as it runs.
    """

    images: Images
    rows: int
    columns: int
    tokens: int
    tower: Model
    note: str = ""

    @property
    def patches(self) -> int:
        """Patches of one image."""
        return self.rows * self.columns


def seen(model: Model, images: tuple[Images, ...]) -> tuple[Seen, ...]:
    """The images as a model reads them.  Raises UserError for a model without a tower whose passes are known."""
    fields = model.vision
    if fields is None:
        raise UserError(
            f"--images: {model.name} has no vision tower that is modelled; model types with one: {', '.join(READERS)}"
        )
    kind = str(fields["model_type"])
    section = {**DEFAULTS.get(kind, {}), **fields["vision_config"]}
    return tuple(READERS[kind](Section(section, fields, model), one) for one in images)


@frozen(kw_only=False)
class Section:
    """The fields of a vision tower, of the config around it, and its language model."""

    own: Mapping[str, Any]
    around: Mapping[str, Any]
    model: Model

    def size(self, name: str, default: int = 0) -> int:
        """A whole number above zero.  Raises UserError."""
        size = int(number(self.own.get(name, default)))
        if size < 1:
            raise UserError(f"--images: vision_config of {self.model.name} does not state {name}")
        return size

    @property
    def dtype(self) -> Dtype:
        """The dtype of the tower's weights and activations, that of its language model; of 16 bit at most."""
        return self.model.dtype if self.model.dtype.bits <= 16 else get_dtype("bf16")


def resized(image: Images, factor: int, least: int, most: int) -> tuple[int, int]:
    """Rows and columns of `factor` pixels to which Qwen's processor resizes an image.

    Sides are rounded to multiples of `factor`; where the pixels are then above `most` or below `least`, both sides are
    scaled alike and rounded down or up.  Raises UserError.
    """
    height, width = image.height, image.width
    if max(height, width) > MOST_OBLONG * min(height, width):
        raise UserError(f"--images: {width}x{height} is too oblong; allowed: a ratio of sides up to {MOST_OBLONG:g}")
    rows, columns = round(height / factor), round(width / factor)
    pixels = rows * columns * factor**2
    if pixels > most:
        scale = math.sqrt(height * width / most)
        return max(1, math.floor(height / scale / factor)), max(1, math.floor(width / scale / factor))
    if pixels < least:
        scale = math.sqrt(least / (height * width))
        return math.ceil(height * scale / factor), math.ceil(width * scale / factor)
    return rows, columns


@frozen(eq=False)
class Windowed(Attention):
    """Attention of every patch to those of its window.  windows: number of windows and patches of each."""

    windows: tuple[tuple[float, float], ...]

    def shape(self, step: Step) -> AttentionShape:
        """The attention kernel whose sequences are windows."""
        groups = tuple(
            replace(group, batch_size=group.batch_size * count, new_tokens=np.minimum(group.new_tokens, patches))
            for group in step.groups
            for count, patches in self.windows
        )
        return replace(Attention.shape(self, step), groups=groups)


def windows(rows: int, columns: int, side: int) -> tuple[tuple[float, float], ...]:
    """Windows of at most `side` x `side` patches over an image, smaller at its right and lower edges."""
    parts = [[(length // side, side), (1, length % side)] for length in (rows, columns)]
    return tuple(
        (float(high * wide), float(height * width))
        for (high, height), (wide, width) in product(*parts)
        if high * height * wide * width
    )


@frozen(eq=False)
class Patches(Embedding):
    """The convolution over patches, which is a matrix, and learned positions.  patch: numbers in a patch."""

    patch: int
    bias: bool

    def block(self, step: Step) -> Block:
        """The patches of all images; the last output is the residual stream."""
        pixels = Tensor(name="pixels", elements=step.tokens * (1.0 * self.patch), dtype=self.dtype)
        matrix = Linear(
            name="patch_proj", in_features=self.patch, out_features=self.width, dtype=self.dtype, bias=self.bias
        )
        projected = matrix.operator(pixels, step.tokens)
        placed = (self._add_positions(step.tokens, projected.output),) if self.positions else ()
        return Block(name="embedding", operators=(projected, *placed), scope="model")


@frozen(eq=False)
class Projector(Head):
    """The operators that make tokens of the language model from patches."""

    made: Callable[[Step, Tensor], tuple[Operator, ...]]

    def block(self, step: Step, hidden: Tensor) -> Block:
        """The projector over all images."""
        return Block(name="head", operators=self.made(step, hidden), scope="model")


def _tower(embedding: Patches, layers: tuple[DecoderLayer, ...], made: Any, patches: int) -> Model:
    unused = Linear(name="lm_head", in_features=embedding.width, out_features=1, dtype=embedding.dtype)
    return Model(
        name="vision tower",
        architecture="vision tower",
        hidden=embedding.width,
        dtype=embedding.dtype,
        embedding=embedding,
        layers=layers,
        head=Projector(lm_head=unused, tied=False, has_logits=False, made=made),
        max_context=float(patches),
        is_encoder=True,
    )


def _layer(attention: Attention, mlp: Mlp, norm: Callable[[str, float, Dtype], Norm], count: int) -> DecoderLayer:
    hidden, dtype = attention.hidden, attention.dtype
    norms = Norms(attn=norm("attn_norm", hidden, dtype), mlp=norm("mlp_norm", hidden, dtype))
    return DecoderLayer(name="layer", repeats=count, norms=norms, mixer=attention, feed_forward=mlp)


def _attention(width: int, heads: int, dtype: Dtype, *, is_qwen: bool = True) -> Attention:
    """Attention with biases; Qwen's has one matrix for queries, keys and values, and rotates whole heads."""
    return Attention(
        hidden=width, heads=heads, kv_heads=heads, head_dim=width // heads, dtype=dtype, causal=False,
        rotary_dim=width // heads if is_qwen else 0,
        projections=Projections(fused=is_qwen, qkv_bias=True, out_bias=True),
    )  # fmt: skip


def _merged(
    name: str, norm: Norm, cells: int, widths: tuple[int, int], dtype: Dtype
) -> Callable[[Step, Tensor], tuple[Operator, ...]]:
    """A norm, and two matrices with a GELU between them over `cells` merged patches.

    norm: over a patch, or over merged patches if it is as wide.  widths: of merged patches and of the outputs.
    """
    merged, outputs = widths

    def operators(step: Step, x: Tensor) -> tuple[Operator, ...]:
        rows = step.tokens / float(cells)
        normed = norm.operator(x, rows if norm.width == merged else step.tokens)
        first = Linear(name=f"{name}_in_proj", in_features=merged, out_features=merged, dtype=dtype, bias=True)
        last = Linear(name=f"{name}_out_proj", in_features=merged, out_features=outputs, dtype=dtype, bias=True)
        into = first.operator(normed.output, rows)
        act = activate(f"{name}_act", into.output, rows, GELU)
        return normed, into, act, last.operator(act.output, rows)

    return operators


def _qwen(
    at: Section, image: Images, limits: tuple[int, int, int], width: int, *, bias: bool = False
) -> tuple[tuple[int, int], Patches]:
    """Rows and columns of merged patches, and the embedding.  limits: default patch size, least and most pixels."""
    patch, least, most = limits
    patch, merge = at.size("patch_size", patch), at.size("spatial_merge_size", 2)
    numbers = at.size("in_channels", 3) * at.size("temporal_patch_size", 2) * patch**2
    positions = at.size("num_position_embeddings", 2304) if bias else 0
    embedding = Patches(vocabulary=0, width=width, dtype=at.dtype, positions=positions, patch=numbers, bias=bias)
    return resized(image, patch * merge, least, most), embedding


def _read(at: Section, image: Images, grid: tuple[int, int], tower: Callable[[int, int], Model]) -> Seen:
    """The image as Qwen's models read it.  grid: rows and columns of merged patches.  tower: made from patches."""
    merge = at.size("spatial_merge_size", 2)
    rows, columns = (side * merge for side in grid)
    return Seen(images=image, rows=rows, columns=columns, tokens=grid[0] * grid[1], tower=tower(rows, columns))


#: Default patch size, least and most pixels of an image: `min_pixels` and `max_pixels`, or `size`, of
#: https://huggingface.co/Qwen/Qwen2.5-VL-7B-Instruct/blob/main/preprocessor_config.json (Qwen2-VL has the same) and of
#: https://huggingface.co/Qwen/Qwen3-VL-4B-Instruct/blob/main/preprocessor_config.json
QWEN2_LIMITS, QWEN3_LIMITS = (14, 3_136, 12_845_056), (16, 65_536, 16_777_216)


def _qwen2_vl(at: Section, image: Images) -> Seen:
    """LayerNorms and a plain MLP; every patch sees the whole image."""
    width, dtype = at.size("embed_dim"), at.dtype
    grid, embedding = _qwen(at, image, QWEN2_LIMITS, width)
    inner, merged = width * at.size("mlp_ratio"), width * at.size("spatial_merge_size", 2) ** 2
    mlp = Mlp(hidden=width, intermediate=inner, activation=QUICK_GELU, dtype=dtype, gated=False, bias=True)
    layer = _layer(_attention(width, at.size("num_heads"), dtype), mlp, layer_norm, at.size("depth"))
    norm = layer_norm("merger_norm", width, dtype)
    outputs = at.size("hidden_size", at.model.hidden)
    made = _merged("merger", norm, merged // width, (merged, outputs), dtype)
    return _read(at, image, grid, lambda rows, columns: _tower(embedding, (layer,), made, rows * columns))


def _qwen2_5_vl(at: Section, image: Images) -> Seen:
    """RMSNorms, a gated MLP with biases, and windows in all layers but `fullatt_block_indexes`."""
    width, dtype, depth = at.size("hidden_size"), at.dtype, at.size("depth")
    grid, embedding = _qwen(at, image, QWEN2_LIMITS, width)
    merge, patch = at.size("spatial_merge_size", 2), at.size("patch_size", 14)
    mlp = Mlp(
        hidden=width, intermediate=at.size("intermediate_size"), activation=activation("silu"), dtype=dtype, bias=True
    )
    plain = _attention(width, at.size("num_heads"), dtype)
    full = tuple(one for one in at.own.get("fullatt_block_indexes", (7, 15, 23, 31)) if one < depth)
    side = at.size("window_size") // (merge * patch) * merge

    def tower(rows: int, columns: int) -> Model:
        own = {name: getattr(plain, name) for name in plain.__dataclass_fields__}
        narrow = Windowed(**own, windows=windows(rows, columns, side))
        others = tuple(one for one in range(depth) if one not in full)
        layers = tuple(
            replace(_layer(mixer, mlp, rms_norm, len(numbers)), name=name, numbers=numbers)
            for name, mixer, numbers in (("window", narrow, others), ("full", plain, full))
            if numbers
        )
        return _tower(embedding, layers, made, rows * columns)

    merged = width * merge**2
    norm = rms_norm("merger_norm", width, dtype)
    made = _merged("merger", norm, merge**2, (merged, at.size("out_hidden_size", at.model.hidden)), dtype)
    return _read(at, image, grid, tower)


def _qwen3_vl(at: Section, image: Images) -> Seen:
    """Learned positions, and a merger for every layer whose output is added to one of the language model."""
    width, dtype = at.size("hidden_size"), at.dtype
    grid, embedding = _qwen(at, image, QWEN3_LIMITS, width, bias=True)
    cells = at.size("spatial_merge_size", 2) ** 2
    widths = width * cells, at.size("out_hidden_size", at.model.hidden)
    mlp = Mlp(
        hidden=width, intermediate=at.size("intermediate_size"), activation=GELU, dtype=dtype, gated=False, bias=True
    )
    layer = _layer(_attention(width, at.size("num_heads"), dtype), mlp, layer_norm, at.size("depth"))
    last = _merged("merger", layer_norm("merger_norm", width, dtype), cells, widths, dtype)
    names = [f"deepstack_{one}" for one in range(len(at.own.get("deepstack_visual_indexes", ())))]
    deep = [_merged(name, layer_norm(f"{name}_norm", widths[0], dtype), cells, widths, dtype) for name in names]

    def made(step: Step, x: Tensor) -> tuple[Operator, ...]:
        found = last(step, x)
        for name, merger in zip(names, deep, strict=True):
            own = merger(step, x)
            stream = replace(own[-1].output, name="language_model")
            found += (*own, add(f"{name}_add", stream, own[-1].output, step.tokens / float(cells)))
        return found

    return _read(at, image, grid, lambda rows, columns: _tower(embedding, (layer,), made, rows * columns))


def _gemma3(at: Section, image: Images) -> Seen:
    """SigLIP over an image of fixed size, the mean of neighbouring patches, a norm and one matrix."""
    width, dtype, patch = at.size("hidden_size"), at.dtype, at.size("patch_size", 14)
    side, tokens = at.size("image_size") // patch, int(number(at.around.get("mm_tokens_per_image", 256)))
    patches, hidden = side * side, at.model.hidden
    embedding = Patches(vocabulary=0, width=width, dtype=dtype, positions=patches, patch=3 * patch**2, bias=True)
    mlp = Mlp(
        hidden=width, intermediate=at.size("intermediate_size"), activation=GELU, dtype=dtype, gated=False, bias=True
    )
    heads = at.size("num_attention_heads", 16)
    layer = _layer(_attention(width, heads, dtype, is_qwen=False), mlp, layer_norm, at.size("num_hidden_layers"))

    def made(step: Step, x: Tensor) -> tuple[Operator, ...]:
        rows, cells = step.tokens * (tokens / patches), patches / tokens
        normed = layer_norm("final_norm", width, dtype).operator(x, step.tokens)
        mean = Tensor(name="pool", elements=rows * (1.0 * width), dtype=dtype)
        pool = elementwise("pool", (whole(normed.output),), mean, rows, flops=cells)
        soft = rms_norm("projector_norm", width, dtype).operator(mean, rows)
        matrix = Linear(name="projector", in_features=width, out_features=hidden, dtype=dtype)
        return normed, pool, soft, matrix.operator(soft.output, rows)

    tower = _tower(embedding, (layer,), made, patches)
    note = "tokens of one image see each other both ways; they are counted as causal"
    return Seen(images=image, rows=side, columns=side, tokens=tokens, tower=tower, note=note)


#: model_type of a wrapper -> how it reads an image.
READERS: Mapping[str, Callable[[Section, Images], Seen]] = {
    "gemma3": _gemma3,
    "qwen2_vl": _qwen2_vl,
    "qwen2_5_vl": _qwen2_5_vl,
    "qwen3_vl": _qwen3_vl,
    "qwen3_vl_moe": _qwen3_vl,
}
