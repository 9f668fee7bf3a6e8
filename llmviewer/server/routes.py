"""The JSON API: one address per call, and the lists of the catalogue."""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING

from llmviewer.server import calls, guard, openapi

if TYPE_CHECKING:
    from flask import Blueprint, Response

JSON = "application/json"
#: How long a browser may keep what only changes with the version of the package [s].
KEPT_S = 3600


def blueprint() -> Blueprint:
    """The addresses under /api/v1."""
    from flask import Blueprint, Response

    made = Blueprint("api", __name__, url_prefix=openapi.PREFIX)

    def call(name: str) -> Response:
        body = guard.json_body()
        if isinstance(body, Response):
            return body
        return Response(calls.answer(name, body), mimetype=JSON, headers={"Cache-Control": "no-store"})

    def listed(name: str) -> Response:
        return Response(_fixed(name), mimetype=JSON, headers={"Cache-Control": f"public, max-age={KEPT_S}"})

    for name in calls.CALLS:
        made.add_url_rule(f"/{name}", name, call, methods=["POST"], defaults={"name": name})
    for name in (*calls.LISTS, "openapi.json"):
        made.add_url_rule(
            f"/{name}", f"list_{name.partition('.')[0]}", listed, methods=["GET"], defaults={"name": name}
        )
    return made


@cache
def _fixed(name: str) -> str:
    """A document that only changes with the version of the package, as text."""
    if name == "openapi.json":
        return json.dumps(openapi.document())
    return calls.text(calls.LISTS[name][0]())
