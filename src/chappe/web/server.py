"""The WebSocket face of an endpoint: a server in a thread of its own, with an event loop; who may be its client.

A browser lets any page of the web open a WebSocket to any address, this machine's included, and only tells the server
where the page came from: its origin. Pages of this machine may connect, and those that were named; no others. Programs
that are not browsers send no origin and may connect: they could send any. On loopback the name that was dialled has to
be one of this machine as well: a name of elsewhere that is made to mean 127.0.0.1 is a page's way around its browser.

Beside an endpoint with an identity each client is an identity, too: the one that its certificate names, or its token.
It may do what the permissions allow both to it and to the endpoint; one that is revoked or expires is ended within
seconds, and so is one whose token ends. Beside an endpoint with certificates alone nothing but the authority is asked.

Of the connections that are no clients yet the oldest gives way where there are too many. A client that has not sent
its first frame gives way to any that comes. Where all have, one of the host that has the most gives way to a client of
a host that has fewer; so nobody can keep all others out.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, Protocol, Self
from urllib.parse import urlsplit

from chappe import defaults
from chappe.api.mesh.aio import AsyncEndpoint
from chappe.api.mesh.arguments import OnFull, as_policy, check_bounds
from chappe.api.mesh.endpoint import Endpoint
from chappe.api.mesh.identity import Behind
from chappe.api.serving import Door, may_be_dialled, server_tls
from chappe.defaults import (
    RULES_LOOK_S,
    WEBSOCKET_BYTES_MAX,
    WEBSOCKET_CLIENTS_MAX,
    WEBSOCKET_MESSAGES_MAX,
)
from chappe.errors import ChappeError, NotPermitted, UsageError
from chappe.permissions.rules import Permissions
from chappe.security import is_loopback
from chappe.system import time
from chappe.system.forking import own

try:
    import uvicorn
    import websockets  # noqa: F401  # uvicorn imports it when a client comes
    from starlette.applications import Starlette
    from starlette.responses import PlainTextResponse
    from starlette.routing import WebSocketRoute
    from starlette.websockets import WebSocket

    from chappe.web.connections import BriefHttp, CertifiedWebSocket, HandshakeLoop, TaskFailures, listening
    from chappe.web.session import PATH, PROTOCOL, Rights, WebSocketSession
except ImportError:
    raise ChappeError("the WebSocket face needs further packages: pip install 'chappe[web]'") from None

logger = logging.getLogger(__name__)

_PORTS: Final = {"http": 80, "https": 443}


def check_origins(origins: Iterable[str]) -> frozenset[str]:
    """Return origins that a user named, in the form that browsers send; raises UsageError."""
    return frozenset([_normal(each) for each in origins])


def may_connect(found: Sequence[str], named: frozenset[str]) -> bool:
    """True if a client with the ``Origin`` headers ``found`` may connect."""
    if not found:
        return True
    if len(found) > 1:
        return False
    try:
        origin = _normal(found[0])
    except UsageError:  # such as `null`, of files and of frames that hide where they are from
        return False
    return origin in named or is_loopback(urlsplit(origin).hostname or "")


def _normal(origin: str) -> str:
    try:
        parts = urlsplit(origin.strip())
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
        parts = urlsplit("")
    extra = parts.path.strip("/") or parts.query or parts.fragment or parts.username
    if parts.scheme not in _PORTS or not host or extra:
        raise UsageError(f"{origin!r} is not an origin of web pages, which looks like https://example.org:8443")
    name = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{name}" + ("" if port in (None, _PORTS[parts.scheme]) else f":{port}")


class Guest(Protocol):
    def give_way(self) -> None:
        """End the client's session to make room for another one."""

    def look(self, now: float) -> None:
        """End it, if it may be here no more; ``now`` is in seconds since 1970."""


class Room:
    """The clients of one server; in a single thread."""

    def __init__(self) -> None:
        self._silent: dict[Guest, str] = {}  # by host, the oldest first
        self._speaking: dict[Guest, str] = {}

    def __len__(self) -> int:
        return len(self._silent) + len(self._speaking)

    def look(self, now: float) -> None:
        """Make every client check whether it is still permitted."""
        for each in [*self._silent, *self._speaking]:
            each.look(now)

    def enter(self, guest: Guest, host: str) -> bool:
        """Add a client; return False if there is no room for it."""
        if len(self) >= WEBSOCKET_CLIENTS_MAX:
            loser = self._loser(host)
            if loser is None:
                return False
            self.leave(loser)
            loser.give_way()
        self._silent[guest] = host
        return True

    def spoke(self, guest: Guest) -> None:
        if guest in self._silent:
            self._speaking[guest] = self._silent.pop(guest)

    def leave(self, guest: Guest) -> None:
        """Forget a client that has gone. Safe to call twice."""
        self._silent.pop(guest, None)
        self._speaking.pop(guest, None)

    def _loser(self, host: str) -> Guest | None:
        if self._silent:
            return next(iter(self._silent))
        counts = Counter(self._speaking.values())
        greedy, most = counts.most_common(1)[0]
        if counts[host] + 1 >= most:
            return None
        return next(each for each in reversed(self._speaking) if self._speaking[each] == greedy)


class WebSocketServer:
    """Serves the JSON protocol of ``chappe.web.session`` to pages and programs, until it is closed.

    A client is as a peer of the endpoint: what it publishes goes to the endpoint's peers, to subscribers in this
    process and to the other clients. Close it before the endpoint, or use it in a ``with``.

    Args:
        endpoint: The endpoint to serve. Its security is also the server's: plain within this machine; certificates,
            which clients need as well. With an identity (``Keys``) a client is one, too, by its certificate or by a
            token, and may do what the permissions let it.
        host: Listening address; ``*`` for all interfaces.
        port: 0 takes any that is free.
        origins: Of web pages that may connect besides those of this machine, such as ``https://example.org``.
        on_full: What happens to a client that takes less than it subscribed to: ``disconnect`` (close code 1013),
            ``drop_oldest`` or ``drop_newest``.
        messages_max: How many messages may wait for one client; then ``on_full`` applies.
        bytes_max: How many bytes.

    Attributes:
        port: The port that it listens on.

    Raises:
        UsageError: The security does not allow that host, or an argument is wrong.
        AddressInUse: The port is taken.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        origins: Iterable[str] = (),
        on_full: OnFull = "disconnect",
        messages_max: int = WEBSOCKET_MESSAGES_MAX,
        bytes_max: int = WEBSOCKET_BYTES_MAX,
    ) -> None:
        own(self)
        as_policy(on_full)
        if on_full == "block":
            raise UsageError("a client may not block everybody: 'disconnect', 'drop_oldest' or 'drop_newest'")
        check_bounds(messages_max, bytes_max)
        self._origins = check_origins(origins)
        self._queue = {"on_full": on_full, "messages_max": messages_max, "bytes_max": bytes_max}
        self._endpoint = endpoint
        self._async: AsyncEndpoint | None = None  # once the loop runs
        self._room = Room()
        self._host = host
        self._door = None if endpoint.permitted is None else Door(self._permissions)
        self._tls = server_tls(endpoint.security, host, tokens=self._door is not None)
        self._socket = listening(host, port)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # of connections that it will accept
            stuck_ms = int(defaults.WEBSOCKET_STUCK_S * 1000)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, stuck_ms)
        self.port: int = self._socket.getsockname()[1]
        self._server = uvicorn.Server(self._config())
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="chappe-websocket", daemon=True)
        self._thread.start()
        self._started.wait()

    @property
    def url(self) -> str:
        """The address that clients connect to."""
        scheme = "ws" if self._tls is None else "wss"
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{scheme}://{host}:{self.port}{PATH}"

    @property
    def clients(self) -> int:
        """The number of connected clients."""
        return len(self._room)

    @property
    def refused(self) -> int:
        """The number of refused clients; 0 beside an endpoint without an identity."""
        return 0 if self._door is None else self._door.refusals.count

    def close(self) -> None:
        """Say goodbye to all clients and release everything; takes about two seconds at most. Safe to call twice."""
        self._server.should_exit = True
        if self._thread is not threading.current_thread():
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- inside ---------------------------------------------------------------------------------------

    def _permissions(self) -> Permissions:
        rules = self._endpoint.core.router.rules
        assert rules is not None
        return rules.permissions

    def _config(self) -> uvicorn.Config:
        tls = self._tls
        return uvicorn.Config(
            Starlette(routes=[WebSocketRoute(PATH, self._serve)], lifespan=self._lifespan),
            http=partial(BriefHttp, {}),  # type: ignore[arg-type]  # uvicorn calls it
            ws=CertifiedWebSocket,
            lifespan="on",
            log_config=None,
            log_level=logging.CRITICAL,  # sessions report their defects themselves
            access_log=False,
            proxy_headers=False,
            server_header=False,
            ws_max_size=defaults.WEBSOCKET_FRAME_BYTES_MAX,
            ws_per_message_deflate=False,  # it costs more than it saves, and lets small frames become large
            ws_ping_interval=defaults.WEBSOCKET_PING_S,
            ws_ping_timeout=None,  # while a fast sender is slowed down its answers are not read either
            timeout_graceful_shutdown=defaults.WEBSOCKET_CLOSE_S,
            ssl_context_factory=None if tls is None else lambda config, default: tls,
        )

    def _run(self) -> None:
        from websockets.exceptions import InvalidState

        try:
            with asyncio.Runner(loop_factory=HandshakeLoop) as runner:
                runner.get_loop().set_exception_handler(TaskFailures())
                runner.run(self._server.serve(sockets=[self._socket]))
        except InvalidState:
            pass  # uvicorn ends a connection that is ending just then
        except Exception:
            logger.exception("the WebSocket server stopped because of a defect")
        finally:
            self._started.set()
            self._socket.close()

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        self._async = AsyncEndpoint.of(self._endpoint)
        looking = asyncio.create_task(self._look()) if self._door is not None else None
        self._started.set()
        try:
            yield
        finally:
            if looking is not None:
                looking.cancel()
            self._async.leave()

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(RULES_LOOK_S)
            self._room.look(time.time_ns() / 1e9)

    async def _serve(self, client: WebSocket) -> None:
        if not may_connect(client.headers.getlist("origin"), self._origins):
            await client.send_denial_response(PlainTextResponse("pages of this origin may not connect\n", 403))
            return
        if is_loopback(self._host) and not may_be_dialled(client.headers.getlist("host"), self._origins):
            await client.send_denial_response(PlainTextResponse("this is not the name of this machine\n", 403))
            return
        host = client.client.host if client.client is not None else ""
        rights = None
        if self._door is not None:
            authorization, offered = client.headers.getlist("authorization"), client.scope["subprotocols"]
            try:
                holder = self._door.holder(host, client.state.certified, authorization, offered)
            except NotPermitted as why:
                denied = PlainTextResponse(f"{why}\n", 401, {"WWW-Authenticate": "Bearer"})
                await client.send_denial_response(denied)
                return
            rights = Rights(Behind(holder.name, self._endpoint.core, self._endpoint.node.lock), holder.end)
        assert self._async is not None
        session = WebSocketSession(client, self._async, self._queue, self._room.spoke, rights)
        if not self._room.enter(session, host):
            await client.send_denial_response(PlainTextResponse("too many clients\n", 503))
            return
        try:
            await client.accept(PROTOCOL if PROTOCOL in client.scope["subprotocols"] else None)
            await session.run()
        finally:
            self._room.leave(session)
