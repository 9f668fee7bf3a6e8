"""Names of quantized files without the file: GGUF repositories of the Hub with a tag, and names of Ollama's library."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from llmviewer.core import data
from llmviewer.core.errors import UserError, nearest, printable
from llmviewer.core.frozen import frozen
from llmviewer.models import aliases

#: The file that llama.cpp takes of a repository without a tag (`-hf` in common/arg.cpp of
#: https://github.com/ggml-org/llama.cpp), and Ollama's since mid-2024 (https://ollama.com/library/llama3.1/tags).
USUAL = "q4_k_m"
#: Files of a model whose checkpoint has MXFP4 experts, whatever the tag says of the rest
#: (https://huggingface.co/ggml-org/gpt-oss-20b-GGUF, https://ollama.com/library/gpt-oss/tags).
OF_MXFP4 = "mxfp4_moe"
#: Beginnings of a name that say where it is: `ollama run hf.co/...`.
HOSTS = ("hf.co/", "huggingface.co/", "ollama.com/library/", "registry.ollama.ai/library/", "library/")
#: The format at the end of a tag of Ollama's or of a repository's name: 8b-instruct-q4_K_M, gemma-3-4b-it-qat-q4_0.
_FORMAT = re.compile(r"(?:^|[-.])((?:ud-)?(?:i?q|tq)\d[a-z0-9_]*|mxfp4(?:_moe)?|f16|fp16|bf16)$", re.ASCII)
#: Words of tags that name no other shapes, beside aliases.VARIANTS.
_WORDS = ("text", "latest")
#: Ollama's families of before mid-2024, which it stores in Q4_0 unless a tag says otherwise
#: (https://github.com/ollama/ollama/issues/4626, https://github.com/ollama/ollama/pull/1786, a family's page of tags).
OLLAMA_Q4_0 = frozenset(
    "llama2 llama3 gemma gemma2 codellama mixtral mistral-nemo phi phi3 phi3.5 qwen qwen2 tinyllama starcoder "
    "starcoder2 yi falcon command-r command-r-plus deepseek-v2 deepseek-coder-v2 dbrx".split()
)
#: Ollama's name -> format of its default file, where it is another one (https://ollama.com/library/llama3.2/tags).
OLLAMA_FORMATS = {"llama3.2:1b": "q8_0"}
#: Ollama's family -> size of its tag `latest` (https://ollama.com/library/FAMILY/tags), so that a bare name is known.
OLLAMA_LATEST = {
    **{"llama2": "7b", "llama3": "8b", "llama3.1": "8b", "llama3.2": "3b", "llama3.3": "70b", "codellama": "7b"},
    **{"gemma": "7b", "gemma2": "9b", "gemma3": "4b", "mistral": "7b", "mistral-nemo": "12b", "mixtral": "8x7b"},
    **{"qwen2": "7b", "qwen2.5": "7b", "qwen2.5-coder": "7b", "qwen3": "8b", "qwen3-coder": "30b", "qwq": "32b"},
    **{"phi3": "3.8b", "phi3.5": "3.8b", "phi4": "14b", "phi4-mini": "3.8b", "deepseek-r1": "8b", "gpt-oss": "20b"},
    **{"tinyllama": "1.1b", "mistral-small": "24b", "command-r": "35b", "command-r7b": "7b", "olmo2": "7b"},
}
#: Ollama's name -> model, where family and size do not lead to it (https://ollama.com/library/FAMILY).
OLLAMA_MODELS = dict(
    line.split()
    for line in """
    deepseek-r1:7b deepseek-r1-distill-qwen-7b
    deepseek-r1:8b qwen3-8b
    deepseek-r1:14b deepseek-r1-distill-qwen-14b
    deepseek-r1:32b deepseek-r1-distill-qwen-32b
    deepseek-r1:70b deepseek-r1-distill-llama-70b
    deepseek-r1:671b deepseek-r1
    deepseek-v3:671b deepseek-v3
    deepseek-v2:16b deepseek-v2-lite
    deepseek-v2:236b deepseek-v2
    deepseek-coder-v2:16b deepseek-v2-lite
    deepseek-coder-v2:236b deepseek-v2
    qwen:7b qwen1.5-7b
    phi:2.7b phi-2
    phi3:3.8b phi-3-mini
    phi3:mini phi-3-mini
    phi3:14b phi-3-medium
    phi3.5:3.8b phi-3.5-mini
    phi4:14b phi-4
    phi4-mini:3.8b phi-4-mini
    mistral:7b mistral-7b-v0.3
    mistral-nemo:12b mistral-nemo
    mistral-small3.1:24b mistral-small-3.1-24b
    command-r:35b command-r-08-2024
    command-r-plus:104b command-r-plus
    command-r7b:7b command-r7b
    llama4:16x17b llama-4-scout
    llama4:128x17b llama-4-maverick
    dbrx:132b dbrx
    """.strip().splitlines()
)


@frozen
class NamedFile:
    """A quantized file by its name.  known: the model to read.  stated: the format that the name states, or "".

    usual: the format of a name without one.  where: what the name is, for the note.
    """

    known: str
    stated: str
    usual: str
    where: str

    def quantization(self, config: Mapping[str, Any]) -> str:
        """The file's format, as of --quantization.  config: of the model; experts in MXFP4 are so in every file."""
        method = config.get("quantization_config")
        if isinstance(method, Mapping) and method.get("quant_method") == "mxfp4":
            return "none" if self.stated in ("f16", "fp16", "bf16") else OF_MXFP4
        return OF_MXFP4 if self.stated == "mxfp4" else self.stated or self.usual


def named_file(name: str) -> NamedFile | None:
    """The model and format of a GGUF repository's name, or of Ollama's; None for a name of another kind.

    Raises UserError for a name of either kind whose model is not known.
    """
    model, tag = repository(name)
    if model.lower().endswith(("-gguf", "_gguf", ".gguf")) and "/" in model:
        return _of_repository(name, model[: -len("-gguf")], tag.lower())
    return None if "/" in model else _of_ollama(name, model.lower(), tag.lower())


def repository(name: str) -> tuple[str, str]:
    """The Hub id and the tag of a name such as bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M; the tag may be empty."""
    typed = name.strip()
    host = next((host for host in HOSTS if typed.lower().startswith(host)), "")
    model, _, tag = typed[len(host) :].partition(":")
    return model, tag


def _of_repository(name: str, base: str, tag: str) -> NamedFile:
    """The file of a repository without its `-GGUF`, by the quantizer's or the maker's habit: ORGANISATION_MODEL."""
    stated = _FORMAT.search(base.lower())
    base = base[: stated.start()] if stated else base
    organisation, _, rest = base.rpartition("/")
    owner, _, own = rest.partition("_")
    resolved = _first(f"{owner}/{own}" if own else base, base, *_without_words(base))
    if resolved is None:
        raise _unknown(name, rest)
    return _file(name, resolved, tag or (stated[1] if stated else ""), f"a GGUF repository of {organisation}")


def _of_ollama(name: str, family: str, tag: str) -> NamedFile | None:
    """The file of a name of Ollama's library: FAMILY:SIZE-WORDS-FORMAT."""
    if not tag and family not in OLLAMA_LATEST:
        return None
    stated = _FORMAT.search(tag)
    plain = tag[: stated.start()] if stated else tag
    size = plain if plain not in ("", "latest") else OLLAMA_LATEST.get(family, "")
    named = OLLAMA_MODELS.get(f"{family}:{size.partition('-')[0]}")
    resolved = _first(named) if named else _first(*_spellings(family, size))
    if resolved is None:
        raise _unknown(name, f"{family}-{size}")
    own = "q4_0" if family in OLLAMA_Q4_0 or "qat" in plain.split("-") else USUAL
    usual = OLLAMA_FORMATS.get(f"{family}:{size.partition('-')[0]}", own)
    return _file(name, resolved, stated[1] if stated else "", "Ollama's name", usual)


def _file(name: str, resolved: aliases.Resolved, stated: str, where: str, usual: str = USUAL) -> NamedFile:
    if resolved.format:
        raise UserError(f"model '{printable(name)}' names two formats: GGUF and {resolved.format}")
    return NamedFile(known=resolved.known, stated=stated, usual=usual, where=where)


def _first(*names: str) -> aliases.Resolved | None:
    """The first of these names that leads to a known model."""
    return next((resolved for name in names if (resolved := aliases.resolve(name)) is not None), None)


def _spellings(family: str, size: str) -> Iterator[str]:
    """Names of ours that Ollama's may mean: llama3.2 is llama-3.2, 30b is 30b-a3b; without a word it is instruct."""
    hyphened = re.sub(r"(?<=[a-z])(?=\d)", "-", family, count=1)
    for start in dict.fromkeys((family, hyphened)):
        full = f"{start}-{size}"
        for spelled in (full, *_without_words(full)):
            yield from (spelled,) if "text" in size or "base" in size else (f"{spelled}-instruct", spelled)
            active = re.compile(re.escape(spelled) + r"-a\d+(\.\d+)?b(-instruct)?", re.ASCII)
            yield from sorted(filter(active.fullmatch, aliases.known_names()), key=len)


def _without_words(name: str) -> tuple[str, ...]:
    kept = [part for part in name.split("-") if part.lower() not in _WORDS]
    return ("-".join(kept),)


def _unknown(name: str, rest: str) -> UserError:
    close = nearest(data.normalized(rest), aliases.known_names())
    guess = f"; did you mean '{close}'?" if close else ""
    return UserError(
        f"model '{printable(name)}': no model here is called '{printable(rest)}'{guess} (`llmviewer models list`, or "
        "the path of the file)"
    )
