"""A page in one file that answers further questions about a model by itself, without a server."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmviewer.api import calls, emitted
from llmviewer.api.configuration import configuration
from llmviewer.api.recorded import INPUTS, LARGEST, Recorded, facts_of, recorded
from llmviewer.api.trials import run_line
from llmviewer.core.arguments import whole_number
from llmviewer.core.errors import UserError
from llmviewer.core.scalars import Pool
from llmviewer.core.version import __version__
from llmviewer.language.option import taking
from llmviewer.reports import verdict
from llmviewer.reports.html import page as report
from llmviewer.reports.plots.waterfall import group
from llmviewer.result.result import Result
from llmviewer.techniques.options import OPTIONS, RUN_OPTIONS

if TYPE_CHECKING:
    from typing import Unpack

    from llmviewer.api.keywords import RunOptionLists

TEMPLATES = Path(__file__).parent / "templates"
#: Configurations of one page.
MAX_CONFIGURATIONS = 40


@taking(RUN_OPTIONS)
def page(
    model: calls.ModelName,
    hardware: calls.ChipName | Sequence[calls.ChipName],
    *,
    batch_size: int = calls.BATCH_SIZE,
    input_len: int = calls.INPUT_LEN,
    output_len: int = calls.OUTPUT_LEN,
    **options: Unpack[RunOptionLists],
) -> str:
    """HTML of a page that answers for any batch size and lengths, on these chips and with these lists of options.

    batch_size, input_len, output_len: those that it shows first.  A combination that is refused is left out, and the
    page says why.  Raises UserError, also if all are refused or a model's passes are not those of a static batch.
    """
    sizes = {"batch_size": batch_size, "input_len": input_len, "output_len": output_len}
    return written(calls.combinations({"model": model, "hardware": hardware, **options}), sizes)[0]


def written(made: Sequence[Mapping[str, Any]], sizes: Mapping[str, int]) -> tuple[str, tuple[str, ...]]:
    """The page and its warnings, of combinations of a model, chips and options.  Raises UserError.

    sizes: those that it shows first.
    """
    if len(made) > MAX_CONFIGURATIONS:
        raise UserError(f"{len(made)} configurations; a page holds at most {MAX_CONFIGURATIONS}")
    if len(models := dict.fromkeys(_word(words["model"]) for words in made)) > 1:
        raise UserError(f"{', '.join(models)}: a page is of one model; write one for each")
    first = {name: whole_number(name, value) for name, value in sizes.items()}
    for name, value in first.items():
        if value > LARGEST[name]:
            raise UserError(f"{name} is {value:,}; a page answers up to {LARGEST[name]:,.0f}, llmviewer analyze any")
    varying = [name for name in made[0] if name == "hardware" or len({str(one[name]) for one in made}) > 1]
    pool, found, facts = Pool(len(INPUTS)), list[Recorded](), list[dict[str, Any]]()
    refused: list[tuple[dict[str, str], UserError]] = []
    answers: list[Result] = []
    for words in made:
        choice = {name: _word(words[name]) for name in varying}
        try:
            one = configuration(**words)
            answer = one.answer(calls.request(**first))
            found.append(recorded(one, pool))
        except UserError as refusal:
            refused.append((choice, refusal))
            continue
        answers.append(answer)
        groups = {row.name: group(row.name, row.kind) for rows in found[-1].rows for row in rows}
        facts.append({"choice": choice, "line": _line(words), "groups": groups, **facts_of(one, answer)})
    for choice, error in refused:  # a chip or an option without any answer is none to leave out
        if any(all(one["choice"][name] != value for one in facts) for name, value in choice.items()):
            raise error
    left_out = {", ".join(choice.values()): str(error) for choice, error in refused}
    noted = (
        *(said for one in answers for said in one.warnings),
        *(f"left out: {': '.join(p)}" for p in left_out.items()),
    )
    return _rendered(emitted.text(pool, found, facts), answers[0], first, left_out), tuple(dict.fromkeys(noted))


def _rendered(data: str, answer: Result, first: Mapping[str, int], refused: Mapping[str, str]) -> str:
    script = (TEMPLATES / "engine.js").read_text(encoding="utf-8") + (TEMPLATES / "page.js").read_text(encoding="utf-8")
    css = [report.TEMPLATES / "report.css", TEMPLATES / "page.css"]
    lines = verdict.at_once(answer.to_dict()).lines
    return (
        report.environment(TEMPLATES)
        .get_template("page.html.j2")
        .render(
            title=title(answer, first),
            lines=lines,
            description="; ".join(f"{name}: {said}" for name, said in lines[:2]),
            policy=report.POLICY.format(hashes=report.script_hash(script)),
            css="".join(path.read_text(encoding="utf-8") for path in css),
            script=script,
            data=report.compressed(data.encode("utf-8")),
            first=first,
            largest={name: int(most) for name, most in LARGEST.items()},
            labels={name: OPTIONS[name].spellings(name)[0].lstrip("-").replace("-", " ") for name in RUN_OPTIONS},
            refused=refused,
            version=__version__,
            model=answer.analysis.model.name,
        )
    )


def title(answer: Result, first: Mapping[str, int]) -> str:
    """The question in words: llama-3.1-8b on 1 × h100-sxm, batch 1, 1,024 + 128."""
    system = answer.analysis.system
    sizes = f"batch {first['batch_size']:,}, {first['input_len']:,} + {first['output_len']:,}"
    return f"{answer.analysis.model.name} on {system.parallelism.devices} × {system.hardware}, {sizes}"


def _line(words: Mapping[str, Any]) -> str:
    """The command of the same answer, without its sizes."""
    options = {name: value for name, value in words.items() if name in OPTIONS}
    stated = run_line(words["model"], words["hardware"], options)
    return shlex.join(("llmviewer", "analyze", *(word for part in stated.values() for word in part)))


def _word(value: Any) -> str:
    return str(getattr(value, "name", value))
