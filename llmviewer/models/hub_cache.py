"""The local cache of the Hugging Face Hub: snapshots that other programs have downloaded."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from llmviewer.core import data

#: An id of the Hub: ORGANISATION/NAME.
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
_REVISION = re.compile(r"[0-9a-f]{7,64}", re.ASCII)
MAX_REF_BYTES = 1024


def folder(environment: Mapping[str, str] = os.environ) -> Path:
    """The folder of the cache, by the variables that huggingface_hub reads.

    Source: https://huggingface.co/docs/huggingface_hub/package_reference/environment_variables
    """
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if environment.get(name):
            return _expanded(environment[name])
    if environment.get("HF_HOME"):
        return _expanded(environment["HF_HOME"]) / "hub"
    return _expanded(environment.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface" / "hub"


def _expanded(path: str) -> Path:
    return Path(os.path.expanduser(path))  # noqa: PTH111 (Path.expanduser raises for a user without a home)


def snapshot(name: str) -> Path | None:
    """The folder of the cached snapshot that `main` refers to; None if `name` is no Hub id or is not cached."""
    if not HUB_ID.fullmatch(name):
        return None
    repository = folder() / f"models--{name.replace('/', '--')}"
    reference = data.user_path(str(repository / "refs" / "main"))
    if reference is None:
        return None
    revision = data.read_text(reference, MAX_REF_BYTES).strip()
    return data.user_path(str(repository / "snapshots" / revision)) if _REVISION.fullmatch(revision) else None
