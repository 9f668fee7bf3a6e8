"""The guard around every request: no file of the server, a time limit, the client's budget, and safe headers."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any, TypeAlias

from llmviewer.core import files
from llmviewer.core.frozen import frozen
from llmviewer.server import headers, limits, problems
from llmviewer.server.calls import CHEAP
from llmviewer.server.limits import Budget, client_of
from llmviewer.server.openapi import PREFIX

if TYPE_CHECKING:
    from flask import Flask, Response

Environ: TypeAlias = "dict[str, Any]"
StartResponse: TypeAlias = Callable[..., Any]
#: Methods that a page of another origin may use without harm.
READING = ("GET", "HEAD", "OPTIONS")
#: Beginnings of paths that compute an answer whatever the method.
COMPUTING = ("/download/", *(f"{PREFIX}/{name}" for name in CHEAP))


@frozen
class Guard:
    """A WSGI application around another one.

    hosts: names that Host may have; empty: any.  budget: of the clients; None: as much as they like.
    """

    inner: Callable[[Environ, StartResponse], Iterable[bytes]]
    hosts: tuple[str, ...] = ()
    budget: Budget | None = None
    seconds: float = limits.TIME_LIMIT_S
    policy: str = field(default_factory=headers.policy)

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """The response of the guarded application, or the problem why there is none."""
        refused = self._refusal(environ)
        if refused is not None:
            return self._problem(environ, start_response, *refused)
        client, began = client_of(environ), time.thread_time()
        try:
            with files.only_package_data():
                return limits.within(self.seconds, lambda: self._answered(environ, start_response))
        except limits.OverTimeError:
            return self._problem(environ, start_response, 503, *self._busy(time.thread_time() - began))
        finally:
            if self.budget is not None:
                self.budget.charge(client, time.thread_time() - began)

    def _busy(self, computed_s: float) -> tuple[str, dict[str, str]]:
        """Detail and headers where a request that is over its time waited for others more than it computed itself.

        By the end of another such time all of these have ended.
        """
        if computed_s > 0.5 * self.seconds:
            return "", {}
        return "the server is busy with other requests; try again later", {"Retry-After": str(math.ceil(self.seconds))}

    def _answered(self, environ: Environ, start_response: StartResponse) -> list[bytes]:
        """The whole body; nothing of a response is sent before all of it is made."""
        started: list[tuple[Any, ...]] = []

        def start(*given: Any) -> None:
            started.append(given)

        body = self.inner(environ, start)
        try:
            made = list(body)
        finally:
            close = getattr(body, "close", None)
            if close is not None:
                close()
        status, own, *_ = started[-1]
        start_response(status, self._with_headers(own))
        return made

    def _refusal(self, environ: Mapping[str, Any]) -> tuple[int, str, dict[str, str]] | None:
        """Status, detail and headers of a request that is not answered."""
        host = str(environ.get("HTTP_HOST", ""))
        if self.hosts and headers.host_name(host) not in self.hosts:
            return 421, "", {}
        computes = environ.get("REQUEST_METHOD") not in READING or str(environ.get("PATH_INFO")).startswith(COMPUTING)
        if computes and not _is_own(environ, host):
            return 403, "", {}
        wait = 0 if self.budget is None else self.budget.wait_s(client_of(environ))
        return (429, "", {"Retry-After": str(wait)}) if wait else None

    def _problem(
        self, environ: Environ, start_response: StartResponse, status: int, detail: str = "", more: Any = None
    ) -> list[bytes]:
        body = json.dumps(problems.document(status, detail, str(environ.get("PATH_INFO", "")))).encode()
        own = [("Content-Type", problems.MEDIA_TYPE), ("Content-Length", str(len(body))), *(more or {}).items()]
        start_response(f"{status} {problems.TITLES[status][0]}", self._with_headers(own))
        return [body]

    def _with_headers(self, own: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
        added = {**headers.FIXED, "Content-Security-Policy": self.policy}
        kept = [(name, value) for name, value in own if name not in added and name.lower() != "server"]
        return [*kept, *added.items()]


def _is_own(environ: Mapping[str, Any], host: str) -> bool:
    """Whether a request that computes comes from a page of this server, or from no page at all."""
    site, origin = environ.get("HTTP_SEC_FETCH_SITE"), environ.get("HTTP_ORIGIN")
    return site in (None, *headers.OWN_SITE) and (origin is None or headers.is_own_origin(str(origin), host))


def install(app: Flask, **settings: Any) -> None:
    """Put the guard around an application, whose own pages may have named hashes of inline scripts.

    settings: fields of `Guard`.  The pages leave their hashes in the list `app.config["SCRIPT_HASHES"]`.
    """
    policy = headers.policy(app.config.get("SCRIPT_HASHES", ()))
    app.config["MAX_CONTENT_LENGTH"] = limits.MAX_BODY_BYTES
    app.wsgi_app = Guard(inner=app.wsgi_app, policy=policy, **settings)  # type: ignore[method-assign]


def json_body(allowed_bytes: int = limits.MAX_BODY_BYTES) -> object | Response:
    """The value in the body of the running request, or the problem why it cannot be read.  Raises UserError."""
    from flask import request

    from llmviewer.core import parsing
    from llmviewer.core.errors import UserError, printable

    if request.mimetype != "application/json":
        return problems.response(415)
    body = request.get_data(cache=False)
    if len(body) > allowed_bytes:
        return problems.response(413)
    try:
        found: object = parsing.from_json(body.decode("utf-8"))
    except ValueError as error:
        raise UserError(f"the request cannot be read as JSON: {printable(error, 160)}") from error
    return found
