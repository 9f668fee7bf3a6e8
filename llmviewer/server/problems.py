"""Errors over HTTP as documents of RFC 9457: what a reader of the command line reads, and nothing about the server."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flask import Flask, Response

MEDIA_TYPE = "application/problem+json"
#: Status -> title of the problem, and a sentence where no other is known.
TITLES: Mapping[int, tuple[str, str]] = {
    400: ("Wrong input", "the request cannot be read"),
    403: ("Refused", "the request comes from a page of another origin"),
    404: ("Not found", "nothing is served at this address"),
    405: ("Method not allowed", "this address takes another method"),
    408: ("Late", "the request did not arrive whole in time"),
    413: ("Too large", "the request is too large"),
    414: ("Too long", "the address is too long; send the arguments in the body of a POST"),
    415: ("Wrong media type", "send the arguments as JSON, with the header Content-Type: application/json"),
    417: ("Expectation failed", "the header Expect may be 100-continue alone"),
    421: ("Wrong host", "this server does not answer for that host"),
    429: ("Too many requests", "the computing time of this client is used up; try again later"),
    431: ("Head too large", "the head of the request has too many fields, or one that is too long"),
    500: ("Internal error", "the server failed to answer; the error is in its log"),
    501: ("Not implemented", "the transfer coding is unknown; allowed: chunked"),
    503: ("Over time", "the request takes longer than this server allows; ask for less"),
}


def document(status: int, detail: str = "", instance: str = "") -> dict[str, Any]:
    """The members of a problem.  detail: the line for the user; by default that of the status.  instance: the path."""
    title, usual = TITLES.get(status, ("Error", "the request cannot be answered"))
    found = {"type": "about:blank", "title": title, "status": status, "detail": detail or usual}
    return {**found, "instance": instance} if instance else found


def response(status: int, detail: str = "", headers: Mapping[str, str] | None = None) -> Response:
    """The response of a problem at the path of the running request."""
    from flask import Response, request

    body = json.dumps(document(status, detail, request.path))
    return Response(body, status=status, mimetype=MEDIA_TYPE, headers=dict(headers or {}))


def install(app: Flask) -> None:
    """Answer every error of an application with a problem; unexpected ones are logged with their traceback."""
    from werkzeug.exceptions import HTTPException

    from llmviewer.core.errors import UserError

    @app.errorhandler(UserError)
    def wrong_input(error: UserError) -> Response:
        return response(400, str(error))

    @app.errorhandler(HTTPException)
    def http_error(error: HTTPException) -> Response:
        status = error.code or 500
        own = {} if status != 405 else {name: value for name, value in error.get_headers() if name == "Allow"}
        return response(status, "" if status in TITLES else error.name.lower(), own)

    @app.errorhandler(MemoryError)
    def too_much_memory(_: MemoryError) -> Response:
        return response(413, "the request needs more memory than this server allows; ask for less")

    @app.errorhandler(Exception)
    def unexpected(error: Exception) -> Response:
        app.logger.error("unexpected error", exc_info=error)
        return response(500)
