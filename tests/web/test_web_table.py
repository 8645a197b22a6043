"""What each role may over HTTP: the table of the docs, made by trying."""

from __future__ import annotations

import json
import re
import ssl
from pathlib import Path

import pytest

pytest.importorskip("uvicorn")

from tests.api.rogues import rules
from tests.web.test_websocket import PATH, message, receive
from websockets.sync.client import connect

from chappe import Endpoint, Keys
from chappe.api import permissions
from chappe.api.serving import Office
from chappe.api.tokens import make_token
from chappe.errors import NotPermitted
from chappe.permissions.rules import VERBS
from chappe.web.server import WebSocketServer

SECURITY = Path(__file__).parents[2] / "docs/explanation/security.md"
MARK = "<!-- made by tests/web/test_web_table.py -->"
ROLES = ("nothing", *VERBS)
TRIES = (
    "WebSocket face: comes in",
    "publishes `a/x`",
    "subscribes to `a/`",
    "publishes `b/x`",
    "subscribes to `b/`",
    "reads the numbers for Prometheus",
)


def tried(home: Path, server: WebSocketServer, office: Office, role: str) -> list[bool]:
    """What comes of each try of an identity with this role."""
    context = ssl.create_default_context(cafile=home / "authority.pem")
    headers = {"Authorization": f"Bearer {make_token(Keys(home / role), 3600.0)}"}
    url = f"wss://localhost:{server.port}{PATH}"
    subscribed, published = [], []
    with connect(url, ssl=context, additional_headers=headers, proxy=None) as client:
        for topic in ("a/", "b/"):
            with connect(url, ssl=context, additional_headers=headers, proxy=None) as other:
                other.send(json.dumps([topic]))
                subscribed.append(receive(other)["type"] == "ack")
        client.send("[]")
        assert receive(client)["type"] == "ack"
        for topic in ("a/x", "b/x"):
            client.send(message(topic, "count", 1))
            client.send("no JSON")  # whose answer comes after that of the message, if that has one
            answer = receive(client)["code"]
            published.append(answer != "not_permitted")
            if answer == "not_permitted":
                assert receive(client)["code"] == "deserialization_failed"
    try:
        office.check("", role, [])
    except NotPermitted:
        reads = False
    else:
        reads = True
    return [True, published[0], subscribed[0], published[1], subscribed[1], reads]


def test_the_table_of_the_docs_is_what_comes_of_it(tmp_path: Path) -> None:
    permissions.init(tmp_path, "hub", "server")
    for role in ROLES:
        permissions.add(tmp_path, role, "consumer")
    one = [([verb], verb, ["*" if verb == "administer" else "a/*"]) for verb in VERBS]
    rules(tmp_path, (["publish", "subscribe", "forward"], "hub", ["*"]), *one)
    office = Office(Keys(tmp_path / "hub"))
    with Endpoint(security=Keys(tmp_path / "hub")) as hub, WebSocketServer(hub) as server:
        found = {role: tried(tmp_path, server, office, role) for role in ROLES}
        refused = {each.identity for each in hub.refusals()}

    assert refused == set(ROLES)  # each tries `b/x`
    shown = ("nothing", "publish", "subscribe", "forward", "administer")
    others = [role for role in ROLES if role not in shown]
    assert {tuple(found[role]) for role in others} == {tuple(found["nothing"])}
    lines = [f"| | {' | '.join(shown)} | all others |", "|" + "---|" * (len(shown) + 2)]
    for row, what in enumerate(TRIES):
        cells = ["yes" if found[role][row] else "–" for role in (*shown, others[0])]
        lines.append(f"| {what} | {' | '.join(cells)} |")
    table = "\n".join(lines)
    kept = re.search(rf"{re.escape(MARK)}\n(.*?)\n<!-- end -->", SECURITY.read_text(), re.DOTALL)
    assert kept is not None, table
    assert kept[1] == table
