"""Headers of every response that restrict what a page may do, and checks of where a request comes from."""

from __future__ import annotations

import base64
import hashlib
import ipaddress
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

#: Headers that do not depend on the page.
FIXED: Mapping[str, str] = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
#: Values of Sec-Fetch-Site that a browser sends for pages of this server and for addresses that a user types.
OWN_SITE = ("same-origin", "none")
#: Names of this machine, as a browser sends them in Host.
LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")


def policy(script_hashes: Iterable[str] = ()) -> str:
    """The Content-Security-Policy of a page.  script_hashes: of its inline scripts, in the form of `script_hash`.

    Scripts are those of this server and inline ones with these hashes; styles may be inline, because tables and plots
    set widths and colours in them; pictures may be data of the page itself; no other site is asked for anything.
    """
    scripts = " ".join(["'self'", *(f"'{one}'" for one in script_hashes)])
    parts = (
        "default-src 'none'",
        f"script-src {scripts}",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data: blob:",
        "font-src 'self' data:",
        "connect-src 'self'",
        "worker-src 'self' blob:",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    )
    return "; ".join(parts)


def script_hash(script: str) -> str:
    """The source expression of an inline script: sha256 of its text between the tags, exactly as in the page."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def is_loopback(host: str) -> bool:
    """Whether an address is reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def host_name(header: str) -> str:
    """The name in a Host header without its port, in lower case; empty for one that cannot be read."""
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""


def is_own_origin(origin: str, host: str) -> bool:
    """Whether an Origin header is that of this server, by the Host header of the same request."""
    try:
        return urlsplit(origin).netloc.lower() == host.lower()
    except ValueError:
        return False
