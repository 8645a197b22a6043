"""The JSON protocol from a real page in a real browser."""

from __future__ import annotations

import functools
import http.server
import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.sync_api import Page, sync_playwright
from tests.waiting import PATIENCE_S

from chappe import Endpoint
from chappe.data.scalars import Count
from chappe.data.zeek import Event
from chappe.web.server import WebSocketServer

# Any of these will do; the first has no windows, is small, and is what .ci/run installs.
NAMES: Final = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
CHROMIUM: Final = next(filter(None, map(shutil.which, NAMES)), None)
MISSING: Final = "there is no Chromium; install one, on Debian: apt-get install chromium-headless-shell"
# A page may not reach for the network of its own accord: there is none, and every attempt takes time.
ARGUMENTS: Final = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP elsewhere.example 127.0.0.1",
]
PAGE: Final = """<!doctype html><title>events</title><ul id="events"></ul><p id="state">connecting</p>
<script>
const state = document.getElementById("state");
const socket = new WebSocket(new URLSearchParams(location.search).get("socket"));
socket.onopen = () => socket.send(JSON.stringify(["/to/page"]));
socket.onclose = () => { state.textContent = "closed"; };
socket.onmessage = (frame) => {
  const message = JSON.parse(frame.data);
  if (message.type === "ack") { state.textContent = message.endpoint; return; }
  const item = document.createElement("li");
  item.textContent = JSON.stringify(message);
  document.getElementById("events").append(item);
};
function say(text) {
  socket.send(JSON.stringify({type: "data-message", topic: "/from/page", "@data-type": "string", data: text}));
}
</script>
"""

pytestmark = [pytest.mark.process, pytest.mark.skipif(CHROMIUM is None, reason=MISSING)]


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def pages(tmp_path: Path) -> Iterator[int]:
    """The port of a server that has the page."""
    (tmp_path / "index.html").write_text(PAGE)
    handler = functools.partial(Quiet, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


@pytest.fixture
def page() -> Iterator[Page]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        made = browser.new_page()
        made.set_default_timeout(PATIENCE_S * 1000)
        yield made
        browser.close()


def test_a_page_of_this_machine_hears_events_and_publishes(page: Page, pages: int) -> None:
    with Endpoint() as endpoint, Endpoint() as sensor, sensor.subscribe("/from/page") as subscriber:
        sensor.peer("127.0.0.1", endpoint.listen())
        with WebSocketServer(endpoint) as server:
            page.goto(f"http://localhost:{pages}/?socket={server.url}")
            page.wait_for_function("id => document.getElementById('state').textContent === id", arg=endpoint.id)
            sensor.node.turns.wait(lambda: b"/to/page" in sensor.core.peer_subscriptions(), PATIENCE_S)
            sensor.publish("/to/page/events", Event("ping", "hello", Count(3)))
            sensor.publish("/to/page/numbers", 0.1)
            page.wait_for_function("document.getElementById('events').children.length === 2")
            event, number = (json.loads(text) for text in page.locator("li").all_inner_texts())
            assert event["topic"] == "/to/page/events"
            name, arguments = (each["data"] for each in event["data"][2]["data"])
            assert (name, [each["data"] for each in arguments]) == ("ping", ["hello", 3])
            assert number == {"type": "data-message", "topic": "/to/page/numbers", "@data-type": "real", "data": 0.1}
            page.evaluate("say('grüße')")
            found = subscriber.get(PATIENCE_S)
            assert found is not None
            assert (found.topic, found.value) == ("/from/page", "grüße")


def test_a_page_of_another_site_may_not_connect_unless_it_is_named(page: Page, pages: int) -> None:
    site = f"http://elsewhere.example:{pages}"
    with Endpoint() as endpoint:
        with WebSocketServer(endpoint) as server:
            page.goto(f"{site}/?socket={server.url}")
            page.wait_for_function("document.getElementById('state').textContent === 'closed'")
            assert server.clients == 0
        with WebSocketServer(endpoint, origins=[site]) as server:
            page.goto(f"{site}/?socket={server.url}")
            page.wait_for_function("id => document.getElementById('state').textContent === id", arg=endpoint.id)
