"""Values that tab completion offers for options and arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable


def models(incomplete: str) -> list[str]:
    """Model names and aliases; completes the last name of a comma-separated list."""
    return _names_in("model_configs", incomplete)


def chips(incomplete: str) -> list[str]:
    """Chip names and aliases; completes the last name of a comma-separated list."""
    return _names_in("hardware_specs", incomplete)


def engines(incomplete: str) -> list[str]:
    """Engine presets for `--engine`, and the programs for which one stands."""
    from llmviewer.timing import engine

    return _with_prefix(engine.accepted(), incomplete)


def techniques(incomplete: str) -> list[str]:
    """Technique names for `techniques show`."""
    from llmviewer.techniques.registry import TECHNIQUES, WITHOUT_OPTION

    return _with_prefix((*TECHNIQUES, *WITHOUT_OPTION), incomplete)


def technique_values(technique: str) -> Callable[[str], list[str]]:
    """Completion of a technique's option: its methods, or its presets if it has no methods."""

    def complete(incomplete: str) -> list[str]:
        from llmviewer.techniques.methods import METHODS, preset_names

        return _with_prefix(METHODS.get(technique) or preset_names(technique), incomplete)

    return complete


def plots(incomplete: str) -> list[str]:
    """Kinds of plots, for `llmviewer plot`."""
    from llmviewer.reports.plots import KINDS

    return _with_prefix(("list", *KINDS), incomplete)


def for_option(name: str, choices: tuple[str, ...]) -> Callable[[str], list[str]]:
    """Completion of one option of a run."""
    if name == "engine":
        return engines
    return one_of(*choices) if choices else technique_values(name)


def one_of(*words: str) -> Callable[[str], list[str]]:
    """Completion of an option that takes one of `words`."""

    def complete(incomplete: str) -> list[str]:
        return _with_prefix(words, incomplete)

    return complete


def _names_in(folder: str, incomplete: str) -> list[str]:
    """Names in a data folder for the text after the last comma; aliases only after the first letter."""
    from llmviewer.core import data

    before, comma, last = incomplete.rpartition(",")
    aliases = [alias for aliases in data.aliases(folder).values() for alias in aliases] if last else []
    return [before + comma + name for name in _with_prefix((*data.stems(folder), *aliases), last)]


def _with_prefix(words: Iterable[str], incomplete: str) -> list[str]:
    return [word for word in words if word.startswith(incomplete)]
