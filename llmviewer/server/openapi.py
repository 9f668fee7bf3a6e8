"""The description of the HTTP API as OpenAPI 3.1, made from the calls and the schemas of their arguments."""

from __future__ import annotations

from typing import Any

from llmviewer.core.version import __version__
from llmviewer.questions import Question
from llmviewer.server import arguments, limits, problems
from llmviewer.server.calls import CALLS, CHEAP, LISTS

PREFIX = "/api/v1"
SUMMARY = "Predictions of how fast a language model runs on a chip, why, and what to change."
#: Statuses of problems that every address, and every call, may answer with.
OF_ALL, OF_CALLS = (404, 405, 408, 414, 417, 421, 429, 431, 500, 501, 503), (400, 403, 413, 415)


def document() -> dict[str, Any]:
    """The OpenAPI document: one path per call and per list of the catalogue."""
    paths: dict[str, Any] = {f"{PREFIX}/{call.name}": {"post": _posted(call)} for call in CALLS.values()}
    for name in CHEAP:
        paths[f"{PREFIX}/{name}"]["get"] = _got(CALLS[name])
    paths |= {f"{PREFIX}/{name}": {"get": _listed(name, summary)} for name, (_, summary) in LISTS.items()}
    return {
        "openapi": "3.1.0",
        "info": {"title": "llmviewer", "version": __version__, "description": f"{SUMMARY} {_bounds()}"},
        "paths": paths,
        "components": {
            "schemas": {
                "Problem": _problem(),
                **{_name(call): _asked(call) for call in CALLS.values()},
            },
            "responses": {_response(status): _described(status) for status in (*OF_ALL, *OF_CALLS)},
        },
    }


def _asked(call: Question) -> dict[str, Any]:
    """The arguments of a call without those that would name files."""
    return arguments.without(arguments.schema(call.name), arguments.OF_FILES)


def _bounds() -> str:
    return (
        f"A request has at most {limits.MAX_BODY_BYTES // 2**20} MiB, {limits.MAX_POINTS:,} points of a sweep and"
        f" {limits.MAX_REQUESTS:,} simulated requests, and takes at most {limits.TIME_LIMIT_S:g} s."
    )


def _posted(call: Question) -> dict[str, Any]:
    content = {"schema": {"$ref": f"#/components/schemas/{_name(call)}"}, "example": dict(call.example)}
    answer = {
        "type": "object",
        "properties": {"schema": {"const": call.schema}},
        "required": ["schema"],
        "description": f"The document of `llmviewer {call.name} --format json`.",
    }
    return {
        "operationId": call.name,
        "summary": call.summary,
        "description": call.use,
        "requestBody": {"required": True, "content": {"application/json": content}},
        "responses": {
            "200": {"description": call.summary, "content": {"application/json": {"schema": answer}}},
            **_problems(*OF_ALL, *OF_CALLS),
        },
    }


def _got(call: Question) -> dict[str, Any]:
    """Path of a question that is asked by its address: each argument is a parameter of the query."""
    posted = _posted(call)
    schema = {"$ref": f"#/components/schemas/{_name(call)}"}
    own = {"name": "arguments", "in": "query", "required": True, "style": "form", "explode": True, "schema": schema}
    more = f"A name that comes several times is a list; objects are JSON. {call.use}"
    responses = {**{status: one for status, one in posted["responses"].items() if status != "415"}, **_kept()}
    kept = {name: one for name, one in posted.items() if name != "requestBody"}
    return {**kept, "operationId": f"get_{call.name}", "description": more, "parameters": [own], "responses": responses}


def _kept() -> dict[str, Any]:
    return {"304": {"description": "What has the tag in If-None-Match, the ETag of an earlier answer, is unchanged."}}


def _listed(name: str, summary: str) -> dict[str, Any]:
    answer = {"type": "array", "items": {"type": "object", "properties": {"name": {"type": "string"}}}}
    return {
        "operationId": f"list_{name}",
        "summary": summary,
        "responses": {
            "200": {"description": summary, "content": {"application/json": {"schema": answer}}},
            **_kept(),
            **_problems(*OF_ALL),
        },
    }


def _problems(*statuses: int) -> dict[str, Any]:
    return {str(status): {"$ref": f"#/components/responses/{_response(status)}"} for status in sorted(statuses)}


def _described(status: int) -> dict[str, Any]:
    title, usual = problems.TITLES[status]
    schema = {"$ref": "#/components/schemas/Problem"}
    found: dict[str, Any] = {
        "description": f"{title}: {usual}.",
        "content": {problems.MEDIA_TYPE: {"schema": schema, "example": problems.document(status)}},
    }
    if status in (429, 503):
        seconds = {
            "description": "Seconds to wait; of 503 only where the server is busy with other requests.",
            "schema": {"type": "integer"},
        }
        found["headers"] = {"Retry-After": seconds}
    return found


def _problem() -> dict[str, Any]:
    """The schema of RFC 9457."""
    members = {
        "type": {"type": "string", "format": "uri-reference", "description": "about:blank: the status says it all."},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "The line that a user of the command line reads."},
        "instance": {"type": "string", "format": "uri-reference"},
    }
    return {"type": "object", "properties": members, "required": ["type", "title", "status", "detail"]}


def _name(call: Question) -> str:
    return call.name.capitalize()


def _response(status: int) -> str:
    return problems.TITLES[status][0].title().replace(" ", "")
