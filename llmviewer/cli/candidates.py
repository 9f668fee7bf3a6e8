"""Values that tab completion offers for an option or an argument."""

from __future__ import annotations

from collections.abc import Callable, Iterable


def models(incomplete: str) -> list[str]:
    """Model names and aliases; of a comma list the last name is completed."""
    return _of_folder("model_configs", incomplete)


def chips(incomplete: str) -> list[str]:
    """Chip names and aliases; of a comma list the last name is completed."""
    return _of_folder("hardware_specs", incomplete)


def engines(incomplete: str) -> list[str]:
    """Presets of `--engine`."""
    from llmviewer.timing import engine

    return _starting(engine.names(), incomplete)


def techniques(incomplete: str) -> list[str]:
    """Names of `techniques show`."""
    from llmviewer.techniques.registry import TECHNIQUES, WITHOUT_OPTION

    return _starting((*TECHNIQUES, *WITHOUT_OPTION), incomplete)


def technique_values(technique: str) -> Callable[[str], list[str]]:
    """The completion of a technique's option: its methods, or names of quantization schemes; others have none."""

    def starting(incomplete: str) -> list[str]:
        from llmviewer.techniques.methods import METHODS
        from llmviewer.techniques.quantization.presets import PRESETS

        return _starting(PRESETS if technique == "quantization" else METHODS.get(technique, ()), incomplete)

    return starting


def plots(incomplete: str) -> list[str]:
    """Kinds of `plot`."""
    from llmviewer.reports.plots import KINDS

    return _starting(("list", *KINDS), incomplete)


def for_option(name: str, choices: tuple[str, ...]) -> Callable[[str], list[str]]:
    """The completion of an option of a run."""
    if name == "engine":
        return engines
    return one_of(*choices) if choices else technique_values(name)


def one_of(*words: str) -> Callable[[str], list[str]]:
    """The completion of an option that takes one of `words`."""

    def starting(incomplete: str) -> list[str]:
        return _starting(words, incomplete)

    return starting


def _of_folder(folder: str, incomplete: str) -> list[str]:
    """Names of a data folder after the last comma; aliases only once a letter is typed."""
    from llmviewer.core import data

    before, comma, last = incomplete.rpartition(",")
    aliases = [alias for listed in data.aliases(folder).values() for alias in listed] if last else []
    return [before + comma + name for name in _starting((*data.stems(folder), *aliases), last)]


def _starting(words: Iterable[str], incomplete: str) -> list[str]:
    return [word for word in words if word.startswith(incomplete)]
