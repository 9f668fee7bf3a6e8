"""The JSON API: one address per call, and the lists of the catalogue."""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING

from llmviewer.core.errors import UserError, quoted
from llmviewer.server import arguments, calls, guard, openapi

if TYPE_CHECKING:
    from flask import Blueprint, Response

JSON = "application/json"
#: How long a browser may keep what only changes with the version of the package [s].
KEPT_S = 3600


def blueprint() -> Blueprint:
    """The addresses under /api/v1."""
    from flask import Blueprint, Response, request

    made = Blueprint("api", __name__, url_prefix=openapi.PREFIX)

    def refuse_query(why: str) -> None:
        for unread in request.args:
            raise UserError(f"{why}; remove {quoted(unread)} from the address")

    def call(name: str) -> Response:
        refuse_query("the arguments of a POST are its body")
        body = guard.json_body()
        if isinstance(body, Response):
            return body
        return Response(calls.answer(name, body), mimetype=JSON, headers={"Cache-Control": "no-store"})

    def called(name: str) -> Response:
        given = arguments.of_query(name, request.args.items(multi=True))
        return _tagged(Response(calls.answer(name, given), mimetype=JSON, headers={"Cache-Control": "no-cache"}))

    def listed(name: str) -> Response:
        refuse_query(f"{name} takes no arguments")
        kept = {"Cache-Control": f"public, max-age={KEPT_S}"}
        return _tagged(Response(_fixed(name), mimetype=JSON, headers=kept))

    for name in calls.CALLS:
        made.add_url_rule(f"/{name}", name, call, methods=["POST"], defaults={"name": name})
    for name in calls.CHEAP:
        made.add_url_rule(f"/{name}", f"get_{name}", called, methods=["GET"], defaults={"name": name})
    for name in (*calls.LISTS, "openapi.json"):
        made.add_url_rule(
            f"/{name}", f"list_{name.partition('.')[0]}", listed, methods=["GET"], defaults={"name": name}
        )
    return made


def _tagged(answer: Response) -> Response:
    """An answer with a tag of its content, or 304 for who has it; weak, as it may be sent compressed."""
    from flask import request

    answer.add_etag(weak=True)
    answer.make_conditional(request)
    return answer


@cache
def _fixed(name: str) -> str:
    """A document that only changes with the version of the package, as text."""
    if name == "openapi.json":
        return json.dumps(openapi.document())
    return calls.text(calls.LISTS[name][0]())
