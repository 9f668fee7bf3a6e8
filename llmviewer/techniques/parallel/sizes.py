"""Options of scale: sizes of the groups of devices, sequence parallelism, link, network, and chips as a pipeline."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from typing import Annotated

import numpy as np

from llmviewer.analysis.system import AppliedTechnique, Parallelism, System
from llmviewer.core.errors import UserError, unknown
from llmviewer.core.ir import Pass
from llmviewer.hardware.chip import HOST_PATH, NETWORK, Chip
from llmviewer.hardware.specs import network as network_of
from llmviewer.hardware.specs import network_names
from llmviewer.language.grammar import Choice, Form, Number
from llmviewer.techniques.parallel.context_parallel import context_parallel
from llmviewer.techniques.parallel.shard import shard
from llmviewer.techniques.parallel.sharding import Sharding
from llmviewer.techniques.technique import Change, Whole, technique

#: Largest size of a group.
MAX_DEVICES = 65536
#: Number of devices of a group.
DEVICES = partial(Whole, low=1, high=MAX_DEVICES)


def with_parallelism(system: System, parallelism: Parallelism) -> System:
    """The system with new group sizes; its shard pass, if any, is replaced, and all devices share a host."""
    check_reach(system.chip, parallelism)
    p, host = parallelism, system.chip.host
    if host is not None:
        system = replace(system, chip=replace(system.chip, host=replace(host, devices=p.devices)))
    names = [applied.name for applied in system.passes]
    index = next((i for i, name in enumerate(names) if name.startswith("shard(")), len(names))
    before, after = system.passes[:index], system.passes[index + 1 :]
    if p.tensor == 1 and p.expert == 1:
        return replace(system, passes=(*before, *after), parallelism=p)
    sizes = {"tensor": p.tensor, "expert": p.expert} | ({"data": p.data} if p.expert > 1 else {})
    texts = [f"{name}={size}" for name, size in sizes.items() if size > 1] + ["sequence"] * p.sequence
    chip = system.chip
    gathers = p.expert <= system.engine.gathers
    sharding = Sharding(**sizes, sequence=p.sequence, near=chip.near, through_host=chip.through_host, gathers=gathers)
    applied = AppliedTechnique(name=f"shard({', '.join(texts)})", make=lambda _: shard(sharding), divides=True)
    return replace(system, passes=(*before, applied, *after), parallelism=p)


#: Network between servers that an error proposes first, and a searched layout takes: 400 Gb/s to each device.
USUAL = "infiniband-ndr"


def check_reach(chip: Chip, parallelism: Parallelism) -> None:
    """Raise UserError if more devices exchange data than their link connects and the chip has no network."""
    if parallelism.exchanging > chip.near and chip.network_rate is None:
        raise UserError(
            f"{parallelism.exchanging} devices exchange data, but {chip.default_link} of {chip.name} connects "
            f"{chip.near:.0f}; choose a network for the rest: --network {USUAL}, or {', '.join(network_names())}"
        )


#: A slot by its generation and lanes; peer-to-peer access is that of the card unless it ends in -host.
SLOT = re.compile(r"(pcie-[345])-x(1|4|8|16)(-host)?")


def linked_by(chip: Chip, name: str) -> Chip:
    """The chip with another of its links between devices, in a slot, or without peer-to-peer access over PCIe.

    Raises UserError for a link that it lacks, and a slot that is faster than its own.
    """
    links = {known: link for known, link in chip.links.items() if known != NETWORK}
    if "pcie" in links:
        links[HOST_PATH] = replace(links["pcie"], name=HOST_PATH)
        if slot := SLOT.fullmatch(name):
            return _in_slot(chip, slot[1], float(slot[2]), HOST_PATH if slot[3] or chip.through_host else "pcie")
    if not links:
        raise UserError(f"--link: {chip.name} publishes no link between devices")
    if name not in links:
        slots = ["pcie-{3,4,5}-x{1,4,8,16}[-host]"] if "pcie" in links else []
        raise unknown(f"link of {chip.name}", name, [*links, *slots])
    return replace(chip, links={**chip.links, name: links[name]}, default_link=name)


def _in_slot(chip: Chip, generation: str, lanes: float, link: str) -> Chip:
    """The chip in a slot of `lanes` lanes, over which it exchanges data with others (`link`) and with the host."""
    port, figure = network_of(f"{generation}-x16")
    own, rate = float(np.max(chip.links["pcie"].bandwidth_bytes_per_s)), figure.value * lanes / 16.0
    if rate > own:
        raise UserError(
            f"--link {generation}-x{lanes:g}: {rate / 1e9:g} GB/s each way, but {chip.name} has {own / 1e9:g}"
        )
    slot = replace(port, name="pcie", bandwidth_bytes_per_s=rate)
    figures = {**chip.figures, "links.pcie.bandwidth_bytes_per_s": replace(figure, value=rate, note=f"{lanes:g} lanes")}
    links = {**chip.links, "pcie": slot, HOST_PATH: replace(slot, name=HOST_PATH)}
    return replace(chip, links=links, default_link=link, figures=figures)


@technique(
    "link",
    kind="parallelism",
    formula="share of the link's rate, n cards: over pcie bus x (far + (1 - far) (2/n)^2); over pcie-host crossing x "
    "(4/n)^crowding, and at most 0.2 x 2 (n - 1) / n, so that no group takes less time than a pair; others are fitted",
    source="NCCL timed by aiconfigurator: 8 RTX PRO 6000 with peer-to-peer access, 8 L40S of which more than two have "
    "none https://github.com/ai-dynamo/aiconfigurator; pairs without it https://github.com/sgl-project/sglang/pull/39605",
    example="llama-2-7b --hardware l40s -tp 2 --link pcie-host",
)
def link(
    name: Annotated[
        str,
        Form(help="one of the chip's links; pcie-host: without peer-to-peer access; pcie-4-x8, pcie-4-x8-host: a slot"),
    ],
) -> Change:
    """Chooses the link between devices: nvlink over a bridge, pcie with peer-to-peer access or without, or a slot.

    The drivers of GeForce cards grant no such access unless they were changed.
    """
    return lambda system: replace(system, chip=linked_by(system.chip, name))


@technique(
    "network",
    kind="parallelism",
    formula="groups of g of n devices: reduce-scatter and all-gather inside over the link, (g-1)/g of the bytes each; "
    "1/g of them across n/g groups over the network, both at once",
    source="NCCL https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md; BlueConnect arXiv 1810.11112",
    example="llama-3.1-405b --hardware h100-sxm -tp 16 --network infiniband-ndr",
)
def network(name: Annotated[str, Form(help="name of a network: infiniband-ndr ...")]) -> Change:
    """Connects groups of linked devices by a network, with one port per device."""
    port, figure = network_of(name)

    def change(system: System) -> System:
        chip = system.chip
        figures = {**chip.figures, f"links.{NETWORK}.bandwidth_bytes_per_s": figure}
        return replace(system, chip=replace(chip, links={**chip.links, NETWORK: port}, figures=figures))

    return change


@technique(
    "tensor_parallel_size",
    kind="parallelism",
    formula="work and weights 1/n but for norms, routers, latents and KV heads beyond one per device; "
    "all-reduce sends 2(n-1)/n of tokens x hidden over the link",
    source="Megatron-LM arXiv 1909.08053",
    example="llama-2-70b --hardware h100 --tensor-parallel-size 4",
)
def tensor_parallel_size(devices: Annotated[float, DEVICES("devices of a tensor group")]) -> Change:
    """Splits heads, channels and vocabulary over n devices; each branch of a layer ends in an all-reduce."""
    return lambda system: with_parallelism(system, replace(system.parallelism, tensor=int(devices)))


@technique(
    "sequence_parallel",
    kind="parallelism",
    formula="reduce-scatter and all-gather send (n-1)/n of tokens x hidden each: as many bytes as the all-reduce "
    "(where a parallel layer has two norms, one gather more; low-bit inputs gather fewer); "
    "norms, residual sums and the stream 1/n",
    source="Reducing Activation Recomputation, arXiv 2205.05198",
    example="llama-2-70b --hardware h100 -tp 4 --sequence-parallel on",
)
def sequence_parallel(
    switch: Annotated[str, Choice("on: norms and residual sums are split by tokens", ("on", "off"))],
) -> Change:
    """Replaces each all-reduce by a reduce-scatter and an all-gather; norms and residual sums are split by tokens."""

    def change(system: System) -> System:
        if system.parallelism.tensor == 1:
            raise UserError("--sequence-parallel splits tokens in a tensor group; it needs --tensor-parallel-size > 1")
        return with_parallelism(system, replace(system.parallelism, sequence=switch == "on"))

    return change


@technique(
    "data_parallel_size",
    kind="parallelism",
    formula="counts, times and memory are those of the fullest replica: batch ceil(B / n), weights whole",
    source="vLLM --data-parallel-size, https://docs.vllm.ai/en/latest/serving/data_parallel_deployment/",
    example="llama-3.1-8b --hardware h100 --batch-size 64 --data-parallel-size 4",
)
def data_parallel_size(replicas: Annotated[float, DEVICES("replicas that divide the batch")]) -> Change:
    """Runs n replicas on separate devices; the replica with the most sequences serves ceil(batch / n) of them;
    those that share experts step together.
    """
    return lambda system: with_parallelism(system, replace(system.parallelism, data=int(replicas)))


@technique(
    "expert_parallel_size",
    kind="parallelism",
    formula="experts n/e on a device; the fullest one computes max(1/e, 1/active) of all rows and reads as many of the "
    "active experts, N(1 - (1 - k/N)^T) over the T tokens of all replicas; replicas exchange tokens x k rows twice by "
    "all-to-all, (e-1)/e of them over the link; vLLM, SGLang and TensorRT-LLM, on up to 8 devices, gather the tokens "
    "of all replicas and reduce-scatter the sums instead: (e-1)/e of all tokens each",
    source="GShard arXiv 2006.16668; vLLM --enable-expert-parallel, "
    "https://docs.vllm.ai/en/latest/serving/expert_parallel_deployment/",
    example="mixtral-8x7b --hardware h100 -tp 4 --expert-parallel-size 4",
)
def expert_parallel_size(devices: Annotated[float, DEVICES("devices that share out whole experts")]) -> Change:
    """Stores whole experts on each device; with several replicas, tokens travel to their experts and back."""

    def change(system: System) -> System:
        p = system.parallelism
        if devices not in (1, p.tensor * p.data):
            raise UserError(
                f"--expert-parallel-size is {devices:g}; allowed: 1, or the devices of tensor and data parallelism, "
                f"over which experts are distributed: {p.tensor} x {p.data} = {p.tensor * p.data}"
            )
        return with_parallelism(system, replace(p, expert=int(devices)))

    return change


@technique(
    "context_parallel_size",
    kind="parallelism",
    formula="prefill: ceil(n/c) tokens, 1/c of the pairs, keys and values gathered from the others, (c-1)/c of them "
    "over the link; decode and verification: 1/c of the keys, partial outputs with maximum and sum combined by an "
    "all-reduce; cache 1/c",
    source="Ring Attention arXiv 2310.01889; Context Parallelism for Scalable Million-Token Inference arXiv 2411.01783",
    example="llama-3.1-8b --hardware h100 --input-len 100000 --context-parallel-size 4",
)
def context_parallel_size(
    devices: Annotated[float, DEVICES("devices that split the tokens of every sequence")],
) -> Change:
    """Splits the tokens, keys and values of every sequence over c devices; weights are replicated."""

    def change(system: System) -> System:
        def make(chip: Chip) -> Pass:
            near = max(1.0, float(np.floor(chip.near / system.parallelism.tensor)))
            return context_parallel(int(devices), near, through_host=chip.through_host)

        applied = AppliedTechnique(name=f"context_parallel({devices:g})", make=make, divides=True)
        split = with_parallelism(system, replace(system.parallelism, context=int(devices)))
        return replace(split, passes=(*split.passes, applied))

    return change


@technique(
    "pipeline_parallel_size",
    kind="parallelism",
    formula="fullest stage ceil(layers/p) layers, embedding on the first, head on the last; a stage sends tokens x "
    "hidden to the next; m micro-batches of B/m: prefill takes the sum over stages + (m-1) x the slowest stage, "
    "(p-1)/(m+p-1) of it idle; without a token budget the ideal prefill bounds all chunk sizes: m x the slowest stage "
    "+ one token on the others; a decode step the larger of the sum over stages and m x the slowest; m = 1 for a "
    "static batch, p under continuous and chunked batching, where sequences that start one by one fill the pipeline, "
    "and a round takes the longest step of any micro-batch; "
    "draft models of --speculative run on the last stage, after it",
    source="GPipe arXiv 1811.06965; Megatron-LM arXiv 2104.04473",
    example="llama-2-70b --hardware h100 --batch-size 32 --pipeline-parallel-size 4,microbatches=4",
)
def pipeline_parallel_size(
    stages: Annotated[float, DEVICES("pipeline stages")],
    *,
    microbatches: Annotated[
        float | None,
        DEVICES(
            "parts of the batch that follow each other through the stages",
            unset="1; one per stage under continuous and chunked batching",
        ),
    ] = None,
) -> Change:
    """Divides the layers into p pipeline stages on different devices; micro-batches pass through them in turn."""
    return lambda system: with_parallelism(
        system,
        replace(
            system.parallelism,
            pipeline=int(stages),
            microbatches=int(microbatches or 1),
            fills=microbatches is None,
        ),
    )


@technique(
    "spatial",
    kind="spatial",
    formula="chips = tensor x stages, each with the weights of its layers and the cache of `tokens` tokens in "
    "its memory; a token streams all weights, stage after stage: weights / (tensor x SRAM bandwidth) + collectives + "
    "sends. "
    "Llama-2-70b, 138 GB: one 80 TB/s chip after another 1.7 ms, 580 tokens/s per user; stages of 32 Groq LPUs side by "
    "side, 864 in all, 12,000, or 1,380 with 300 ns a message, the ports of its nodes (--link node --network "
    "groq-quadfour) and matrix units that load 9,216 GB/s; in stages of one node of 8, with weights in 8 bits, 480. "
    "Groq reports over 300: what passes between two operators is not published",
    source="Think Fast (Groq) https://doi.org/10.1109/ISCA45697.2020.00023; survey arXiv 2402.16363 section 6.1",
    example="llama-2-70b --hardware groq-lpu --max-num-batched-tokens 64 --spatial on",
)
def spatial(
    tokens: Annotated[float | str, Whole("tokens whose cache the chips hold; on: 4096", 0, 1e9, words=("on",))] = "on",
    *,
    microbatches: Annotated[float, Whole("batches that follow each other through the stages", 1, 65536)] = 1.0,
    hop_ns: Annotated[
        float,
        Number(
            "latency of a message between chips [ns]. Groq: 722 (https://doi.org/10.1145/3470496.3527405), later 300 "
            "(https://openreview.net/forum?id=IZaXDwDtL1).",
            0,
            1e6,
            unset="0",
        ),
    ] = 0.0,
    load_gb_per_s: Annotated[
        float,
        Number(
            "rate at which weights, keys and values enter the matrix units of a chip, as wide as the product's "
            "numbers. Groq: 9216, 409,600 weights of a byte in 40 cycles of 900 MHz "
            "(https://doi.org/10.1109/ISCA45697.2020.00023).",
            0,
            1e9,
            unset="that of its memory",
        ),
    ] = 0.0,
) -> Change:
    """Uses the fewest chips that store weights and KV cache in on-chip memory, as a pipeline of stages."""
    resident = 4096.0 if isinstance(tokens, str) else tokens

    def change(system: System) -> System:
        if system.parallelism.pipeline > 1 and not system.spatial:
            raise UserError("--spatial chooses the pipeline stages itself; remove --pipeline-parallel-size")
        parallelism = replace(system.parallelism, microbatches=int(microbatches))
        one_floor = replace(system, parallelism=parallelism, spatial=True, resident_tokens=resident)
        return _with_floor_plan(one_floor, hop_ns, load_gb_per_s)

    return change


def _with_floor_plan(system: System, hop_ns: float, load_gb_per_s: float) -> System:
    """The system whose messages take a latency, and whose matrix units receive operands at a limited rate."""
    given = [f"hop {hop_ns:g} ns"] * (hop_ns > 0.0) + [f"load {load_gb_per_s:g} GB/s"] * (load_gb_per_s > 0.0)
    if not given:
        return system
    chip = replace(system.chip, hop_s=hop_ns * 1e-9, load_bytes_per_s=load_gb_per_s * 1e9 or np.inf)
    return replace(system, chip=chip).listing(f"floor_plan({', '.join(given)})")
