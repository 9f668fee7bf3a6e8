"""Sizes of the tensor, data, expert and pipeline groups, and sequence parallelism within a tensor group."""

from __future__ import annotations

from dataclasses import replace

from llmviewer.analysis.system import System
from llmviewer.core.errors import UserError, unknown
from llmviewer.techniques.parallel.devices import MAX_DEVICES, parse_devices, with_parallelism
from llmviewer.techniques.technique import Change, Parameter, Technique, parse_numbers

_PIPELINE = (
    Parameter(name="stages", low=1, high=MAX_DEVICES, whole=True),
    Parameter(name="microbatches", default=0, low=1, high=MAX_DEVICES, whole=True),
)


def _tensor(text: str) -> Change:
    devices = parse_devices("--tensor-parallel-size", text)
    return lambda system: with_parallelism(system, replace(system.parallelism, tensor=devices))


def _sequence(text: str) -> Change:
    if text != "on":
        raise unknown("sequence_parallel", text, ("on", "off"))

    def change(system: System) -> System:
        if system.parallelism.tensor == 1:
            raise UserError("--sequence-parallel splits tokens in a tensor group; it needs --tensor-parallel-size > 1")
        return with_parallelism(system, replace(system.parallelism, sequence=True))

    return change


def _data(text: str) -> Change:
    replicas = parse_devices("--data-parallel-size", text)
    return lambda system: with_parallelism(system, replace(system.parallelism, data=replicas))


def _expert(text: str) -> Change:
    devices = parse_devices("--expert-parallel-size", text)

    def change(system: System) -> System:
        p = system.parallelism
        if devices not in (1, p.tensor * p.data):
            raise UserError(
                f"--expert-parallel-size is {devices}; allowed: 1, or the devices of tensor and data parallelism, over "
                f"which experts are distributed: {p.tensor} x {p.data} = {p.tensor * p.data}"
            )
        return with_parallelism(system, replace(p, expert=devices))

    return change


def _pipeline(text: str) -> Change:
    sizes = parse_numbers("--pipeline-parallel-size", text, _PIPELINE)
    stages, microbatches = int(sizes["stages"]), int(sizes["microbatches"])
    return lambda system: with_parallelism(
        system, replace(system.parallelism, pipeline=stages, microbatches=max(microbatches, 1), fills=not microbatches)
    )


TENSOR = Technique(
    name="tensor_parallel_size",
    kind="parallelism",
    summary="Splits heads, channels and vocabulary over n devices; each branch of a layer ends in an all-reduce.",
    formula="work and weights 1/n but for norms, routers, latents and KV heads beyond one per device; "
    "all-reduce sends 2(n-1)/n of tokens x hidden over the link",
    source="Megatron-LM arXiv 1909.08053",
    example="llmviewer analyze llama-2-70b --hardware h100 --tensor-parallel-size 4",
    make=_tensor,
)
SEQUENCE = Technique(
    name="sequence_parallel",
    kind="parallelism",
    summary="Replaces each all-reduce by a reduce-scatter and an all-gather; norms and residual sums are split by "
    "tokens.",
    formula="reduce-scatter and all-gather send (n-1)/n of tokens x hidden each: as many bytes as the all-reduce "
    "(where a parallel layer has two norms, one gather more; low-bit inputs gather fewer); "
    "norms, residual sums and the stream 1/n",
    source="Reducing Activation Recomputation, arXiv 2205.05198",
    example="llmviewer analyze llama-2-70b --hardware h100 -tp 4 --sequence-parallel on",
    make=_sequence,
)
DATA = Technique(
    name="data_parallel_size",
    kind="parallelism",
    summary="Runs n replicas on separate devices; the replica with the most sequences serves ceil(batch / n) of them.",
    formula="counts, times and memory are those of the fullest replica: batch ceil(B / n), weights whole",
    source="vLLM --data-parallel-size, https://docs.vllm.ai/en/latest/serving/data_parallel_deployment/",
    example="llmviewer analyze llama-3.1-8b --hardware h100 --batch-size 64 --data-parallel-size 4",
    make=_data,
)
EXPERT = Technique(
    name="expert_parallel_size",
    kind="parallelism",
    summary="Stores whole experts on each device; with several replicas, tokens travel to their experts and back.",
    formula="experts n/e on a device; the fullest one computes max(1/e, 1/active) of all rows and reads as many of the "
    "active experts, N(1 - (1 - k/N)^T) over the T tokens of all replicas; replicas exchange tokens x k rows twice by "
    "all-to-all, (e-1)/e of them over the link",
    source="GShard arXiv 2006.16668; vLLM --enable-expert-parallel, "
    "https://docs.vllm.ai/en/latest/serving/expert_parallel_deployment/",
    example="llmviewer analyze mixtral-8x7b --hardware h100 -tp 4 --expert-parallel-size 4",
    make=_expert,
)
PIPELINE = Technique(
    name="pipeline_parallel_size",
    kind="parallelism",
    summary="Divides the layers into p pipeline stages on different devices; micro-batches pass through them in turn.",
    formula="fullest stage ceil(layers/p) layers, embedding on the first, head on the last; a stage sends tokens x "
    "hidden to the next; m micro-batches of B/m: prefill takes the sum over stages + (m-1) x the slowest stage, "
    "(p-1)/(m+p-1) of it idle; without a token budget the ideal prefill bounds all chunk sizes: m x the slowest stage "
    "+ one token on the others; a decode step the larger of the sum over stages and m x the slowest; m = 1 for a "
    "static batch, p under continuous and chunked batching, where sequences that start one by one fill the pipeline; "
    "draft models of --speculative run on the last stage, after it",
    source="GPipe arXiv 1811.06965; Megatron-LM arXiv 2104.04473",
    example="llmviewer analyze llama-2-70b --hardware h100 --batch-size 32 --pipeline-parallel-size 4,microbatches=4",
    make=_pipeline,
)
