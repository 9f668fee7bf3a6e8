"""DiT, the diffusion transformer: one denoising step of a latent image is one bidirectional pass over its patches.

Fields are those of the class `DiT` in https://github.com/facebookresearch/DiT/blob/main/models.py.  An image takes as
many passes as its sampler has steps, each over two sequences if it is guided by its class (classifier-free guidance).
"""

from __future__ import annotations

from dataclasses import replace

from llmviewer.core.dtypes import Dtype
from llmviewer.core.errors import UserError
from llmviewer.core.frozen import frozen
from llmviewer.core.ir import Block, Tensor, whole
from llmviewer.core.workload import Step
from llmviewer.layers.adaptive_norm import (
    BLOCK_VECTORS,
    CONDITIONING,
    FINAL_VECTORS,
    ModulatedMixer,
    ModulatedMlp,
    Modulation,
)
from llmviewer.layers.attention import Attention, Projections
from llmviewer.layers.decoder import DecoderLayer, Norms
from llmviewer.layers.feed_forward import Mlp
from llmviewer.models.config import MAX_LAYERS, Config
from llmviewer.models.model import Embedding, Head, Model
from llmviewer.ops.elementwise import activate, activation, embedding
from llmviewer.ops.gemm import Linear

#: Sines and cosines of the time step that enter its two matrices.
FREQUENCIES = 256
NOTE = (
    "one pass is one denoising step over --input-len patches; an image takes as many passes as the sampler has steps, "
    "with two sequences per image under classifier-free guidance; the VAE is not counted"
)


@frozen(eq=False)
class PatchEmbedding(Embedding):
    """Patches and their positions, and the conditioning: embeddings of time step and class.

    vocabulary: classes, with the empty one of classifier-free guidance.  patch: numbers in a patch of the latent image.
    """

    patch: int

    def block(self, step: Step) -> Block:
        """The conditioning of every image, then the patches; the last output is the residual stream."""
        images, tokens = step.sequences, step.tokens
        waves = Tensor(name="hidden", elements=images * (1.0 * FREQUENCIES), dtype=self.dtype)
        first = self._linear("time_in_proj", FREQUENCIES).operator(waves, images)
        act = activate("time_act", first.output, images, activation("silu"))
        time = self._linear("time_out_proj", self.width).operator(act.output, images)
        c = Tensor(name=CONDITIONING, elements=time.output.elements, dtype=self.dtype)
        label = embedding(
            CONDITIONING, (self._table("label_embedding", self.vocabulary, self.width),), c, images, flops=1.0
        )
        label = replace(label, reads=(*label.reads, whole(time.output)))
        x = Tensor(name="hidden", elements=tokens * (1.0 * self.patch), dtype=self.dtype)
        patches = self._linear("patch_proj", self.patch).operator(x, tokens)
        operators = (first, act, time, label, patches, self._add_positions(tokens, patches.output))
        return Block(name="embedding", operators=operators, scope="model")

    def _linear(self, name: str, width: int) -> Linear:
        return Linear(name=name, in_features=width, out_features=self.width, dtype=self.dtype, bias=True)


@frozen(eq=False)
class NoiseHead(Head):
    """A modulated norm and a matrix from every token to its patch of noise and variance."""

    modulation: Modulation

    def block(self, step: Step, hidden: Tensor) -> Block:
        """The operators of the head over all tokens."""
        operators = (*self.modulation.operators(step), *self.modulation.normed("final", step, hidden))
        last = self.lm_head.operator(operators[-1].output, step.tokens)
        return Block(name="head", operators=(*operators, last), scope="model")


def parse_dit(config: Config, dtype: Dtype) -> Model:
    """A class-conditional DiT with adaLN-Zero blocks."""
    hidden, heads = config.count("hidden_size"), config.count("num_heads")
    side, size, channels = config.count("patch_size"), config.count("input_size", 32), config.count("in_channels", 4)
    if hidden % heads or size % side:
        raise UserError(f"{config.where}: hidden_size must be a multiple of num_heads, input_size of patch_size")
    positions, patch = (size // side) ** 2, side * side * channels
    outputs = patch * (2 if config.flag("learn_sigma", default=True) else 1)
    final = Modulation(hidden=hidden, vectors=FINAL_VECTORS, dtype=dtype, prefix="final_")
    last = Linear(name="noise_proj", in_features=hidden, out_features=outputs, dtype=dtype, bias=True)
    classes = config.count("num_classes", 1000) + (config.number("class_dropout_prob", 0.1) > 0.0)
    return Model(
        name="",
        architecture="",
        hidden=hidden,
        dtype=dtype,
        embedding=PatchEmbedding(vocabulary=classes, width=hidden, dtype=dtype, positions=positions, patch=patch),
        layers=(_layer(config, dtype, hidden, heads),),
        head=NoiseHead(lm_head=last, tied=False, modulation=final),
        max_context=float(positions),
        notes=(NOTE,),
        is_encoder=True,
    )


def _layer(config: Config, dtype: Dtype, hidden: int, heads: int) -> DecoderLayer:
    """All DiT blocks, which are alike."""
    modulation = Modulation(hidden=hidden, vectors=BLOCK_VECTORS, dtype=dtype)
    attention = Attention(
        hidden=hidden, heads=heads, kv_heads=heads, head_dim=hidden // heads, dtype=dtype,
        projections=Projections(fused=True, qkv_bias=True, out_bias=True), causal=False,
    )  # fmt: skip
    mlp = Mlp(
        hidden=hidden, intermediate=int(hidden * config.number("mlp_ratio", 4.0)), activation=activation("gelu"),
        dtype=dtype, gated=False, bias=True,
    )  # fmt: skip
    return DecoderLayer(
        name="layer",
        repeats=config.count("depth", maximum=MAX_LAYERS),
        norms=Norms(),
        mixer=ModulatedMixer(modulation=modulation, mixer=attention),
        feed_forward=ModulatedMlp(modulation=modulation, mlp=mlp),
    )
