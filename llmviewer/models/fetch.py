"""Downloading the config.json of a Hub id with huggingface_hub (extra `hub`)."""

from __future__ import annotations

from pathlib import Path

from llmviewer.core.errors import UserError, printable
from llmviewer.models.card import CONFIG_FILE
from llmviewer.models.hub_cache import HUB_ID

#: Exception of huggingface_hub (or a base class of it) -> what it means here; the first that fits.
REASONS = {
    "GatedRepoError": "is gated: accept its terms on the Hub, then log in with `hf auth login`",
    "RepositoryNotFoundError": "is not on the Hub, or private: check the spelling, or log in with `hf auth login`",
    "LocalEntryNotFoundError": "is not in the local cache, and the Hub cannot be reached (or HF_HUB_OFFLINE is set)",
    "EntryNotFoundError": f"has no {CONFIG_FILE} on the Hub; of a GGUF repository, download one file and give its path",
}


def config_file(name: str) -> Path:
    """The config.json of the Hub id `name`, downloaded to the local Hugging Face cache.  Raises UserError."""
    if not HUB_ID.fullmatch(name):
        raise UserError(f"'{printable(name)}' is not a Hub id; expected ORGANISATION/NAME")
    try:
        from huggingface_hub import hf_hub_download
        from huggingface_hub.utils import disable_progress_bars, logging
    except ImportError as error:
        raise UserError("fetching needs the package huggingface_hub: pip install 'llmviewer[hub]'") from error
    disable_progress_bars()
    logging.set_verbosity_error()
    try:
        return Path(hf_hub_download(name, CONFIG_FILE))
    except Exception as error:  # its HTTP library, which has changed, raises errors of its own
        classes = {kind.__name__ for kind in type(error).__mro__}
        text = f"cannot be fetched: {printable(error, 160)}"
        reason = next((meaning for kind, meaning in REASONS.items() if kind in classes), text)
        raise UserError(f"model '{printable(name)}' {reason}") from error
