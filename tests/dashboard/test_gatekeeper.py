"""Who may look, asked without a network: requests as a server hands them on."""

from __future__ import annotations

import asyncio
import re
from collections.abc import MutableMapping
from typing import Any, Final

import pytest

from chappe.dashboard.gatekeeper import CHANNEL, Gatekeeper

TOKEN: Final = "a-token-that-is-long"
HERE: Final = ("host", "127.0.0.1:8788")
COOKIE: Final = "chappe-dashboard-8788"
Message = MutableMapping[str, Any]


def ask(
    *headers: tuple[str, str],
    token: str | None = None,
    path: str = "/",
    query: str = "",
    method: str = "GET",
    kind: str = "http",
    body: bytes = b"<html><script>1</script></html>",
    content: bytes = b"text/html; charset=utf-8",
) -> list[Message]:
    """What comes back; ``body`` is what the page behind says if it is asked."""
    sent: list[Message] = []

    async def app(scope: Message, receive: Any, send: Any) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.accept"})
            return
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", content)]})
        await send({"type": "http.response.body", "body": body[:9], "more_body": True})
        await send({"type": "http.response.body", "body": body[9:]})

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {
        "type": kind, "method": method, "path": path, "query_string": query.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in headers],
    }  # fmt: skip
    asyncio.run(Gatekeeper(app, token, 8788)(scope, receive, send))
    return sent


def headers_of(sent: list[Message]) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in sent[0]["headers"]}


def test_this_machine_may_look_by_any_of_its_names() -> None:
    for host in ("127.0.0.1:8788", "localhost:8788", "[::1]:8788"):
        assert ask(("host", host))[0]["status"] == 200


@pytest.mark.parametrize(
    ("headers", "why"),
    [
        ([("host", "evil.example:8788")], "not the name of this machine"),
        ([], "not the name of this machine"),
        ([HERE, HERE], "not the name of this machine"),
        ([HERE, ("origin", "http://evil.example")], "pages of other sites"),
        ([HERE, ("origin", "http://127.0.0.1:9999")], "pages of other sites"),
        ([HERE, ("origin", "null")], "pages of other sites"),
        ([HERE, ("origin", "http://127.0.0.1:8788"), ("origin", "http://evil.example")], "pages of other sites"),
    ],
)
def test_names_and_pages_of_elsewhere_are_refused_also_at_the_channel(headers: list[tuple[str, str]], why: str) -> None:
    sent = ask(*headers)
    assert sent[0]["status"] == 403
    assert why in sent[1]["body"].decode()

    (closed,) = ask(*headers, kind="websocket", path=CHANNEL)
    assert (closed["type"], closed["code"]) == ("websocket.close", 1008)


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_what_a_page_of_elsewhere_embeds_is_refused_and_a_link_may_be_followed(site: str) -> None:
    def status(mode: str, dest: str) -> int:
        sent = ask(HERE, ("sec-fetch-site", site), ("sec-fetch-mode", mode), ("sec-fetch-dest", dest))
        return int(sent[0]["status"])

    assert [status("no-cors", "image"), status("cors", "empty"), status("navigate", "iframe")] == [403, 403, 403]
    assert status("navigate", "document") == 200
    assert ask(HERE, ("sec-fetch-site", site))[0]["status"] == 403


@pytest.mark.parametrize("site", ["same-origin", "none"])
def test_what_an_own_page_asks_for_and_what_a_person_types_is_let_through(site: str) -> None:
    assert ask(HERE, ("sec-fetch-site", site), ("sec-fetch-mode", "cors"))[0]["status"] == 200


def test_a_page_of_this_server_may_use_the_channel() -> None:
    own = ("origin", "http://127.0.0.1:8788")
    assert ask(HERE, own, kind="websocket", path=CHANNEL) == [{"type": "websocket.accept"}]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_nothing_but_reading_is_let_through(method: str) -> None:
    sent = ask(HERE, method=method, path="/upload")
    assert sent[0]["status"] == 403
    assert b"only shows" in sent[1]["body"]


def test_beyond_this_machine_a_token_is_asked_for_and_kept_in_a_cookie() -> None:
    host = ("host", "graph.example:8788")
    assert ask(host, token=TOKEN)[0]["status"] == 403
    assert ask(host, token=TOKEN, query="token=wrong")[0]["status"] == 403
    assert ask(host, ("cookie", f"{COOKIE}=wrong"), token=TOKEN)[0]["status"] == 403

    sent = ask(host, token=TOKEN, path="/topics", query=f"a=1&token={TOKEN}")

    assert sent[0]["status"] == 303
    found = headers_of(sent)
    assert found["location"] == "/topics?a=1"
    assert found["set-cookie"].startswith(f"{COOKIE}={TOKEN}; ")
    assert "HttpOnly" in found["set-cookie"]
    assert "SameSite=Strict" in found["set-cookie"]
    assert ask(host, ("cookie", f"{COOKIE}={TOKEN}"), token=TOKEN)[0]["status"] == 200
    known = ask(host, ("cookie", f"{COOKIE}={TOKEN}"), token=TOKEN, kind="websocket", path=CHANNEL)
    assert known[0]["type"] == "websocket.accept"
    assert ask(host, token=TOKEN, kind="websocket", path=CHANNEL)[0]["type"] == "websocket.close"


def test_a_program_brings_the_token_in_a_header() -> None:
    host = ("host", "graph.example:8788")
    assert ask(host, ("authorization", f"Bearer {TOKEN}"), token=TOKEN)[0]["status"] == 200
    for wrong in ("Bearer wrong", TOKEN, f"Basic {TOKEN}"):
        assert ask(host, ("authorization", wrong), token=TOKEN)[0]["status"] == 403


def test_a_redirect_leads_nowhere_else() -> None:
    sent = ask(HERE, token=TOKEN, path="//evil.example/", query=f"token={TOKEN}")

    assert headers_of(sent)["location"] == "/evil.example/"
    for path, location in (("/\\evil.example", "/%5Cevil.example"), ("/a\r\nx: y", "/a%0D%0Ax%3A%20y")):
        assert headers_of(ask(HERE, token=TOKEN, path=path, query=f"token={TOKEN}"))["location"] == location


def test_only_scripts_that_came_with_the_page_run_in_it_and_it_talks_to_nobody_else() -> None:
    sent = ask(HERE)

    policy = headers_of(sent)["content-security-policy"]
    nonce = re.search(r"'nonce-([^']+)'", policy)
    assert nonce is not None
    body = sent[1]["body"].decode()
    assert body == f'<html><script nonce="{nonce[1]}">1</script></html>'
    assert headers_of(sent)["content-length"] == str(len(body))
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["connect-src"] == "'self'"
    assert rules["frame-ancestors"] == "'none'"
    assert "unsafe-inline" not in rules["script-src"]
    assert not any("http" in rule or "*" in rule for rule in rules.values())
    again = re.search(r"'nonce-([^']+)'", headers_of(ask(HERE))["content-security-policy"])
    assert again is not None
    assert again[1] != nonce[1]


def test_what_is_no_page_goes_through_as_it_is() -> None:
    sent = ask(HERE, content=b"text/javascript", body=b"0123456789 <script>")

    assert b"".join(each["body"] for each in sent[1:]) == b"0123456789 <script>"
    assert headers_of(sent)["x-content-type-options"] == "nosniff"
