"""Fields of recorded requests: what traces, usage logs of gateways and spans of agents call times and lengths.

Names are in lower case, the surest first.  Where they stand: Azure https://github.com/Azure/AzurePublicDataset;
BurstGPT https://github.com/HPMLL/BurstGPT; Mooncake https://github.com/kvcache-ai/Mooncake; Bailian
https://github.com/alibaba-edu/qwen-bailian-usagetraces-anon; ServeGen https://github.com/alibaba/ServeGen; Vidur
https://github.com/microsoft/vidur; AIPerf https://github.com/ai-dynamo/aiperf/blob/main/docs/tutorials/custom-dataset.md;
LiteLLM https://github.com/BerriAI/litellm/blob/main/schema.prisma (LiteLLM_SpendLogs); Portkey
https://portkey.ai/docs/product/observability/logs-export; OpenRouter
https://openrouter.ai/docs/agent-sdk/typescript/operations/getgenerationdata; OpenTelemetry
https://opentelemetry.io/docs/specs/semconv/gen-ai/.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from datetime import date
from typing import Any

from llmviewer.core.errors import told

#: Characters of a token where a dataset has texts and no numbers of tokens.
CHARACTERS_PER_TOKEN = 4
#: Longest prompt or answer of a row [token].
MOST_TOKENS = 2**24

#: Times of arrival -> unit [s]; None: it is found from the values.
TIMES: dict[str, float | None] = {
    "arrival_s": 1.0, "arrival_ms": 1e-3, "arrived_at": 1.0, "timestamp": None, "start_time_unix_nano": 1e-9,
    "starttimeunixnano": 1e-9, "starttime": None, "start_time": None, "request_created_at": None, "created_at": None,
    "createdat": None, "created": None,
}  # fmt: skip
#: Times whose rows are in order; logs are written in the order of ends, or the newest first.
IN_ORDER = ("arrival_s", "arrival_ms", "arrived_at", "timestamp")
PROMPTS = (
    "input_length", "input_len", "prompt_len", "contexttokens", "request tokens", "num_prefill_tokens",
    "native_tokens_prompt", "nativetokensprompt", "prompt_tokens", "input_tokens", "tokens_prompt", "tokensprompt",
    "req_units", "tokens.prompt", "text_tokens", "gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens",
    "llm.usage.prompt_tokens", "llm.token_count.prompt",
)  # fmt: skip
ANSWERS = (
    "output_length", "output_len", "generatedtokens", "response tokens", "num_decode_tokens",
    "native_tokens_completion", "nativetokenscompletion", "output_tokens", "completion_tokens", "tokens_completion",
    "tokenscompletion", "res_units", "tokens.completion", "max_tokens", "gen_ai.usage.output_tokens",
    "gen_ai.usage.completion_tokens", "llm.usage.completion_tokens", "llm.token_count.completion",
)  # fmt: skip
#: Answers of which 0 tokens are a request that failed, or of a model that gives no answer.
MAY_FAIL = (
    "response tokens", "native_tokens_completion", "nativetokenscompletion", "completion_tokens", "tokens_completion",
    "tokenscompletion", "res_units", "tokens.completion", "gen_ai.usage.output_tokens",
    "gen_ai.usage.completion_tokens", "llm.usage.completion_tokens", "llm.token_count.completion",
)  # fmt: skip
#: Tokens beside those of the text of a prompt: lists of numbers in ServeGen's multimodal requests.
BESIDE_TEXT = ("image_tokens", "audio_tokens", "video_tokens")
#: Texts of prompts.
TEXTS = ("prompt", "text", "text_input", "input_text", "messages")
#: Time of a turn from the end of the one before it on [ms]; the field that names its conversation.
DELAY, SESSION = "delay", "session_id"
#: Fields of spans, and all that say why a request is left out.
SPANS = frozenset(("span_id", "spanid", "start_time_unix_nano", "starttimeunixnano"))
STATED = SPANS.union(
    (
        "status",
        "is_success",
        "status_code",
        "response_status_code",
        "cache_hit",
        "cache_status",
        "gen_ai.operation.name",
    )
)
#: Numbers of requests that a row sums up.
SUMS = ("num_model_requests", "api_requests", "requests", "n_requests")
#: Objects whose fields are those of the request, and lists of requests in an object.
INSIDE = ("attributes", "usage", "response", "body", "tokens")
LISTS = ("data", "logs", "spans", "requests", "resourcespans", "scopespans", "llm_calls")

#: Why requests are left out, as a note says.
FAILED = "failed requests of the trace, without an answer, are left out"
CACHED = "requests that the gateway answered from its own cache are left out"
NO_CALL = "spans that are no call of a model are left out"
UNANSWERED = "conversations without an answer are left out"
#: Operations of spans that hold calls, or none: https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans/.
NO_CALLS = ("invoke_agent", "create_agent", "execute_tool", "embeddings", "invoke_workflow")
FAILURES = ("failure", "failed", "error")
#: Hours of a day, and minutes of an hour.
HOURS, MINUTES = 24, 60
#: Status of HTTP from which a request has failed.
FIRST_FAILURE = 400


class RowError(Exception):
    """A row that is wrong; the text says what is wrong and what is allowed."""


def first_of(names: Mapping[str, Any] | tuple[str, ...], entry: Any) -> str | None:
    """The first of these names that an entry has."""
    return next((name for name in names if name in entry), None)


def requests_in(entry: Any) -> Iterator[Any]:
    """The requests of an object: itself, or those of the lists in it (pages of logs, spans of an export, sessions)."""
    if not isinstance(entry, dict):
        yield entry
        return
    found = {name.lower(): value for name, value in entry.items()}
    turns = found.get("turns")
    if isinstance(turns, list) and any(isinstance(turn, dict) and "llm_calls" in turn for turn in turns):
        for turn in turns:  # https://github.com/Azure/AzurePublicDataset: sessions of coding agents
            yield from requests_in(turn)
        return
    inner = next((found[name] for name in LISTS if isinstance(found.get(name), list)), None)
    if inner is None or first_of(PROMPTS, found):
        yield entry
        return
    for one in inner:
        yield from requests_in(one)


def flat(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an object in lower case, with those of its objects INSIDE, which do not replace its own."""
    own = {name.lower(): value for name, value in entry.items()}
    found: dict[str, Any] = {}
    for name in INSIDE:
        if name in own and (inner := _pairs(own[name])):
            prefix = f"{name}." if name == "tokens" else ""
            found |= {f"{prefix}{key}": value for key, value in flat(inner).items()}
    return {**found, **own}


def _pairs(value: Any) -> Mapping[str, Any]:
    """An object, also as the list of keys and values that OTLP writes; empty for another value."""
    if isinstance(value, list) and all(isinstance(one, dict) and {"key", "value"} <= set(one) for one in value):
        return {
            str(one["key"]): next(iter(one["value"].values()), None) if isinstance(one["value"], dict) else one["value"]
            for one in value
        }
    return value if isinstance(value, dict) else {}


def left_out(entry: Mapping[str, Any]) -> str:
    """Why a request is left out; empty: it is not."""
    if not STATED.isdisjoint(entry):
        status = str(entry.get("response_status_code", entry.get("status_code", "")))
        number = status.isdecimal() and int(status) >= FIRST_FAILURE
        success = str(entry.get("is_success", "")).lower() in ("0", "false")
        if number or success or str(entry.get("status", "")).lower() in FAILURES:
            return FAILED
        if str(entry.get("cache_hit", "")).lower() == "true" or str(entry.get("cache_status", "")).endswith("HIT"):
            return CACHED
        if entry.get("gen_ai.operation.name") in NO_CALLS or not (SPANS.isdisjoint(entry) or first_of(ANSWERS, entry)):
            return NO_CALL
    return FAILED if any(str(entry.get(name)).strip() in ("0", "0.0") for name in MAY_FAIL) else ""


def refuse_sums(entry: Mapping[str, Any]) -> None:
    """Raise RowError for a row that sums up several requests, as those of OpenAI's and OpenRouter's usage by day."""
    name = first_of(SUMS, entry)
    if name and str(entry[name]).strip() not in ("1", "1.0", "None", ""):
        raise RowError(f"it sums up {told(entry[name])} requests ({name}); expected a request in each row")


def whole(name: str, value: Any, least: int = 1) -> int:
    """A number of tokens.  Raises RowError."""
    if type(value) is str and value.isdecimal() and least <= (count := int(value)) <= MOST_TOKENS:
        return count
    try:
        number = float(value) if isinstance(value, str) and "." in value else int(value)
        if least <= number <= MOST_TOKENS and number == int(number) and (isinstance(value, str) or number == value):
            return int(number)
    except (ValueError, TypeError, OverflowError):
        pass
    raise RowError(f"{name} is {told(value)}; allowed: a whole number from {least} to {MOST_TOKENS:,}")


def numbers(value: Any) -> int:
    """The sum of a list of numbers of tokens, also as CSV has it: `[120, 80]`.  Raises RowError."""
    parts = value if isinstance(value, list) else re.findall(r"[^\s,\[\]]+", str(value))
    return sum(whole("tokens beside the text", part, 0) for part in parts)


def of_text(text: Any) -> int:
    """Estimated tokens of a text, or of the texts of messages; at least one.  Raises RowError."""
    if isinstance(text, list):
        return sum(
            of_text(one.get("content") or one.get("text") or "" if isinstance(one, dict) else one) for one in text
        )
    if not isinstance(text, str):
        raise RowError(f"a turn of the conversation is {told(text)}; expected a text")
    return max(-(-len(text) // CHARACTERS_PER_TOKEN), 1)


def a_number(name: str, value: Any) -> float:
    """A number of a time, in the unit of the file.  Raises RowError."""
    try:
        number = float(value)
    except (ValueError, TypeError, OverflowError):
        number = math.nan
    if not math.isfinite(number) or isinstance(value, bool):
        raise RowError(f"{name} is {told(value)}; allowed: a number")
    return number


#: A date and time with the zone behind it, and how one begins.
DATE = re.compile(
    r"\s*(\d{4}-\d\d-\d\d)[T ](\d\d):(\d\d):(\d\d(?:[.,]\d+)?)\s*(?:Z|UTC|([+-])(\d\d):?(\d\d)?)?\s*", re.ASCII
)
BEGINS = re.compile(r"\s*\d{4}-\d\d-", re.ASCII)
_DAYS: dict[str, float] = {}


def date_s(name: str, text: str) -> float | None:
    """Seconds of `2023-11-16 18:15:46.68` or `2026-01-01T00:00:00Z`; None for what is no date.  Raises RowError."""
    found = DATE.fullmatch(text)
    if found is None and BEGINS.match(text) is None:
        return None
    try:
        if found is None:
            raise ValueError(text)
        day, hour, minute, second, sign, east, minutes = found.groups()
        if day not in _DAYS:
            _DAYS[day] = date.fromisoformat(day).toordinal() * 86400.0
        hours, past, seconds = int(hour), int(minute), float(second.replace(",", "."))
        if not (hours < HOURS and past < MINUTES and seconds < MINUTES + 1):
            raise ValueError(text)
    except ValueError:
        raise RowError(f"{name} is {told(text)}; allowed: a time such as 2023-11-16 18:15:46.68") from None
    zone = 0.0 if sign is None else float(f"{sign}1") * (int(east) * 3600.0 + int(minutes or 0) * 60.0)
    return _DAYS[day] + hours * 3600.0 + past * 60.0 + seconds - zone
