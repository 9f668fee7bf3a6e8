"""Work of a forward pass from the mark that an engine set around it.

Requests, and over them the sums of new tokens q, of keys k, of q² and of q · k, apart for prompts (context) and for
generation.  vLLM writes execute_…_context_…_generation_…, SGLang step[…] (both with sums only if detailed annotations
are on), TensorRT-LLM "_forward_step N: … ctx reqs, … gen reqs", AMD's ATOM prefill[…] and decode[…]:
https://github.com/AMD-AGI/TraceLens/blob/main/TraceLens/TraceUtils/utils/annotation_utils.py,
https://github.com/NVIDIA/TensorRT-LLM/blob/main/tensorrt_llm/_torch/pyexecutor/py_executor.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from math import isnan, nan

from llmviewer.core.errors import UserError
from llmviewer.core.frozen import frozen
from llmviewer.core.workload import Group, Step

#: Stages that a user can state.
STAGES = ("prefill", "decode")
SUMS = re.compile(r"(sqsq|sqsk|sq|sk)=?(\d+)")
VLLM = re.compile(r"execute_\d+_context_(\d+)\(([^)]*)\)_generation_(\d+)\(([^)]*)\)")
#: Requests and new tokens of each kind (https://github.com/vllm-project/vllm/pull/31193).  Recordings with a second
#: number behind the tokens were seen; no public version of vLLM writes one, so that its meaning is not known.
VLLM_COUNTS = re.compile(r"execute_context_(\d+)\((\d+)(?:_\d+)?\)_generation_(\d+)\((\d+)(?:_\d+)?\)")
VLLM_OLD = re.compile(r"execute_new_(\d+)_cached_(\d+)")
SGLANG = re.compile(r"step\[(EXTEND|DECODE|MIXED|TARGET_VERIFY|DRAFT_EXTEND_V2)\b([^\]]*)\]")
TENSORRT = re.compile(r"_forward_step \d+: (\d+) ctx reqs, (?:(\d+) ctx tokens, )?(\d+) gen reqs")
ATOM = re.compile(r"(prefill|decode)\[bs=(\d+)(?:/\d+)? tok=(\d+)(.*)\]")


@frozen
class Sums:
    """Sums over requests of one kind; NaN where the mark does not state them.

    new: Σq, new tokens.  keys: Σk, keys that they see.  squares: Σq².  products: Σq·k.
    """

    requests: float = 0.0
    new: float = nan
    keys: float = nan
    squares: float = nan
    products: float = nan


@frozen
class Work:
    """Prompts and generating requests of one forward pass."""

    context: Sums = Sums()
    generation: Sums = Sums()

    @property
    def is_exact(self) -> bool:
        """Whether the mark states how many keys were read."""
        return not any(part.requests and isnan(part.products) for part in (self.context, self.generation))

    @property
    def phase(self) -> str:
        """`prefill`, `decode` or `mixed`."""
        if not self.context.requests:
            return "decode"
        return "mixed" if self.generation.requests else "prefill"


@frozen
class Stated:
    """Facts of a pass that the user states: requests, prompt length or keys [tokens], and STAGES; NaN or "" if not."""

    requests: float = nan
    length: float = nan
    stage: str = ""

    @property
    def is_whole(self) -> bool:
        """Whether the user states all of the work."""
        return not isnan(self.requests + self.length) and bool(self.stage)

    def work(self, tokens: float) -> Work:
        """The work of a pass without a mark.  tokens: new tokens of the pass if shapes in the recording tell, else NaN.

        Raises UserError that names the options if it is not stated.
        """
        length = tokens / self.requests if isnan(self.length) else self.length
        if isnan(self.requests + length) or not self.stage:
            options = "--stage prefill|decode --batch-size N --input-len N"
            raise UserError(f"no mark of the recording states the work of a pass: add {options}")
        if self.stage == "prefill":
            return Work(context=Sums(requests=self.requests, new=self.requests * length if isnan(tokens) else tokens))
        requests = self.requests if isnan(tokens) else tokens
        return Work(generation=Sums(requests=requests, new=requests))


def work_of(name: str) -> Work | None:
    """The work that a mark states; None for a mark of something else."""
    for pattern, reader in READERS:
        match = pattern.search(name)
        if match:
            return reader(match)
    return None


def _vllm(match: re.Match[str]) -> Work:
    return Work(context=_sums(float(match[1]), match[2]), generation=_sums(float(match[3]), match[4]))


def _sums(requests: float, text: str) -> Sums:
    found = {name: float(value) for name, value in SUMS.findall(text)}
    if text.isdigit():
        found["sq"] = float(text)
    return Sums(
        requests=requests,
        new=found.get("sq", nan),
        keys=found.get("sk", nan),
        squares=found.get("sqsq", nan),
        products=found.get("sqsk", nan),
    )


def _counts(match: re.Match[str]) -> Work:
    prompts, tokens, generating, new = map(float, match.groups())
    return Work(context=Sums(requests=prompts, new=tokens), generation=Sums(requests=generating, new=new))


def _old(match: re.Match[str]) -> Work:
    return Work(context=Sums(requests=float(match[1])), generation=Sums(requests=float(match[2])))


def _sglang(match: re.Match[str]) -> Work:
    """Fields c_… are of prompts, g_… of generation; bs counts requests, toks their new tokens."""
    fields = dict(re.findall(r"(\w+)=(\d+)", match[2]))
    requests, tokens = float(fields.get("bs", 0)), float(fields.get("toks", "nan"))
    parts = {}
    for letter in "cg":
        text = " ".join(f"{name[2:]}={value}" for name, value in fields.items() if name.startswith(f"{letter}_"))
        parts[letter] = _sums(float(fields.get(letter, requests)), text)
    context, generation = parts["c"], parts["g"]
    if match[1] in ("DECODE", "TARGET_VERIFY"):
        new = requests if isnan(generation.new) and match[1] == "DECODE" else generation.new
        return Work(generation=_replaced(generation, new))
    if match[1] == "MIXED":
        return Work(context=context, generation=generation)
    return Work(context=_replaced(context, tokens if isnan(context.new) else context.new))


def _replaced(sums: Sums, new: float) -> Sums:
    return Sums(requests=sums.requests, new=new, keys=sums.keys, squares=sums.squares, products=sums.products)


def _tensorrt(match: re.Match[str]) -> Work:
    prompts, tokens, generating = (nan if text is None else float(text) for text in match.groups())
    return Work(
        context=Sums(requests=prompts, new=tokens if prompts else nan),
        generation=Sums(requests=generating, new=generating),
    )


def _atom(match: re.Match[str]) -> Work:
    part = _sums(float(match[2]), match[4])
    part = _replaced(part, float(match[3]))
    return Work(context=part) if match[1] == "prefill" else Work(generation=part)


#: Pattern of a mark -> its reader; the first match counts.
READERS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], Work]], ...] = (
    (VLLM, _vllm),
    (VLLM_COUNTS, _counts),
    (VLLM_OLD, _old),
    (SGLANG, _sglang),
    (TENSORRT, _tensorrt),
    (ATOM, _atom),
)


def step_of(work: Work, stated: Stated) -> Step:
    """The forward pass with this work; its prompts and its generating requests each are one group of equal requests.

    A group keeps the requests, Σq, Σq·k and the causal pairs Σq(q+1)/2 of the mark.
    Raises UserError that names the options if the mark does not state the lengths and the user does not either.
    """
    groups = [
        _group(sums, cached, logits)
        for sums, cached, logits in (
            (_completed(work.context, stated.length), 0.0, 1.0),
            (_completed(work.generation, 1.0), stated.length - 1.0, nan),
        )
        if sums.requests
    ]
    if not groups:
        raise UserError("a recorded pass has no requests")
    return Step(tuple(groups))


def _completed(sums: Sums, new: float) -> Sums:
    """The sums with the number of new tokens of each request, where the mark does not state it."""
    if not sums.requests or not isnan(sums.new):
        return sums
    if isnan(new):
        raise UserError("the marks of the trace do not state the length of prompts: add --input-len N")
    return _replaced(sums, sums.requests * new)


def _group(sums: Sums, cached: float, logits: float) -> Group:
    """One group with the sums of a mark.  logits: rows of logits per request, NaN: one for each new token."""
    new = sums.new / sums.requests
    if not isnan(sums.products) and not isnan(sums.squares):
        cached = (sums.products - sums.squares) / sums.new
    elif isnan(cached):
        raise UserError("the marks of the trace do not state the tokens in the cache: add --input-len N")
    squares = sums.squares if not isnan(sums.squares) else new * sums.new
    return Group(
        batch_size=sums.requests,
        new_tokens=new,
        cached_tokens=cached,
        logit_positions=new if isnan(logits) else logits,
        attended_new_pairs=(squares + sums.new) * 0.5 / sums.requests,
    )
