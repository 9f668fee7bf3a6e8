"""A training step as a page: whether it fits, what fills the memory, and where the time goes."""

from __future__ import annotations

from llmviewer.planning.train import Training
from llmviewer.reports import format as fmt
from llmviewer.reports.page import Emphasis, Facts, Page, Row, Table, left, right


def page(found: Training) -> Page:
    """Returns the verdict, what a run takes, memory by kind, time by part, and what is assumed."""
    return (Facts(lines=(*_verdict(found), *_run(found))), _memory(found), _time(found), _assumed(found))


def _verdict(found: Training) -> tuple[tuple[str, str], ...]:
    one, capacity = found.step, found.capacity_bytes
    fits = f"{fmt.memory(found.total_bytes)} of {fmt.memory(capacity)} per device"
    if found.total_bytes > capacity:
        fits = f"no: {fits}, {fmt.memory(found.total_bytes - capacity)} too many"
    elif not found.fits:
        fits = f"no: {fmt.memory(one.host_bytes)} of {fmt.memory(found.host_capacity_bytes)} per device on the host"
    chip, devices = found.configuration.chip.name, found.devices
    of_devices = f", {fmt.count(found.tokens_per_s / devices)} per device" if devices > 1 else ""
    speed = f"{fmt.duration(one.time_s)} a step, {fmt.count(found.tokens_per_s)} tokens/s{of_devices}"
    return (
        ("Fits", fits),
        *((("Least that fits", _typed(found)),) if not found.fits else ()),
        ("Speed", f"{speed}; MFU {fmt.share(found.utilization(one.model_flops))}"),
        ("Trained", f"{found.trained}: {fmt.count(one.trained)} weights on each device, by {found.optimizer}"),
        ("Model", f"{found.configuration.model.name} on {devices if devices > 1 else ''}{' × ' * (devices > 1)}{chip}"),
        *((("Teacher", f"{found.teacher}, forward alone"),) if found.teacher else ()),
        ("Batch", f"{found.batch_size:,} × {found.input_len:,} tokens{_passes(found)}; {_recomputed(found)}"),
        *((("Layout", layout),) if (layout := _layout(found)) else ()),
        *_second(found),
    )


def _second(found: Training) -> tuple[tuple[str, str], ...]:
    """The line of a second stage; none without one."""
    if (one := found.second) is None:
        return ()
    sizes, held = f"{one.batch_size:,} × {one.input_len:,} tokens", fmt.memory(one.total_bytes)
    return (
        (
            "Second stage",
            f"{found.ratio:g} steps for each of the first: {sizes}, {fmt.duration(one.step.time_s)}, {held}",
        ),
    )


def _typed(found: Training) -> str:
    """The options of the least layout that fits, as on the command line."""
    if not found.least:
        return "none with more replicas; try -tp, -pp or --cpu-offload"
    short = {"data_parallel_size": "-dp", "expert_parallel_size": "--expert-parallel-size"}
    return " ".join(f"{short.get(name, '--' + name.replace('_', '-'))} {value}" for name, value in found.least.items())


def _passes(found: Training) -> str:
    layout = found.layout
    if layout.micro_batches == 1.0:
        return ""
    return f" in {layout.micro_batches:,.0f} micro-batches of {layout.micro_batch:,.0f} per replica"


def _layout(found: Training) -> str:
    """How the step is spread over devices; empty on one device."""
    p, layout = found.configuration.system.parallelism, found.layout
    parts = {"tensor": p.tensor, "pipeline": p.pipeline, "data": p.data, "expert": p.expert}
    words = [f"{name} {size}" for name, size in parts.items() if size > 1]
    words += [f"{layout.virtual} parts of the layers per stage"] * (layout.virtual > 1)
    words += [f"ZeRO {layout.zero}"] * (p.data > 1)
    if layout.host is not None:
        words.append(f"{layout.offload.value} in the memory of {layout.host.name}")
    return ", ".join(words)


def _run(found: Training) -> tuple[tuple[str, str], ...]:
    run, price = found.run, found.price
    if run is None:
        return ()
    dollars = "no known price; add --price"
    if run.usd is not None and price is not None:
        dollars = f"${run.usd:,.0f} at ${price.usd_per_hour:g}/h ({price.term})"
    energy = "" if run.kwh is None else f", {run.kwh:,.0f} kWh"
    hours = f"{run.hours:,.1f} hours, {run.gpu_hours:,.0f} device-hours"
    return (("Run", f"{fmt.count(run.tokens)} tokens in {run.steps:,.0f} steps: {hours}, {dollars}{energy}"),)


def _recomputed(found: Training) -> str:
    if found.selective:
        return "all but products and attention runs again before the backward pass"
    if found.recompute in (0.0, 1.0):
        return "layers run again before their backward pass" if found.recompute else "no layer runs again"
    return f"{fmt.share(found.recompute)} of the layers run again before their backward pass"


def _memory(found: Training) -> Table:
    one, layout = found.step, found.layout
    split = f", 1/{layout.data} of each" if layout.data > 1 else ""
    host = f"and {fmt.memory(one.host_bytes)} on the host" if one.host_bytes else ""
    parts = (
        ("weights", one.weights_bytes, f"frozen ones in their stored format{split * (layout.zero > 2)}"),
        ("gradients", one.gradients_bytes, f"16 bit, of the trained weights{split * (layout.zero > 1)}"),
        ("optimizer", one.optimizer_bytes, host or split[2:] * (layout.zero > 0)),
        ("gathered", one.gathered_bytes, "layers at work, whole"),
        ("activations", one.activations_bytes, "at the fullest moment of the backward pass"),
        ("framework", found.framework_bytes, "CUDA context and libraries"),
    )
    rows = [
        Row(cells=(name, fmt.memory(size), fmt.share(size / found.capacity_bytes), note))
        for name, size, note in parts
        if size or name != "gathered"
    ]
    total = (fmt.memory(found.total_bytes), fmt.share(found.total_bytes / found.capacity_bytes))
    return Table(
        title="Memory of a device",
        columns=(left("Part"), right("Size"), right("% of capacity"), left("Note", 1)),
        rows=(*rows, Row(cells=("total", *total, ""), emphasis=Emphasis.GROUP)),
    )


def _time(found: Training) -> Table:
    one = found.step
    parts = {
        "forward": one.forward_s,
        "recomputed forward": one.recompute_s,
        "backward": one.backward_s,
        "exchange of replicas": one.exchange_s,
        "pipeline bubble": one.bubble_s,
        "optimizer": one.optimizer_s,
        "copies and work of the host": one.offload_s,
    }
    rows = tuple(
        Row(cells=(name, fmt.duration(seconds), fmt.share(seconds / one.time_s)))
        for name, seconds in parts.items()
        if seconds
    )
    return Table(title="Time of a step", columns=(left("Part"), right("Time"), right("Share")), rows=rows)


def _assumed(found: Training) -> Facts:
    work = f"{fmt.count(found.step.matmul_flops)} FLOP of matrix products on a device"
    low, high = found.interval()
    of = f"{fmt.count(low)} to {fmt.count(high)} tokens/s, as 80 % of published steps"
    chips = "" if found.basis == "fitted" else f"; constants {found.basis}"
    interval = f"{of}{chips}" if high > low else "none: the roofline of the data sheet is a bound"
    return Facts(lines=(("Work", work), ("Interval", interval)), emphasis=Emphasis.FAINT)
