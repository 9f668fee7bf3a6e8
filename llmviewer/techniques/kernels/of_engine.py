"""Graph passes that a preset adds beside the options: its kernels, number formats, and the routing of its requests."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from llmviewer.analysis.memory import weights_bytes
from llmviewer.analysis.system import AppliedTechnique, System
from llmviewer.core import dtypes
from llmviewer.core.counts import total
from llmviewer.core.dtypes import Dtype
from llmviewer.core.errors import UserError
from llmviewer.core.ir import Access, Block, Graph, Operator, Role, Tensor, as_built
from llmviewer.core.kinds import Kind, OperatorRole
from llmviewer.core.workload import decode
from llmviewer.formats.linear import Format, is_linear, with_formats
from llmviewer.models.model import Model
from llmviewer.ops.gemm import has_routed_experts, is_routed
from llmviewer.serving.batching import STATIC
from llmviewer.techniques.parallel.sizes import with_parallelism
from llmviewer.timing.engine import ENGINE_ROUTING
from llmviewer.timing.roofline import ideal

NAME = "cache_write"


def configuration_of(model: Model, system: System) -> str:
    """The model and the weights of one device, which tell formats and layouts apart, as engine files word them."""
    stored = weights_bytes(system.prepared(model.graph(decode(1.0, 1.0))))
    return f"{model.name}, {stored / 2.0**30:.3g} GiB of weights on a device"


def with_own_constants(model: Model, system: System) -> System:
    """The system with the constants of the user's engine file for the model; the same without one."""
    if system.engine.own is None:
        return system
    return replace(system, engine=system.engine.of_server(system.chip, configuration_of(model, system)))


def cache_write(graph: Graph) -> Graph:
    """Write the new entries of the KV cache by one kernel of each layer with attention.

    Without it, the operators that compute keys, values and latents write them to the cache.  With it, they write
    activations, which the kernel reads.  It adds a write and a read of the new entries; the bytes written to the cache
    are the same.  Rope and attention of one kernel write the cache themselves, as in TensorRT-LLM.
    Source: reshape_and_cache_flash, concat_and_cache_mla in
    https://github.com/vllm-project/vllm/blob/main/csrc/cache_kernels.cu
    """
    return graph.map_blocks(_with_kernel)


def _with_kernel(block: Block) -> Block:
    writers = [at for at, op in enumerate(block.operators) if _entries(op)]
    if not writers or not any(op.role is OperatorRole.ATTENTION for op in block.operators):
        return block
    changed = list(block.operators)
    for at in writers:
        if changed[at].kind is Kind.ATTENTION:
            return block
        changed[at] = _writing_activations(changed[at], _widest(block.operators[: writers[-1] + 1]))
    stored = tuple(access for at in writers for access in _entries(block.operators[at]))
    new = tuple(access for at in writers for access in changed[at].writes if access.tensor.name.startswith("new_"))
    changed.insert(writers[-1] + 1, _kernel(block.operators[writers[-1]], new, stored))
    return replace(block, operators=tuple(changed))


def _entries(operator: Operator) -> tuple[Access, ...]:
    return tuple(access for access in operator.writes if access.tensor.role is Role.CACHE)


def _widest(operators: tuple[Operator, ...]) -> Dtype:
    """The widest format of activations: that of products, norms and rope, whose inputs may be quantized."""
    accesses = (access for op in operators for access in (*op.reads, *op.writes))
    return max((a.tensor.dtype for a in accesses if a.tensor.role is Role.ACTIVATION), key=lambda dtype: dtype.bits)


def _writing_activations(operator: Operator, dtype: Dtype) -> Operator:
    """The operator that writes its entries as activations of a format."""

    def activation(access: Access) -> Access:
        if access.tensor.role is not Role.CACHE:
            return access
        name = f"new_{access.tensor.name}_of_{operator.name}"
        return Access(Tensor(name=name, elements=access.elements, dtype=dtype), access.elements)

    return replace(operator, writes=tuple(map(activation, operator.writes)))


def _kernel(last: Operator, new: tuple[Access, ...], stored: tuple[Access, ...]) -> Operator:
    """The copy of new entries, by one row per token."""
    tokens = last.output_shape[0]
    width = total(access.elements for access in stored) / np.maximum(tokens, 1.0)
    return Operator(
        name=NAME, kind=Kind.ELEMENTWISE, reads=new, writes=stored, output_shape=(tokens, width), where=last.where
    )


#: OCP Microscaling v1.0: 32 elements share one 8-bit scale.
MXFP8 = dtypes.scaled("fp8", 8, group=32.0, scale_bits=8.0, name="mxfp8")


def quantize_expert_inputs(graph: Graph) -> Graph:
    """Quantize the inputs of experts stored as MXFP4 to MXFP8, 8.25 bits an element.

    Source: get_mxfp4_quant_algo of TensorRT-LLM, W4A8_MXFP4_MXFP8 from SM 100 on,
    https://github.com/NVIDIA/TensorRT-LLM/blob/main/tensorrt_llm/_torch/model_config.py
    """
    return graph.map_blocks(_quantized)


def _quantized(block: Block) -> Block:
    if not any(map(_is_mxfp4_expert, block.operators)):
        return block
    return with_formats(block, lambda op: Format(activations=MXFP8) if _is_mxfp4_expert(op) else Format())


def _is_mxfp4_expert(operator: Operator) -> bool:
    return is_routed(operator) and any(a.tensor.dtype.name == "mxfp4" for a in operator.reads)


#: NVIDIA's generations without the instructions of Marlin, which multiplies narrow weights with 16-bit inputs (SM 75:
#: https://github.com/sgl-project/sglang/pull/19652, https://docs.vllm.ai/en/stable/features/quantization/fp8/).
BEFORE_MARLIN = ("pascal", "volta")


def units_lacking(system: System) -> frozenset[str]:
    """Classes of narrow floats that the chip has no units for, of those that its engine then multiplies otherwise.

    Other makers than NVIDIA: fp4 alone, which vLLM emulates with 16-bit inputs.
    """
    chip = system.chip
    classes = system.engine.without_units.keys() - chip.matrix_flops_per_s.keys()
    return frozenset(classes if chip.maker == "NVIDIA" else classes & {"fp4"})


def _weight_only(system: System) -> AppliedTechnique:
    """Products whose inputs have a narrow format without units read them in 16 bit; no line of the list of passes."""
    classes, engine, chip = units_lacking(system), system.engine, system.chip

    def format_of(operator: Operator) -> Format:
        if operator.compute not in classes:
            return Format()
        if not engine.is_from(engine.without_units[operator.compute]) or chip.generation in BEFORE_MARLIN:
            raise UserError(
                f"{engine.called} has no kernels for {operator.compute} products on {chip.name}, whose units have no "
                f"{operator.compute}; allowed: {', '.join(sorted(chip.matrix_flops_per_s))}, or w4a16, w8a16"
            )
        return Format(activations=dtypes.DTYPES["fp16"])

    def change(block: Block) -> Block:
        concerned = any(is_linear(op) and op.compute in classes for op in block.operators)
        return with_formats(block, format_of) if concerned else block

    return AppliedTechnique(name="", make=lambda _: lambda graph: graph.map_blocks(change))


def weight_only_note(model: Model, system: System) -> str:
    """A line for narrow inputs that are multiplied in 16 bit instead, for lack of units; empty: there are none."""
    if not any(one.name == "" for one in system.passes):
        return ""
    if not (system.applies("quantize") or model.checkpoint is not as_built):
        return ""
    stated = replace(system, passes=tuple(one for one in system.passes if one.name))
    products = {op.compute for _, op in stated.prepared(model.graph(decode(1.0, 1.0))) if is_linear(op)}
    found = " and ".join(sorted(products & units_lacking(system)))
    if not found:
        return ""
    how = "by weight-only kernels (Marlin)"
    if system.chip.maker != "NVIDIA":
        how = "which vLLM emulates by unpacking them: slower than told here"
    return f"{system.chip.name} has no units for {found}: such weights are multiplied with 16-bit inputs, {how}"


def with_engine_kernels(system: System, *, routed: bool = False) -> System:
    """The system with the passes of its engine.

    Number formats come first: they concern those of the checkpoint, and --quantization takes precedence.  routed: the
    user states how experts are chosen.
    """
    engine = system.engine
    if engine.gathers and system.parallelism.ranks > 1:
        system = with_parallelism(system, system.parallelism)
    before, after = [], []
    if engine.mxfp8_inputs == system.chip.generation:
        make = quantize_expert_inputs
        before.append(AppliedTechnique(name="mxfp8_expert_inputs", make=lambda _: make))
    if engine.expert_skew and not routed:
        before.append(_routing(engine.expert_skew))
    if engine.cache_write:
        after.append(AppliedTechnique(name=NAME, make=lambda _: cache_write))
    passes = list(system.passes)
    if system.efficiency is not ideal and units_lacking(system):  # after the formats, before what reads them
        at = max((number for number, one in enumerate(passes, 1) if one.name.startswith("quantize(")), default=0)
        passes.insert(at, _weight_only(system))
    return replace(system, passes=(*before, *passes, *after))


def with_own_limits(system: System, *, shared: bool = False) -> System:
    """The system with the limits of its server, whose slots do not bound a static batch of a benchmark.

    shared: the user states a share of the memory.
    """
    engine = system.engine
    if system.batching is not STATIC:
        if engine.free_fraction and system.cache_fraction is None and not shared:
            system = replace(system, cache_fraction=engine.free_fraction)
        return replace(system, engine=engine.serving(system.chip, system.parallelism.tensor))
    if engine.batching == "continuous" or not engine.own_slots:
        return system
    return replace(system, engine=replace(engine, max_num_seqs=np.inf))


def _routing(alpha: float) -> AppliedTechnique:
    """Experts of unequal popularity, in models that have experts."""
    from llmviewer.techniques.sparsity.expert_skew import SERVED_REPEAT, expert_skew

    skew = expert_skew(alpha, SERVED_REPEAT)
    return AppliedTechnique(
        name=ENGINE_ROUTING,
        make=lambda _: lambda graph: skew(graph) if has_routed_experts(graph) else graph,
    )
