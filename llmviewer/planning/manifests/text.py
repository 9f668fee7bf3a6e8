"""Manifests as text: shell commands of which every word is quoted, and YAML below a comment."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import yaml

from llmviewer.planning.manifests.flags import Expression, Launch
from llmviewer.planning.manifests.serving import Serving


def word(text: str) -> str:
    """One word of a shell command; only an Expression is expanded by the shell."""
    return f'"{text}"' if isinstance(text, Expression) else shlex.quote(text)


def line(words: Sequence[str]) -> str:
    """A shell command on one line."""
    return " ".join(word(one) for one in words)


def command(program: Sequence[str], flags: Sequence[str]) -> str:
    """A shell command with one flag and its value per line."""
    parts = [line(program)]
    for flag in flags:
        if flag.startswith("--"):
            parts.append(word(flag))
        else:
            parts[-1] += f" {word(flag)}"
    return " \\\n  ".join(parts)


def file(name: str, text: str) -> str:
    """The shell command that writes a file."""
    return f"cat > {shlex.quote(name)} <<'END'\n{text}END"


def comments(lines: Iterable[str]) -> str:
    """Lines of a comment; a line break within one would end it."""
    return "".join(f"# {' '.join(one.split())}\n" for one in lines)


def documents(objects: Sequence[Mapping[str, Any]], notes: Iterable[str]) -> str:
    """YAML documents below a comment."""
    texts = (yaml.dump(one, Dumper=_Plain, sort_keys=False, width=1000, allow_unicode=True) for one in objects)
    return comments(notes) + "---\n".join(texts)


class _Plain(yaml.SafeDumper):
    """A writer of YAML that repeats equal objects, since Kubernetes manifests are read without anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        """No object gets an anchor."""
        return True


def heading(serving: Serving, launch: Launch, title: str) -> list[str]:
    """The lines that say what a pool runs, on what and how often."""
    one = f"{serving.group} {serving.hardware}"
    place = f" on {serving.nodes} computers" if serving.nodes > 1 else ""
    times = "1 replica" if serving.replicas == 1 else f"{serving.replicas} replicas"
    role = f"{serving.role}: " if serving.role else ""
    asked = serving.engine_version
    other = f"; predicted for version {asked}" if asked and not title.rsplit(maxsplit=1)[-1].startswith(asked) else ""
    limited = f"on every device first: nvidia-smi -pl {serving.power_limit.lower().removesuffix('w')}"
    notes = (*serving.notes, *launch.notes, *((limited,) if serving.power_limit else ()))
    return [f"{role}{times} of {one}{place}, {title}{other}", *notes]
