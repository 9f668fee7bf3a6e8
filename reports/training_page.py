"""A training step as a page: whether it fits, what fills the memory, and where the time goes."""

from __future__ import annotations

from llmviewer.planning.train import Training
from llmviewer.reports import format as fmt
from llmviewer.reports.page import Emphasis, Facts, Page, Row, Table, left, right


def page(found: Training) -> Page:
    """Returns the verdict, memory by kind, time by part, and what is assumed."""
    return (Facts(lines=_verdict(found)), _memory(found), _time(found), _assumed(found))


def _verdict(found: Training) -> tuple[tuple[str, str], ...]:
    one, capacity = found.step, found.capacity_bytes
    devices = found.configuration.system.parallelism.devices
    fits = f"{fmt.memory(found.total_bytes)} of {fmt.memory(capacity)} per device"
    if not found.fits:
        fits = f"no: {fits}, {fmt.memory(found.total_bytes - capacity)} too many"
    chip = found.configuration.chip.name
    return (
        ("Fits", fits),
        ("Speed", f"{fmt.duration(one.time_s)} a step, {fmt.count(found.tokens_per_s)} tokens/s"),
        ("Trained", f"{found.trained}: {fmt.count(one.trained)} weights on each device, by {found.optimizer}"),
        ("Model", f"{found.configuration.model.name} on {devices if devices > 1 else ''}{' × ' * (devices > 1)}{chip}"),
        ("Batch", f"{found.batch_size:,} × {found.input_len:,} tokens; {_recomputed(found)}"),
    )


def _recomputed(found: Training) -> str:
    if found.recompute in (0.0, 1.0):
        return "layers run again before their backward pass" if found.recompute else "no layer runs again"
    return f"{fmt.share(found.recompute)} of the layers run again before their backward pass"


def _memory(found: Training) -> Table:
    one = found.step
    parts = (
        ("weights", one.weights_bytes, "frozen ones in their stored format"),
        ("gradients", one.gradients_bytes, "16 bit, of the trained weights"),
        ("optimizer", one.optimizer_bytes, f"and {fmt.memory(one.host_bytes)} on the host" if one.host_bytes else ""),
        ("activations", one.activations_bytes, "at the fullest moment of the backward pass"),
        ("framework", found.framework_bytes, "CUDA context and libraries"),
    )
    rows = [
        Row(cells=(name, fmt.memory(size), fmt.share(size / found.capacity_bytes), note)) for name, size, note in parts
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
        "optimizer": one.optimizer_s,
    }
    rows = tuple(
        Row(cells=(name, fmt.duration(seconds), fmt.share(seconds / one.time_s)))
        for name, seconds in parts.items()
        if seconds
    )
    return Table(title="Time of a step", columns=(left("Part"), right("Time"), right("Share")), rows=rows)


def _assumed(found: Training) -> Facts:
    work = f"{fmt.count(found.step.matmul_flops)} FLOP of matrix products"
    return Facts(
        lines=(
            ("Work", work),
            ("Backward", "its kernels are not measured: they take the time of forward kernels of the same work"),
        ),
        emphasis=Emphasis.FAINT,
    )
