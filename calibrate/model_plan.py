"""Cases of one model: every kernel of its layers at the shapes of one device, and its layers as a whole.

Shapes are those of the graph that predictions price, after tensor parallelism; the exchanges between devices are not
measured here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from llmviewer import models
from llmviewer.calibrate import libraries, plan, shapes
from llmviewer.calibrate.kernel_case import KernelCase
from llmviewer.calibrate.sizes import RunSize
from llmviewer.core.errors import UserError
from llmviewer.core.frozen import frozen
from llmviewer.core.ir import Operator
from llmviewer.core.kinds import Kind, OperatorRole
from llmviewer.core.workload import decode
from llmviewer.layers.attention import Attention
from llmviewer.layers.feed_forward import Mlp, Moe
from llmviewer.models.model import Model
from llmviewer.ops.attention import AttentionShape
from llmviewer.ops.gemm import GemmShape
from llmviewer.techniques.parallel.shard import shard
from llmviewer.techniques.parallel.sharding import Sharding
from llmviewer.timing.kernels import gemm

#: Variant of a product -> dtype of its rows; other products need kernels of a serving engine.
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp8": "fp8_rows", "fp8-block": "fp8_block", "fp32": "float32"}
EXPERT_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp8": "fp8"}
#: Variant of a product or of experts -> dtype of the rows of libraries' kernels.
LIBRARY_DTYPES = {"bf16": "bfloat16", "fp8": "fp8", "fp8-block": "fp8_block", "fp4": "nvfp4", "w4a16": "int4_wo"}
#: Qwen3-30B-A3B took 14 ms for 128 tokens, 33 were predicted: attention with random weights makes tokens alike.
COLLAPSED = "prompts of the whole model: with random weights all its tokens come to choose the same experts"
#: Name of the state of a recurrence (ops/recurrence.py).
RECURRENT = "recurrent_state"
#: Eager RoPE is timed on rows of which a quarter are keys, in heads of this many elements.
ROPE_WIDTH = 512


@frozen
class ModelPlan:
    """Cases of a model, and what of it is not measured, in words."""

    cases: tuple[KernelCase, ...]
    missing: tuple[str, ...]


def plan_of(name: str, tp: int, size: RunSize) -> ModelPlan:
    """Kernels at the lengths and batches of `size`, then layers and the whole model if torch can run it here."""
    model = models.load(name)
    step = model.checkpoint(model.graph(decode(1.0, 1.0)))
    operators = [op for block, op in shard(Sharding(tensor=tp))(step) if op.kind is not Kind.COLLECTIVE]
    missing: dict[str, None] = {}
    engines = libraries.installed() if size.libraries else {}
    found = [*_kernels(operators, model, tp, size, missing, engines), *_layers(name, model, tp, size, missing)]
    if tp > 1:
        missing["exchanges between devices: `calibrate run` on a machine with as many (table allreduce)"] = None
    kept = [case for case in found if case.flops <= size.max_flops]
    return ModelPlan(cases=tuple(plan.arranged(kept)), missing=tuple(missing))


def _kernels(
    operators: Iterable[Operator], model: Model, tp: int, size: RunSize, missing: dict[str, None],
    engines: Mapping[str, str],
) -> Iterator[KernelCase]:  # fmt: skip
    """torch's kernels, then those of the engines that can be imported (engine -> version), at the same shapes."""
    tokens = tuple(sorted({b for b, _ in size.block_caches} | {b * s for b, s in size.block_prompts}))
    listed = list(operators)
    products = {product for op in listed for product in _dense(op)}
    stored = {gemm.variant(op) for op in listed if isinstance(op.shape, GemmShape) and op.shape.experts > 1.0}
    layers = sorted({found for part in model.layers for found in _experts(part.feed_forward)})
    plain = [plan.linear("bfloat16", m, int(n), int(k)) for _, n, k in sorted(products) for m in tokens]
    plain += [plan.expert_layer(layer, m, tp, 1, size.routings[0]) for layer in layers for m in tokens]
    torch = [
        *(plan.linear(DTYPES[form], m, int(n), int(k)) for form, n, k in sorted(products) if form in DTYPES
          for m in tokens),
        *_attention(listed, size, missing),
        *_elementwise(listed, tokens, size),
        *(plan.expert_layer(layer, m, tp, 1, size.routings[0], EXPERT_DTYPES[form])
          for form in sorted(stored & {*EXPERT_DTYPES}) for layer in layers for m in tokens),
        *_recurrences(model, tp, size, missing),
        *plan.samplers(replace(size, vocabularies=(_vocabulary(model),), sequences=_batches(size))),
    ]  # fmt: skip
    yield from torch
    forms = {("gemm", form) for form, _, _ in products} | {("moe", form) for form in stored}
    formats = {(table, LIBRARY_DTYPES[form]) for table, form in forms if form in LIBRARY_DTYPES}
    windows = {_heads(op.shape)[1] for op in listed if isinstance(op.shape, AttentionShape)}
    bases = [*plain, *(case for case in torch if case.table not in ("gemm", "moe"))]
    found = list(libraries.cases(bases, engines, tuple(sorted(windows - {0})), formats))
    yield from found
    for table, form in sorted(forms):
        here = any(case.table == table and case.columns["dtype"] == LIBRARY_DTYPES.get(form) for case in found)
        if not here and form not in (DTYPES if table == "gemm" else EXPERT_DTYPES):
            kind = "products" if table == "gemm" else "experts"
            missing[f"{kind} of {form}: torch has no kernel of a serving engine for them{_needed(engines)}"] = None


def _needed(engines: Mapping[str, str]) -> str:
    """Packages whose kernels were looked for, or that would measure more."""
    return f", nor has {', '.join(engines)}" if engines else "; vllm or sglang may, where they can be imported"


def _recurrences(model: Model, tp: int, size: RunSize, missing: dict[str, None]) -> Iterator[KernelCase]:
    """One token of the heads of one device; torch has no kernel for the tokens of a prompt."""
    mixers = (layer.mixer for layer in model.layers if layer.mixer is not None)
    recurrent = (mixer for mixer in mixers if any(state.name == RECURRENT for state in mixer.states()))
    found = [tuple(shapes.recurrent_heads(mixer)) for mixer in recurrent]
    if not all(found):
        missing["recurrences of its layers: those of Mamba-2 and of the gated delta rule alone are measured"] = None
    for shape in sorted({shape for heads in found for shape in heads}):
        split = replace(shape, heads=max(shape.heads // tp, 1), groups=max(shape.groups // tp, 1))
        yield from (plan.recurrence(split, size.dtypes[0], b) for b in _batches(size) if size.compiled)


def _dense(operator: Operator) -> Iterator[tuple[str, float, float]]:
    """Variant, n and k of a product without experts."""
    shape = operator.shape
    if isinstance(shape, GemmShape) and shape.experts == 1.0:
        yield gemm.variant(operator), shape.n, shape.k


def _experts(part: object) -> Iterator[shapes.ExpertLayer]:
    if isinstance(part, Moe):
        yield shapes.ExpertLayer(part.latent or part.hidden, part.expert.intermediate, part.chosen, part.experts)


def _attention(operators: list[Operator], size: RunSize, missing: dict[str, None]) -> Iterator[KernelCase]:
    heads = {_heads(op.shape) for op in operators if isinstance(op.shape, AttentionShape)}
    for (count, kv_heads, keys, values), window in sorted(heads):
        columns = plan.heads_of(shapes.Heads(count, kv_heads, keys, values), "bfloat16")
        latent = keys != values
        for backend in size.latent_backends if latent else size.backends:
            kernel = f"mla_{backend}" if latent else backend
            if not window:
                yield from (plan.prefill(kernel, columns, b, s) for b, s in size.block_prompts)
            yield from (plan.decode(kernel, columns, b, c) for b, c in size.block_caches if not window or c <= window)
        if window and size.compiled:
            seen = columns | {"window": window}
            yield from (plan.prefill("flex", seen, b, s) for b, s in size.block_prompts if s > window)
        elif window:
            missing[f"prompts of sliding windows of {window}: compiled flex_attention, with --full or on CUDA"] = None
        for kernel in () if latent else size.packed:
            seen = columns | {"window": window}
            yield from (plan.decode(kernel, seen, b, c) for b, c in size.block_caches if c > window)
    if any(op.kind in (Kind.RECURRENCE, Kind.CONV) for op in operators):
        missing["prompts of recurrences, and convolutions: torch has no kernel; mamba_ssm and fla have"] = None


def _heads(shape: AttentionShape) -> tuple[tuple[int, int, int, int], int]:
    widths = (int(float(value)) for value in (shape.heads, shape.kv_heads, shape.qk_dim, shape.v_dim))
    window = float(shape.window)
    return (*widths,), int(window) if window < 1e9 else 0  # type: ignore[return-value]


def _elementwise(operators: list[Operator], tokens: tuple[int, ...], size: RunSize) -> Iterator[KernelCase]:
    widths: set[tuple[str, int]] = set()
    for op in operators:
        width = int(float(op.output_shape[-1]))
        if op.kind is Kind.NORM and op.role is not OperatorRole.QK_NORM:
            widths.add(("input_layernorm", width))
        elif op.role is OperatorRole.ACTIVATION and op.output_shape[0] == 1.0:
            widths.add(("mlp_act", width))
        elif op.role is OperatorRole.ROPE and width % ROPE_WIDTH == 0:
            widths.add(("attn_rope", width))
        elif op.role is OperatorRole.RESIDUAL:
            widths.add(("add", width))
    for op_name, width in sorted(widths):
        for (name, kernel), _ in plan.ELEMENTWISE_KERNELS.items():
            if name == op_name and (size.compiled or kernel != "compiled"):
                yield from (plan.elementwise(name, kernel, size.dtypes[0], m, width) for m in tokens)


def _vocabulary(model: Model) -> int:
    return int(float(model.head.lm_head.out_features))


def _batches(size: RunSize) -> tuple[int, ...]:
    return tuple(sorted({batch for batch, _ in size.block_caches}))


def _layers(name: str, model: Model, tp: int, size: RunSize, missing: dict[str, None]) -> Iterator[KernelCase]:
    """Prefill and decode of one layer, and of as many as the model has, of one device of a tensor group."""
    try:
        config = layer_config(name, model, tp)
    except UserError as error:
        missing[f"layers and the whole model: {error.marked}"] = None
        return
    dtype = size.block_dtypes[0]
    for table, layers in (("block", 1), ("model", config["num_hidden_layers"])):
        if table == "model" and "num_local_experts" in config:
            missing[COLLAPSED] = None
            size = replace(size, block_prompts=())
        own = config | {"num_hidden_layers": layers, "torch_dtype": dtype}
        yield from plan.pass_cases(table, {"model": name, "dtype": dtype, "config": own}, size)


def layer_config(name: str, model: Model, tp: int) -> dict[str, Any]:
    """config.json of a Llama- or Mixtral-type model with the sizes of one of `tp` devices.

    Raises UserError for layers of other parts: the timed layer has q, k, v, o, RoPE, and a gated or routed feed-forward
    part, without norms of queries and keys, biases, windows or shared experts.
    """
    kinds = {(type(layer.mixer), type(layer.feed_forward)) for layer in model.layers}
    layer = model.layers[-1]
    mixer, part = layer.mixer, layer.feed_forward
    expert = part.expert if isinstance(part, Moe) else part
    if len(kinds) > 1 or not isinstance(mixer, Attention) or not isinstance(expert, Mlp) or not expert.gated:
        raise UserError(f"{name} has other layers than attention with a gated or routed feed-forward part")
    if mixer.heads % tp or expert.intermediate % tp or (mixer.kv_heads % tp and tp % mixer.kv_heads):
        raise UserError(f"-tp {tp} does not divide the heads and channels of {name}")
    routed = {"num_local_experts": part.experts, "num_experts_per_tok": part.chosen} if isinstance(part, Moe) else {}
    kind = "Mixtral" if routed else "Llama"
    return {
        "model_type": kind.lower(), "architectures": [f"{kind}ForCausalLM"], "hidden_size": model.hidden,
        "intermediate_size": expert.intermediate // tp, "num_attention_heads": mixer.heads // tp,
        "num_key_value_heads": max(mixer.kv_heads // tp, 1),
        "num_hidden_layers": sum(part.repeats for part in model.layers),
        "head_dim": mixer.head_dim, "vocab_size": _vocabulary(model) // tp, "tie_word_embeddings": False,
        "hidden_act": "silu", "rms_norm_eps": 1e-5, "max_position_embeddings": 131072, **routed,
    }  # fmt: skip
