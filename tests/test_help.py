"""Help by panels, and the commands that an error advises for lists."""

from __future__ import annotations

import json
import re
import shlex

import pytest

from llmviewer.cli import main
from llmviewer.cli.views import FORMATS
from llmviewer.language.option import Panel
from llmviewer.result.describe import technique_card
from llmviewer.techniques.methods import METHODS, preset_names
from llmviewer.techniques.options import OPTIONS
from llmviewer.techniques.registry import TECHNIQUES, WITHOUT_OPTION, load
from tests.answers import refusal

#: The options that most questions need.
COMMON = (
    "--hardware --batch-size --input-len --output-len --quantization --kv-cache-dtype --tensor-parallel-size --engine "
    "--from --format -o"
).split()


@pytest.fixture
def help_of(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """Help of a command on a terminal of some columns."""

    def help_of(command: str, columns: int = 80) -> str:
        monkeypatch.setenv("COLUMNS", str(columns))
        assert main([*command.split(), "--help"]) == 0
        return capsys.readouterr().out

    return help_of


def panels(text: str) -> dict[str, str]:
    """Text of each panel by its title."""
    parts = re.split(r"^(\S.*):\n", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def spelled(panel: str) -> list[str]:
    """First spelling of every option of a panel."""
    return re.findall(r"^  (-\S+?)(?:,|\s)", panel, flags=re.MULTILINE)


def test_the_common_options_come_first(help_of) -> None:  # type: ignore[no-untyped-def]
    shown = panels(help_of("analyze"))
    assert [*shown] == ["Arguments", *(panel.value for panel in Panel if panel not in (Panel.LOAD, Panel.SIZING))]
    assert sorted(spelled(shown["Common options"])) == sorted(COMMON)


def test_every_option_is_in_its_panel_once(help_of) -> None:  # type: ignore[no-untyped-def]
    shown = panels(help_of("analyze"))
    for name, declaration in OPTIONS.items():
        option = declaration.spellings(name)[0]
        found = [title for title, text in shown.items() for one in spelled(text) if one == option]
        assert found == [declaration.panel.value], option


@pytest.mark.parametrize(
    "command",
    [
        "analyze",
        "sweep",
        "compare",
        "crossover",
        "why",
        "advise",
        "simulate",
        "size",
        "explain",
        "require",
        "elasticity",
        "fit",
        "train",
        "check",
        "diagnose",
        "plot",
        "report",
        "page",
        "trace",
        "serve",
        "mcp",
    ],
)
@pytest.mark.parametrize("columns", [80, 160])
def test_no_line_is_wider_than_the_terminal(command: str, columns: int, help_of) -> None:  # type: ignore[no-untyped-def]
    assert max(map(len, help_of(command, columns).splitlines())) <= columns


def test_a_wide_terminal_shows_an_option_per_line(help_of) -> None:  # type: ignore[no-untyped-def]
    for title, text in panels(help_of("analyze", 160)).items():
        assert all(line.startswith("  -") for line in text.splitlines() if line and title != "Arguments")


def test_a_command_of_few_options_has_no_panels(help_of) -> None:  # type: ignore[no-untyped-def]
    assert [*panels(help_of("survey"))] == ["Options"]


@pytest.mark.parametrize(
    ("given", "advised"),
    [
        ("llama-2-7b --hardware h100,a100", "compare llama-2-7b --hardware h100,a100"),
        ("llama-2-7b,phi-2 --hardware h100", "compare llama-2-7b,phi-2 --hardware h100"),
        ("phi-2 --hardware=h100 --batch-size 1,2", "sweep phi-2 --hardware=h100 --batch-size 1,2"),
        ("phi-2 --hardware h100 --input-len 1k:4k:*2", "sweep phi-2 --hardware h100 --input-len '1k:4k:*2'"),
        ("phi-2 --hardware h100 --no-fit-check --batch 1,2", "sweep phi-2 --hardware h100 --batch 1,2"),
        ("phi-2,gpt2 --hardware h100 --batch 1,2", "sweep phi-2,gpt2 --hardware h100 --batch 1,2"),
        ("phi-2 --hardware h100 -tp 1,2", "compare phi-2 --hardware h100 -tp 1,2"),
        ("phi-2 --hardware h100 -q awq,fp8", "compare phi-2 --hardware h100 -q awq,fp8"),
        (
            "phi-2 --hardware h100 --offload 'none;weights=1'",
            "compare phi-2 --hardware h100 --offload 'none;weights=1'",
        ),
    ],
)
def test_a_list_in_analyze_is_answered_with_the_command_to_type(
    given: str, advised: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The advice is a command line that runs."""
    line = refusal(["analyze", *shlex.split(given)], capsys)
    command = advised.split(maxsplit=1)[0]
    assert line.endswith(f"; analyze takes one value; for lists use {command}: llmviewer {advised}")
    assert main([*shlex.split(advised), "--format", "csv"]) in (0, 1)
    assert len(capsys.readouterr().out.splitlines()) > 2


def test_a_list_of_sizes_in_compare_is_answered_with_a_sweep(capsys: pytest.CaptureFixture[str]) -> None:
    line = refusal(shlex.split("compare phi-2,gpt2 --hardware h100 --batch 1,2 --no-fit-check"), capsys)
    advised = "sweep phi-2,gpt2 --hardware h100 --batch 1,2"
    assert line.endswith(f"--batch is '1,2'; compare takes one value; for lists use sweep: llmviewer {advised}")
    assert "for lists" not in refusal(shlex.split("compare phi-2 --hardware h100 -q fp8,int5"), capsys)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("phi-2 --hardware h1000", "unknown chip 'h1000'"),
        ("phi-2 --hardware h100 --batch-size two", "batch-size is 'two'; allowed: whole numbers"),
        ("phi-2 --hardware h100 --lora rank=x,adapters=2", "rank is 'x'; allowed: a whole number"),
    ],
)
def test_other_errors_are_as_they_were(words: str, error: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = refusal(["analyze", *words.split()], capsys)
    assert error in line and "for lists" not in line


@pytest.mark.parametrize("name", [*TECHNIQUES, *WITHOUT_OPTION])
@pytest.mark.parametrize("format", FORMATS)
def test_every_technique_is_shown_in_every_format(
    name: str,
    format: str,  # noqa: A002
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["techniques", "show", name, "--format", format]) == 0
    assert technique_card(name)["summary"].partition(" ")[0] in capsys.readouterr().out


@pytest.mark.parametrize("group", ["", "calibrate", "models", "hardware", "techniques"])
def test_the_list_of_commands_cuts_no_sentence(group: str, help_of) -> None:  # type: ignore[no-untyped-def]
    for columns in (60, 80):
        listed = help_of(group, columns).partition("Commands:\n")[2]
        assert listed.count("\n") >= 3 and "..." not in listed


@pytest.mark.parametrize("option", METHODS)
def test_showing_an_option_with_methods_describes_each_in_a_sentence(
    option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["techniques", "show", option]) == 0
    described = " ".join(capsys.readouterr().out.partition("\nMethods\n")[2].split())
    assert all(f"{method} {load(method).summary}" in described for method in METHODS[option])


def test_the_list_of_techniques_has_the_presets_of_their_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["techniques", "list"]) == 0
    shown = capsys.readouterr().out.partition("\nPresets\n")[2].replace(",", " ").split()
    assert {"billm", "mxfp4", "nvfp4", "infiniband-ndr", "gate-up", "eagle3-llama-3.1-8b"} <= set(shown)
    assert main(["techniques", "list", "--format", "json"]) == 0
    cards = {card["name"]: card for card in json.loads(capsys.readouterr().out)}
    assert {"billm", "mxfp4", "nvfp4"} <= set(cards["quantization"]["presets"])
    assert cards["speculative"]["methods"].keys() == METHODS["speculative"].keys()


def test_presets_of_an_option_are_values_that_it_takes() -> None:
    for name in ("quantization", "network", "fusion", "kv_cache_dtype"):
        assert preset_names(name)
        for preset in preset_names(name):
            load(name).make(preset)
