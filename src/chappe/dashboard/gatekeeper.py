"""Access to the dashboard: a check of every request between the server and the pages. Pure but for the network.

A browser lets any page of the web send requests to any address, this machine's included. So the name that was dialled
has to be one of this machine, or a token has to be known; and where a request says which page it comes from, that has
to be a page of this very server, unless it is a person who follows a link. Nothing but reading is let through, save
the channel of the page itself. Where there are identities, who may administer all topics comes by its certificate or
token, too; whoever may no longer is cut off with what it says next, which browsers do at least twice a minute.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from hmac import compare_digest
from http.cookies import CookieError, SimpleCookie
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qsl, quote, urlencode

from chappe.api.serving import BEARER, Office, may_be_dialled
from chappe.errors import NotPermitted
from chappe.system import time

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

CHANNEL: Final = "/_nicegui_ws/"  # over which a page and the server talk
COOKIE: Final = "chappe-dashboard-{port}"  # browsers tell no ports of a host apart
CERTIFIED: Final = "certified"  # in the state of a connection: the identity that its certificate names
AGAIN_S: Final = 5.0  # how often it is looked whether who is there may still be
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
        port: Where it listens.
        office: Lets in identities, too.
    """

    def __init__(self, app: App, token: str | None, port: int = 0, office: Office | None = None) -> None:
        self._app = app
        self._token = token
        self._cookie = COOKIE.format(port=port)
        self._office = office

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        problem = self.problem(scope)
        if problem:
            await _refuse(scope, receive, send, problem)
        elif scope["type"] == "http" and (given := self._named_in_address(scope)):
            await self._redirect(scope, send, given)
        elif scope["type"] == "http":
            await self._app(scope, receive, _Careful(send))
        else:
            await self._app(scope, self._as_long(scope, receive), send)

    def _as_long(self, scope: Scope, receive: Receive) -> Receive:
        """Receive from a channel as long as its owner is permitted to be there."""
        look_at = time.monotonic() + AGAIN_S

        async def receiving() -> MutableMapping[str, Any]:
            nonlocal look_at
            message = await receive()
            if self._office is not None and time.monotonic() >= look_at:
                look_at = time.monotonic() + AGAIN_S
                if self.problem(scope):
                    return {"type": "websocket.disconnect", "code": 1008}
            return message

        return receiving

    def problem(self, scope: Scope) -> str:
        """Return the reason to refuse a request; empty to let it through."""
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
        if self._named_in_address(scope) or any(self._fits(each) for each in _cookies(scope, self._cookie)):
            return True
        for each in _headers(scope, b"authorization"):  # of programs
            if each.lower().startswith(BEARER) and self._fits(each[len(BEARER) :].strip()):
                return True
        certificate = str(scope.get("state", {}).get(CERTIFIED, ""))
        return bool(certificate) and self._administers(certificate, [])

    def _named_in_address(self, scope: Scope) -> str:
        """Return the token in the address, if it counts; else empty."""
        given = parse_qsl(scope.get("query_string", b"").decode("latin-1"))
        return next((value for name, value in given if name == "token" and self._fits(value)), "")

    def _fits(self, given: str) -> bool:
        if self._token is None:
            return False
        return compare_digest(given.encode(), self._token.encode()) or self._administers("", [f"Bearer {given}"])

    def _administers(self, certificate: str, authorization: Sequence[str]) -> bool:
        if self._office is None:
            return False
        try:
            self._office.check("", certificate, authorization)
        except NotPermitted:
            return False
        return True

    async def _redirect(self, scope: Scope, send: Send, token: str) -> None:
        """Keep the token in a cookie, and take it out of the address: that is seen, kept and copied."""
        rest = [(name, value) for name, value in parse_qsl(scope["query_string"].decode("latin-1")) if name != "token"]
        path = str(scope.get("path", "/"))
        where = quote("/" + path.lstrip("/")) + (f"?{urlencode(rest)}" if rest else "")
        secure = "; Secure" if scope.get("scheme") == "https" else ""
        cookie = f"{self._cookie}={token}; Path=/; HttpOnly; SameSite=Strict; Max-Age=86400{secure}"
        headers = [(b"location", where.encode()), (b"set-cookie", cookie.encode()), *HEADERS]
        await send({"type": "http.response.start", "status": 303, "headers": headers})
        await send({"type": "http.response.body", "body": b""})


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
    """True if a browser says that another site's page wants it: images and the like come without an origin."""
    if all(each in ("same-origin", "none") for each in _headers(scope, b"sec-fetch-site")):
        return False
    followed = _headers(scope, b"sec-fetch-mode") == ["navigate"]
    return not followed or _headers(scope, b"sec-fetch-dest") != ["document"]


def _cookies(scope: Scope, name: str) -> Sequence[str]:
    found = []
    for each in _headers(scope, b"cookie"):
        try:
            cookies = SimpleCookie(each)
        except CookieError:
            continue
        if name in cookies:
            found.append(cookies[name].value)
    return found


async def _refuse(scope: Scope, receive: Receive, send: Send, problem: str) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 1008, "reason": problem})
        return
    # closed, so that who is refused is in nobody's way
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close"), *HEADERS]
    await send({"type": "http.response.start", "status": 403, "headers": headers})
    await send({"type": "http.response.body", "body": f"{problem}\n".encode()})
