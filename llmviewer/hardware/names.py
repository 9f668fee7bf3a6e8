"""Names of chips as people write them: a maker's words are optional, case and punctuation do not count.

One rule in place of a list: `NVIDIA GeForce RTX 4070 Ti SUPER 16GB`, `4070ti super` and `rtx-4070-ti-super` are one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

from llmviewer.core import data
from llmviewer.core.errors import UserError, quoted
from llmviewer.core.files import CacheOfFiles
from llmviewer.core.frozen import frozen

FOLDER = "hardware_specs"
#: Words of makers, which a name may have or not, and the maker of a chip that is called so.
MAKERS = {
    "nvidia": "NVIDIA", "geforce": "NVIDIA", "tesla": "NVIDIA", "quadro": "NVIDIA", "amd": "AMD", "radeon": "AMD",
    "instinct": "AMD", "intel": "Intel", "apple": "Apple", "google": "Google", "aws": "AWS", "huawei": "Huawei",
}  # fmt: skip
#: Computers by Apple's names, which stand beside that of their chip.
MACS = re.compile(r"\b(?:mac ?studio|mac ?mini|mac ?pro|imac|mac ?book(?: ?pro| ?air)?)\b")
#: Words that tell no chip from another.
FILLERS = ("generation", "graphics", "gpu")
#: First words of families of cards, left out in short names.
FAMILIES = ("rtx", "rx", "arc")
#: A name without a path, its parts, the memory that ends it, and a number of chips before it.
NAME, PART = re.compile(r"[a-z0-9 _.+-]+"), re.compile(r"[a-z]+|[0-9]+")
MEMORY = re.compile(r"(.*[^0-9])([0-9]+) ?gi?b?")
COUNT = re.compile(r"\s*([1-9][0-9]{0,2})\s*[x*\u00d7]\s*(\S.*)", re.IGNORECASE)
#: Unlike devices as an error shows them, words for the host of a device in a sum, and the folder of those with names.
SUM, HOST_WORDS, HOSTS = "rtx-4090+rtx-3090", ("cpu", "host", "cpu-host"), "hardware_specs/hosts"
#: Most parts of a sum.
MOST_PARTS = 16
#: Fewest characters of a part of a name that stands for the whole, and most names in an error.
LEAST, LISTED = 3, 8


def listed(text: str) -> tuple[str, ...]:
    """The parts of a sum of devices, `rtx-4090+2xrtx-3090`; of all else, `Ryzen AI Max+ 395`, the text itself.

    Raises UserError for a part that is empty, and for too many.
    """
    plain = _plain(text)
    if "+" not in plain or data.is_path(text) or data.user_path(text):
        return (text,)
    if _stem(text, plain) or _containing(_known(), _parts(plain)):  # 8480+
        return (text,)
    parts = tuple(one.strip() for one in text.split("+"))
    if len(parts) > MOST_PARTS:
        raise UserError(f"--hardware is a sum of {len(parts)} parts; allowed: at most {MOST_PARTS}")
    if not all(parts):
        raise UserError(f"--hardware is {quoted(text)}; allowed: a chip on both sides of each +, as in {SUM}")
    return parts


def counted(text: str) -> tuple[int, str]:
    """The number of chips and the name of one in `8xh100`, `2*4090` or `h100+h100`; 0 and the text itself without a
    number."""
    if len(parts := listed(text)) > 1:
        counts, names = zip(*map(counted, parts), strict=True)
        alike = not any(map(is_host, names)) and len({find(name)[1] for name in names}) == 1
        return (sum(max(one, 1) for one in counts), names[0]) if alike else (0, text)
    found = COUNT.fullmatch(text)
    return (int(found[1]), found[2].strip()) if found and not data.user_path(text) else (0, text)


def is_host(name: str) -> bool:
    """Whether a part of a sum is the host of the devices beside it: cpu, or the name of one."""
    return name.lower() in HOST_WORDS or name in data.stems(HOSTS)


def find(name: str) -> tuple[Path, str, bool]:
    """(file, stem, True) of the chip that a name means; False for the user's own file at this path.

    Raises UserError for an unknown name, with the nearest one, and for one of several chips, with all of them.
    """
    if len(listed(name)) > 1:
        raise UserError(
            f"{quoted(name)} are unlike devices, which analyze, compare, fit, simulate and size answer by "
            "--engine llama.cpp; here name one kind of chip"
        )
    plain = _plain(name)
    if data.is_path(name) or not NAME.fullmatch(plain):
        return data.find(FOLDER, name, "chip")
    is_mac, plain = MACS.search(plain) is not None, MACS.sub("", plain).strip()
    if is_mac and not plain:
        return data.find(
            FOLDER, _only(name, (one for one in data.stems(FOLDER) if _field(one, "maker") == "Apple")), "chip"
        )
    stem = _stem(name, plain)
    if not stem and not data.user_path(name):
        stem = _only(name, _containing(_known(), _parts(plain)) or _of_generation(_parts(plain)))
    if not stem:
        return data.find(FOLDER, name, "chip")
    _check_maker(name, plain, stem)
    return data.folder(FOLDER) / f"{stem}.yaml", stem, True


def _stem(name: str, plain: str) -> str:
    """The chip whose name this is in one of its forms, with its memory or not; empty if there is none."""
    return plain if plain in data.stems(FOLDER) else _exact(plain) or _with_memory(name, plain)


def _plain(name: str) -> str:
    """A name in small letters without what stands in brackets."""
    return name.strip().lower().partition("(")[0].strip()


def keys(name: str) -> set[str]:
    """The forms in which a name is compared: in one piece and as words in any order, also without the family."""
    parts = _parts(name)
    return {form for one in (parts, _short(parts)) for form in ("".join(one), " ".join(sorted(one)))}


def _parts(name: str) -> tuple[str, ...]:
    """Words and numbers of a name without those of makers."""
    return tuple(one for one in PART.findall(name.lower()) if one not in MAKERS and one not in FILLERS)


def _short(parts: tuple[str, ...]) -> tuple[str, ...]:
    """The parts of a name without the family of a card."""
    return parts[1:] if parts[:1] and parts[0] in FAMILIES else parts


@frozen(kw_only=False, eq=False)
class _Known:
    """Every stem and alias, its parts, and its stem; and form of a name -> stem."""

    names: tuple[tuple[str, tuple[str, ...], str], ...]
    index: dict[str, str]


_KNOWN: CacheOfFiles[_Known] = CacheOfFiles(4)
#: Each chip with the parts of its generation.
_GENERATIONS: CacheOfFiles[tuple[tuple[str, tuple[str, ...]], ...]] = CacheOfFiles(4)


def _known() -> _Known:
    def build() -> _Known:
        pairs = [(stem, stem) for stem in data.stems(FOLDER)]
        pairs += [(alias, stem) for stem, others in data.aliases(FOLDER).items() for alias in others]
        index = {key: stem for name, stem in pairs for key in keys(name)}
        return _Known(tuple((name, _parts(name), stem) for name, stem in pairs), index)

    return _KNOWN.get(str(data.folder(FOLDER)), build)


def _exact(plain: str) -> str:
    index, parts = _known().index, _parts(plain)
    return index.get("".join(parts)) or index.get(" ".join(sorted(parts)), "")


def _with_memory(name: str, plain: str) -> str:
    """The chip of a name that ends with its memory; UserError if the chip has another."""
    found = MEMORY.fullmatch(plain)
    stem = _exact(found[1]) if found else ""
    if found and stem and (has := _field(stem, "memory_capacity_gib")["value"]) != int(found[2]):
        hint = f"{stem} has {has:g} GiB; --set capacity={found[2]}GiB changes it"
        raise UserError(f"unknown chip {quoted(name)} ({hint})")
    return stem


@lru_cache(maxsize=256)
def _containing(known: _Known, wanted: tuple[str, ...]) -> frozenset[str]:
    """Chips of names that begin with all parts, or contain them if one is a number; of at least LEAST characters.

    `rtx 4000` is contained in rtx-a4000 too, but `13900` not in core-i9-13900k: a letter at a number is of the name.
    """
    if len("".join(wanted)) < LEAST:
        return frozenset()
    has_number, rest = any(one.isdigit() for one in wanted), _short(wanted) or wanted
    stems = set()
    for name, parts, stem in known.names:
        places = len(parts) - len(rest) + 1 if has_number else min(1, len(parts) - len(rest) + 1)
        found = any(parts[at : at + len(rest)] == rest for at in range(places))
        if found and set(wanted) <= set(parts) and not re.search(f"{rest[-1]}(?!gb)[a-z]", name):
            stems.add(stem)
    return frozenset(stems)


def _of_generation(wanted: tuple[str, ...]) -> list[str]:
    """Chips whose generation begins with all parts: `Zen 5`, `Hopper`."""

    def build() -> tuple[tuple[str, tuple[str, ...]], ...]:
        return tuple((stem, _parts(_field(stem, "generation"))) for stem in data.stems(FOLDER))

    if len("".join(wanted)) < LEAST:
        return []
    known = _GENERATIONS.get(str(data.folder(FOLDER)), build)
    return [stem for stem, parts in known if parts[: len(wanted)] == wanted]


def _only(name: str, stems: Iterable[str]) -> str:
    """The one chip; UserError if there are several."""
    found = sorted(stems)
    if len(found) > 1:
        more = f" and {len(found) - LISTED} more" if len(found) > LISTED else ""
        raise UserError(f"{quoted(name)} may be one of several chips: {', '.join(found[:LISTED])}{more}; name one")
    return found[0] if found else ""


def _check_maker(name: str, plain: str, stem: str) -> None:
    """Raise UserError for the words of another maker: `amd rtx 4090`."""
    stated = {MAKERS[word] for word in PART.findall(plain) if word in MAKERS}
    if stated and stated != {maker := _field(stem, "maker")}:
        raise UserError(f"unknown chip {quoted(name)} ({stem} is made by {maker})")


def _field(stem: str, key: str) -> Any:
    return data.read_known_yaml(data.folder(FOLDER) / f"{stem}.yaml")[key]
