"""Who may look at the dashboard, and what its pages may do: between the server and the pages. Pure but for the network.

A browser lets any page of the web send requests to any address, this machine's included. So the name that was dialled
has to be one of this machine, or a token has to be known; and where a request says which page it comes from, that has
to be a page of this very server, unless it is a person who follows a link. Nothing but reading is let through, save
the channel of the page itself.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from hmac import compare_digest
from http.cookies import CookieError, SimpleCookie
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qsl, quote, urlencode

from chappe.api.serving import may_be_dialled

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

CHANNEL: Final = "/_nicegui_ws/"  # over which a page and the server talk
COOKIE: Final = "chappe-dashboard"
READING: Final = ("GET", "HEAD")
PAGE_BYTES_MAX: Final = 16 * 1024 * 1024
# Vue makes functions of templates, so `unsafe-eval` has to stay; scripts in the page are those that we sent it with.
POLICY: Final = (
    "default-src 'none'; script-src 'self' 'nonce-{nonce}' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'; manifest-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
HEADERS: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
)


class Gatekeeper:
    """Lets requests through to ``app``, or says why not.

    Args:
        app: What serves the pages.
        token: What who comes has to know, in the address or in a cookie that this sets; None where only this machine
            can dial.
    """

    def __init__(self, app: App, token: str | None) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        problem = self.problem(scope)
        if problem:
            await _refuse(scope, receive, send, problem)
        elif scope["type"] == "http" and self._token is not None and self._named_in_address(scope):
            await _redirect(scope, send, self._token)
        elif scope["type"] == "http":
            await self._app(scope, receive, _Careful(send))
        else:
            await self._app(scope, receive, send)

    def problem(self, scope: Scope) -> str:
        """Why a request is not let through; empty if it is."""
        hosts, origins = _headers(scope, b"host"), _headers(scope, b"origin")
        if len(hosts) != 1 or (self._token is None and not may_be_dialled(hosts, frozenset())):
            return "this is not the name of this machine"
        if origins and origins != [f"http://{hosts[0]}"] and origins != [f"https://{hosts[0]}"]:
            return "pages of other sites may not look"
        if _of_another_site(scope):
            return "pages of other sites may not look"
        method = scope.get("method", "GET")
        if method not in READING and not str(scope.get("path", "")).startswith(CHANNEL):
            return "this dashboard only shows"
        if self._token is not None and not self._known(scope):
            return "a token is needed: open the address that `chappe dashboard` printed"
        return ""

    def _known(self, scope: Scope) -> bool:
        return self._named_in_address(scope) or any(self._fits(each) for each in _cookies(scope))

    def _named_in_address(self, scope: Scope) -> bool:
        given = parse_qsl(scope.get("query_string", b"").decode("latin-1"))
        return any(name == "token" and self._fits(value) for name, value in given)

    def _fits(self, given: str) -> bool:
        return self._token is not None and compare_digest(given.encode(), self._token.encode())


class _Careful:
    """Sends an answer on with our headers; a page of HTML with the only scripts that may run in it marked."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._start: MutableMapping[str, Any] | None = None  # of a page, until all of it is here
        self._body = b""
        self._nonce = secrets.token_urlsafe(18)

    async def __call__(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            policy = POLICY.format(nonce=self._nonce).encode()
            headers = [*message.get("headers", ()), *HEADERS, (b"content-security-policy", policy)]
            message = {**message, "headers": headers}
            if any(name.lower() == b"content-type" and value.startswith(b"text/html") for name, value in headers):
                self._start = message
                return
        elif self._start is not None and message["type"] == "http.response.body":
            self._body += message.get("body", b"")
            if len(self._body) > PAGE_BYTES_MAX:
                raise RuntimeError("a page is too long")
            if message.get("more_body"):
                return
            marked = self._body.replace(b"<script", f'<script nonce="{self._nonce}"'.encode())
            start, self._start, self._body = self._start, None, b""
            kept = [(name, value) for name, value in start["headers"] if name.lower() != b"content-length"]
            await self._send({**start, "headers": [*kept, (b"content-length", str(len(marked)).encode())]})
            message = {"type": "http.response.body", "body": marked}
        await self._send(message)


def _headers(scope: Scope, name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in scope.get("headers", ()) if key.lower() == name]


def _of_another_site(scope: Scope) -> bool:
    """Whether a browser says that another site's page wants it: images and the like come without an origin."""
    if all(each in ("same-origin", "none") for each in _headers(scope, b"sec-fetch-site")):
        return False
    followed = _headers(scope, b"sec-fetch-mode") == ["navigate"]
    return not followed or _headers(scope, b"sec-fetch-dest") != ["document"]


def _cookies(scope: Scope) -> Sequence[str]:
    found = []
    for each in _headers(scope, b"cookie"):
        try:
            cookies = SimpleCookie(each)
        except CookieError:
            continue
        if COOKIE in cookies:
            found.append(cookies[COOKIE].value)
    return found


async def _refuse(scope: Scope, receive: Receive, send: Send, problem: str) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 1008, "reason": problem})
        return
    headers = [(b"content-type", b"text/plain; charset=utf-8"), *HEADERS]
    await send({"type": "http.response.start", "status": 403, "headers": headers})
    await send({"type": "http.response.body", "body": f"{problem}\n".encode()})


async def _redirect(scope: Scope, send: Send, token: str) -> None:
    """Keep the token in a cookie, and take it out of the address: that is seen, kept and copied."""
    rest = [(name, value) for name, value in parse_qsl(scope["query_string"].decode("latin-1")) if name != "token"]
    path = str(scope.get("path", "/"))
    where = quote("/" + path.lstrip("/")) + (f"?{urlencode(rest)}" if rest else "")
    cookie = f"{COOKIE}={token}; Path=/; HttpOnly; SameSite=Strict; Max-Age=86400"
    headers = [(b"location", where.encode()), (b"set-cookie", cookie.encode()), *HEADERS]
    await send({"type": "http.response.start", "status": 303, "headers": headers})
    await send({"type": "http.response.body", "body": b""})
