"""The chosen operator: shapes, counts, place on the roofline, explained time; and the switches that choose it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from llmviewer.core.errors import UserError
from llmviewer.reports import format as fmt
from llmviewer.reports.html import operators
from llmviewer.reports.html.operators import Line
from llmviewer.reports.page import Facts
from llmviewer.reports.web.markup import Piece, block, piece, tree
from llmviewer.reports.web.shown import Part, RequestLine
from llmviewer.reports.web.view import STAGES, View
from llmviewer.result.explanation.explain import explained
from llmviewer.result.request_time import passes

HINT = "A click on an operator shows where its time comes from, down to the data sheet and the fits."
COLOURS = {"bound": "what limits the time", "time": "share of the time"}
#: Buttons that move a size along its slider, with the functions of assets/viewer.js that they call.
PLAY = (("play-input_len", "Play over context"), ("play-batch_size", "Play over batch"))
#: Columns of the table that the panel leaves out: the same for all operators, and those of its title.
LEFT_OUT = ("Configuration", "Operator")
#: Columns that one stage of a request leaves out, since they are those of all stages.
OF_ALL = (*LEFT_OUT, "Stage", "Layer", "Kind", "All layers", "Share")


def chosen(view: View) -> Line:
    """The operator that the state names, or the one of the unfolded block that takes most time."""
    lines, wanted = view.shown.lines, view.state.shown["operator"]
    named = next((line.operator for line in view.lines if line.key == wanted), None)
    if named is not None:
        place = named["block"], named["name"]
        found = next((line for line in lines if (line.operator["block"], line.operator["name"]) == place), None)
        if found is not None:
            return found
    return max(view.shown.blocks[view.unfolded], key=lambda line: line.share)


def panel(view: View) -> Piece:
    """Everything that is known about the chosen operator."""
    line = chosen(view)
    title = f"{line.operator['name']}, {STAGES[view.stage]}"
    if isinstance(line, RequestLine):
        parts = [part.line for part in line.parts]
        of_parts = [one for part in parts for one in _of_stage(view, part, _stage(view, part), OF_ALL)]
        facts = [_of_request(line), *of_parts]
        trees = {f" in {part.stage}": part for part in parts}
    else:
        facts = [*_of_stage(view, line, "", LEFT_OUT)]
        trees = {"": line}
    text = piece("panel", title, tuple(facts)) + _explained(view, trees)
    return block(text, "panel sticky", "Chosen operator")


def _of_request(line: RequestLine) -> Facts:
    """The time of an operator over all passes of a request."""
    operator, layers = line.operator, line.operator["layers"]
    block_of = operator["block"] if layers == 1 else f"{operator['block']} × {layers}"
    return Facts(
        lines=(
            ("Layer", block_of),
            ("Kind", operator["kind"]),
            *((part.line.stage.capitalize(), _passes(part)) for part in line.parts),
            ("Time", f"{fmt.duration(operator['time_s'])} of one layer"),
            ("All layers", fmt.duration(operator["time_s"] * layers)),
            ("Share", f"{fmt.share(line.share)} of the request"),
        )
    )


def _passes(part: Part) -> str:
    """Passes times the mean time of one layer in a pass."""
    count = f"{part.passes:,.1f}".removesuffix(".0")
    mean = fmt.duration(part.seconds / part.passes)
    if part.passes == 1.0:
        return f"1 pass of {mean}"
    return f"{count} passes × {mean} = {fmt.duration(part.seconds)}"


def _of_stage(view: View, line: Line, title: str, left_out: Sequence[str]) -> Iterator[Facts]:
    """Figures of an operator in prefill or in the decode step shown."""
    cells = zip(operators.HEADS, line.cells, strict=True)
    shown = tuple((head.title, cell.text) for head, cell in cells if cell.text and head.title not in left_out)
    yield Facts(title=title, lines=shown)
    yield Facts(title="Bytes of one layer, by tensor", lines=tensor_bytes(view, line))
    yield Facts(title="Formulas", lines=line.formulas)
    yield Facts(title="On the roofline", lines=(("Place", _place(view, line)),))


def _stage(view: View, line: Line) -> str:
    """The passes whose figures are shown of one stage of a request."""
    if line.stage == "decode":
        cached = view.answer["stages"]["decode"]["cached_tokens"]
        return f"In one decode step, at {fmt.whole(cached)} cached tokens"
    count = passes(view.result.analysis, line.stage, 0)
    return "In prefill" if count == 1.0 else f"In prefill, all {fmt.whole(count)} passes"


def _name(line: Line) -> str:
    """The beginning of the names of an operator's numbers."""
    stage = "stages.prefill." if line.stage == "prefill" else ""
    return f"{stage}operators.{line.operator['block']}.{line.operator['name']}"


def tensor_bytes(view: View, line: Line) -> tuple[tuple[str, str], ...]:
    """Every tensor that the operator reads or writes in device memory, with its bytes."""
    try:
        root = explained(view.result, f"{_name(line)}.traffic_bytes").root
    except UserError:  # takes no time
        return ()
    words = ((*one.name.partition(" "), fmt.traffic(one.value)) for one in root.children)
    return tuple((verb, f"{tensor} {amount}".strip()) for verb, _, tensor, amount in words)


def _place(view: View, line: Line) -> str:
    """Intensity against the ridge, and what is attained of the roof above."""
    operator, ridge = line.operator, view.answer["roofline"]["ridge_flops_per_byte"]
    if not operator["flops"] or not operator["arithmetic_intensity"]:
        return "moves data without computing"
    side = "left of" if operator["arithmetic_intensity"] < ridge else "right of"
    attained = fmt.percent(operator["ideal_time_s"] / operator["time_s"])
    intensity = fmt.intensity(operator["arithmetic_intensity"])
    limit = f"; kernel-limited: {operator['kernel_limit']}" if operator["kernel_limit"] else ""
    return f"{intensity} FLOP/B, {side} the ridge at {fmt.intensity(ridge)}; {attained} of the bound{limit}"


def _explained(view: View, lines: Mapping[str, Line]) -> str:
    """HTML of the explained times of an operator that the visitor chose; the others cost as much as an answer.

    lines: its figures in a stage, by the words for the stage.
    """
    if view.state.shown["operator"] not in [line.key for line in lines.values()]:
        return piece("note", HINT)
    return "".join(_tree(view, words, line) for words, line in lines.items())


def _tree(view: View, words: str, line: Line) -> str:
    try:
        root = explained(view.result, f"{_name(line)}.time_s").root
    except UserError as error:
        return piece("note", str(error))
    return tree(f"Where the time{words} comes from", root, "")


def switches(view: View, names: Sequence[str], *more: Mapping[str, Any]) -> Piece:
    """The switches of these names, and more: each with name, label, value, and choices."""
    listed: list[Mapping[str, Any]] = []
    for name in names:
        value, choices = _values(view, name)
        listed.append({"name": name, "label": name.capitalize(), "value": value, "choices": choices})
    return block(piece("switches", [*listed, *more]))


def _values(view: View, name: str) -> tuple[str, dict[str, str]]:
    """Value and choices of a switch, each with its label."""
    if name == "stage":
        return view.stage, {one: STAGES[one] for one in view.stages}
    if name == "block":
        return view.unfolded, {one: one for one in view.shown.blocks}
    if name == "operator":
        line = chosen(view)
        listed = view.shown.blocks[line.operator["block"]]
        return line.key, {one.key: one.operator["name"] for one in listed}
    return view.state.shown["colour"], COLOURS
