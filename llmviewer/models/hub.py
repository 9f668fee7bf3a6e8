"""The Hugging Face Hub: snapshots in its local cache, and the download of a config.json."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path

from llmviewer.core import data, files
from llmviewer.core.errors import UserError, printable
from llmviewer.core.files import record

#: An id of the Hub: ORGANISATION/NAME.
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
_REVISION = re.compile(r"[0-9a-f]{7,64}", re.ASCII)
MAX_REF_BYTES = 1024
#: The file that is fetched, and one beside it that many checkpoints lack: the formats of ModelOpt.
FETCHED, BESIDE = "config.json", "hf_quant_config.json"
#: How long to wait for the Hub to answer, unless the user's environment says otherwise [s].
TIMEOUT_S = "5"
#: Exception of huggingface_hub (or a base class of it) -> what it means here; the first that fits.
REASONS = {
    "GatedRepoError": "is gated: accept its terms on the Hub, then log in with `hf auth login`",
    "RepositoryNotFoundError": "is not on the Hub, or private: check the spelling, or log in with `hf auth login`",
    "LocalEntryNotFoundError": "is not in the local cache, and the Hub cannot be reached",
    "EntryNotFoundError": "has no config.json on the Hub; of a GGUF repository, download one file and give its path",
}


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
    if not HUB_ID.fullmatch(name) or files.is_restricted():
        return None
    repository = folder() / f"models--{name.replace('/', '--')}"
    record(repository / "refs" / "main")
    reference = data.user_path(str(repository / "refs" / "main"))
    if reference is None:
        return None
    revision = data.read_text(reference, MAX_REF_BYTES).strip()
    return data.user_path(str(repository / "snapshots" / revision)) if _REVISION.fullmatch(revision) else None


def fetched_config(name: str) -> Path:
    """The config.json of the Hub id `name`, downloaded to the local Hugging Face cache.  Raises UserError."""
    if not HUB_ID.fullmatch(name):
        raise UserError(f"'{printable(name)}' is not a Hub id; expected ORGANISATION/NAME")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("HF_HUB_ETAG_TIMEOUT", TIMEOUT_S)
    try:
        import huggingface_hub  # noqa: F401
    except ImportError as error:
        raise UserError("fetching needs the package huggingface_hub: pip install huggingface_hub") from error
    logging.getLogger("huggingface_hub").setLevel(logging.CRITICAL)
    try:
        return _downloaded(name)
    except UserError:
        raise
    except Exception as error:  # its HTTP library, which has changed, raises errors of its own
        reason = _reason(error) or f"cannot be fetched: {printable(error, 160)}"
        raise UserError(f"model '{printable(name)}' {reason}") from error


def _downloaded(name: str) -> Path:
    """The config.json of the Hub, or of the cache if the Hub does not answer.

    The Hub is asked once before: a download asks for half a minute before it says that there is no network.
    """
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url

    try:
        get_hf_file_metadata(hf_hub_url(name, FETCHED))
    except Exception as error:
        if _reason(error):
            raise
        try:
            return Path(hf_hub_download(name, FETCHED, local_files_only=True))
        except FileNotFoundError:
            text = f"{REASONS['LocalEntryNotFoundError']}: {printable(error, 160)}"
            raise UserError(f"model '{printable(name)}' {text}") from error
    path = Path(hf_hub_download(name, FETCHED))
    try:
        hf_hub_download(name, BESIDE)
    except Exception as error:
        if not any(kind.__name__ == "EntryNotFoundError" for kind in type(error).__mro__):
            raise
    return path


def _reason(error: Exception) -> str:
    """The meaning of an answer of the Hub that refuses the file; empty for other errors."""
    classes = {kind.__name__ for kind in type(error).__mro__}
    return next((meaning for kind, meaning in REASONS.items() if kind in classes), "")
