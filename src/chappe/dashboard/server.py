"""Serves the dashboard's pages to browsers, until it is stopped.

The pages are NiceGUI's: elements live here, a browser shows them and hears of changes over one WebSocket. All assets
come from the package that is installed; a page asks no other host for anything.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import socket
import ssl
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from chappe.api.metrics import NumbersCollector
from chappe.api.serving import Office, server_tls
from chappe.dashboard.gatekeeper import Gatekeeper
from chappe.dashboard.looks import Looks
from chappe.errors import ChappeError, UsageError
from chappe.observing.numbers import Family, of_snapshot
from chappe.observing.snapshot import to_json
from chappe.security import Keys, Security, Tls, is_loopback

try:
    import uvicorn
    from fastapi import FastAPI, Response
    from nicegui import app as pages_app
    from nicegui import core, ui
    from prometheus_client import CONTENT_TYPE_LATEST as CONTENT_TYPE
    from prometheus_client import CollectorRegistry, generate_latest

    from chappe.dashboard.pages.frame import root
    from chappe.web.connections import SILENT_MAX, CertifiedWebSocket, HandshakeLoop, PageHttp, TaskFailures
except ImportError as problem:
    raise ChappeError(
        f"the dashboard needs further packages ({problem.name}): pip install 'chappe[dashboard]'"
    ) from None

VIEWERS_MAX: Final = 50  # connections are three or four a page
TOKEN: Final = re.compile(r"[A-Za-z0-9._~-]{16,}")  # what means itself in an address and in a cookie
RECONNECT_S: Final = 5.0
HISTORY: Final = 100  # messages to a page that are kept for when its connection is lost for a moment


def new_token(host: str, given: str | None = None, *, changes: bool = False) -> str | None:
    """Return the token that visitors need, given or new; on loopback None, unless they may change things.

    Raises UsageError.
    """
    if given is not None and not TOKEN.fullmatch(given):
        raise UsageError(
            "a token has at least 16 characters, each of them a letter, a digit or one of -._~: "
            "leave CHAPPE_DASHBOARD_TOKEN unset to have one made"
        )
    if is_loopback(host) and not changes:
        return given
    return given or secrets.token_urlsafe(24)


def secured(host: str, security: Security | Keys) -> tuple[ssl.SSLContext | None, Office | None]:
    """Return TLS for a page on ``host``, and what lets in identities; neither on loopback, nor where plain is chosen.

    Raises:
        UsageError: The host is reachable from other machines, and nothing says how it is to be protected.
        ConfigError: The permissions are not as the authority signed them.
    """
    if is_loopback(host):
        return None, None
    if isinstance(security, Keys):
        office = Office(security)
        return office.tls, office
    if security == "plain":
        return None, None
    if not isinstance(security, Tls):
        raise UsageError(
            f"{host} is not this machine: give the dashboard an identity, --as DIRECTORY/NAME (`chappe keys` makes "
            "it), or --plain if everybody on the way may read the token and what is shown"
        )
    return server_tls(security, host, tokens=True), None


def url(host: str, port: int, token: str | None, *, tls: bool = False) -> str:
    shown = socket.gethostname() if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
    return f"http{'s' if tls else ''}://{shown}:{port}/" + (f"?token={token}" if token is not None else "")


def as_text(families: Iterable[Family]) -> bytes:
    """Return numbers in the text format of Prometheus."""

    registry = CollectorRegistry(auto_describe=False)
    registry.register(NumbersCollector(lambda: families))
    return generate_latest(registry)


def serve(
    looks: Looks,
    listener: socket.socket,
    token: str | None,
    ready: Callable[[], None],
    tls: ssl.SSLContext | None = None,
    office: Office | None = None,
) -> None:
    """Serve pages until SIGTERM or Ctrl-C, which are raised when all is in order; a process serves once.

    Args:
        looks: What pages show.
        listener: See ``chappe.web.connections.listening``.
        token: See ``new_token``.
        ready: Called when pages can be opened.
        tls: See ``secured``.
        office: Likewise.
    """
    logging.getLogger("nicegui").setLevel(logging.ERROR)
    made = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)

    def snapshot() -> Response:
        return Response(to_json(looks.watching.snapshot()), media_type="application/json")

    def metrics() -> Response:
        return Response(as_text(of_snapshot(looks.watching.snapshot())), media_type=CONTENT_TYPE)

    made.add_api_route("/snapshot.json", snapshot, methods=["GET"])
    made.add_api_route("/metrics", metrics, methods=["GET"])
    core.app.config.socket_io_js_transports = ["websocket"]
    ui.run_with(
        made,
        root=lambda: root(looks),
        title="chappe",
        favicon="📡",
        dark=None,
        language="en-US",
        reconnect_timeout=RECONNECT_S,
        message_history_length=HISTORY,
        gzip_middleware_factory=None,
        tailwind=False,
        show_welcome_message=False,
    )
    pages_app.on_startup(ready)
    config = uvicorn.Config(
        Gatekeeper(made, token, listener.getsockname()[1], office),
        http=partial(PageHttp, {}),  # type: ignore[arg-type]  # uvicorn calls it
        ws=CertifiedWebSocket,
        lifespan="on",
        log_config=None,
        log_level=logging.CRITICAL,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        limit_concurrency=4 * VIEWERS_MAX + SILENT_MAX,
        ssl_context_factory=None if tls is None else lambda config, default: tls,
        timeout_graceful_shutdown=1,
        ws_per_message_deflate=False,
        ws_max_size=1 << 20,
    )
    with asyncio.Runner(loop_factory=HandshakeLoop) as runner:
        runner.get_loop().set_exception_handler(TaskFailures())
        runner.run(
            uvicorn.Server(config).serve(sockets=[listener])
        )  # it obeys SIGTERM and Ctrl-C, and raises them then
