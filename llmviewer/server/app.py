"""The web application: the JSON API and, if asked for, the pages, inside the guard."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from llmviewer.core.errors import missing_extra
from llmviewer.core.frozen import frozen
from llmviewer.server import guard, headers, limits, problems, routes
from llmviewer.server.limits import Budget

if TYPE_CHECKING:
    from flask import Flask

#: The rule by which Dash answers every path with its page.  The viewer has one page, at `/`, whose state is the query.
ANY_PATH = "/<path:path>"
#: The setting of an application that tells whether other machines reach it without a proxy (`Settings.is_direct`).
DIRECT = "DIRECT"


@frozen
class Settings:
    """How an application is served.

    host: the address it listens at.  public_host: the name by which a proxy on the same machine makes it public; empty
    without a proxy.  pages: whether it has pages beside the JSON API.  budgets: whether clients have a budget of
    computing time; None: where others than the user of this machine may reach it.  seconds: longest request [s].
    """

    host: str = "127.0.0.1"
    public_host: str = ""
    pages: bool = True
    budgets: bool | None = None
    seconds: float = limits.TIME_LIMIT_S

    @property
    def is_private(self) -> bool:
        """Whether only the user of this machine reaches it."""
        return headers.is_loopback(self.host) and not self.public_host

    @property
    def is_direct(self) -> bool:
        """Whether other machines reach it without a proxy, so that an address is a client."""
        return not (self.is_private or self.public_host)

    @property
    def hosts(self) -> tuple[str, ...]:
        """Names that requests may give this server; empty where any may be its name.

        A page elsewhere can give a name of its own to 127.0.0.1, but not change the Host header that tells it.
        """
        if not headers.is_loopback(self.host):
            return (self.public_host.lower(),) if self.public_host else ()
        return (*headers.LOCAL_NAMES, *([self.public_host.lower()] if self.public_host else []))


def create_app(settings: Settings | None = None) -> Flask:
    """The application of a server.  Raises UserError if the extra `web` is not installed."""
    asked = settings or Settings()
    app = _new_flask()
    app.config[DIRECT] = asked.is_direct
    problems.install(app)
    app.register_blueprint(routes.blueprint())
    if asked.pages:
        _mount_pages(app)
    budgets = not asked.is_private if asked.budgets is None else asked.budgets
    guard.install(app, hosts=asked.hosts, budget=Budget() if budgets else None, seconds=asked.seconds)
    if asked.public_host:
        from werkzeug.middleware.proxy_fix import ProxyFix

        app.wsgi_app = ProxyFix(app.wsgi_app, x_for=1, x_proto=1)  # type: ignore[method-assign]
    return app


def _mount_pages(app: Flask) -> None:
    """Add the pages, and the hashes of their inline scripts to the application's settings."""
    from importlib import import_module

    try:
        pages = import_module("llmviewer.reports.web.app")
    except ImportError as error:
        raise missing_extra(f"pages need packages of the extra web ({error})", "web") from error
    mounted = pages.mount(app, ledger_rows)
    app.config["SCRIPT_HASHES"] = [one.strip("'") for one in mounted.csp_hashes()]


@cache
def ledger_rows() -> tuple[tuple[str, str, int, float], ...]:
    """Source, address, number of figures and mean error of every table of published figures."""
    from llmviewer.calibrate import ledger, ledger_score

    errors = ledger_score.recorded_errors()
    tables = [one for one in ledger.load() if one.name in errors]
    return tuple((one.title, _address(one.source), len(one.rows), errors[one.name]) for one in tables)


def _address(citation: str) -> str:
    """The first address of a citation; the citation itself if it has none."""
    return next((word.rstrip(".,;)") for word in citation.split() if word.startswith("http")), citation)


def _new_flask() -> Flask:
    """An application that sends text compressed to who takes it: the pages' scripts are 8 MB of it."""
    try:
        import flask
        from flask_compress import Compress
    except ImportError as error:
        raise missing_extra("a server needs packages of the extra web", "web") from error

    class Server(flask.Flask):
        """An application in which unknown paths and wrong methods are errors, beside pages too."""

        def add_url_rule(self, rule: str, *given: Any, **named: Any) -> None:
            """Add a rule as Flask does, but none for every path."""
            if rule != ANY_PATH:
                super().add_url_rule(rule, *given, **named)

    app = Server("llmviewer.server", static_folder=None)
    app.config["COMPRESS_ALGORITHM"] = ["br", "gzip"]
    Compress(app)
    return app
