"""Clients of the WebSocket face beside an endpoint with an identity: who they are, and what they may."""

from __future__ import annotations

import json
import logging
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("uvicorn")

from tests.waiting import PATIENCE_S, until
from tests.web.test_websocket import PATH, end_of, message, receive
from websockets.exceptions import InvalidMessage, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from chappe import Endpoint, Keys
from chappe.api import permissions
from chappe.api.tokens import make_token
from chappe.data.scalars import Count
from chappe.web.server import WebSocketServer

DAY_S = 86_400.0
RULES = """
[[rules]]
allow = ["publish"]
roles = ["asker"]
topics = ["ask/*"]

[[rules]]
deny = ["subscribe"]
roles = ["asker"]
topics = ["told/secret/*"]

[[rules]]
allow = ["subscribe"]
roles = ["asker"]
topics = ["told/*"]

[[rules]]
allow = ["everything"]
roles = ["server", "member"]
topics = ["*"]
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("keys")
    permissions.init(home, "hub", "server")
    file = home / "permissions.toml"
    text = file.read_text()
    first = text.index("[[rules]]")
    file.write_text(text[:first] + RULES + text[text.index("[identities") :])
    permissions.sign(file)
    for name, role in (("doctor", "asker"), ("page", "asker"), ("sensor", "member")):
        permissions.add(home, name, role)
    permissions.seal(home, "ward", ["told/patients/*", "ask/patients/*"], names=["hub", "doctor", "sensor"])
    return home


@pytest.fixture
def home(made: Path, tmp_path: Path) -> Path:
    """A copy, as tests change it."""
    for each in made.iterdir():
        (tmp_path / each.name).write_bytes(each.read_bytes())
        (tmp_path / each.name).chmod(each.stat().st_mode)
    return tmp_path


class Face:
    """The WebSocket face of the endpoint ``hub``, with the peer ``sensor``."""

    def __init__(self, stack: ExitStack, home: Path) -> None:
        self.home = home
        self._stack = stack
        self.hub = stack.enter_context(Endpoint(security=Keys(home / "hub")))
        self.sensor = stack.enter_context(Endpoint(security=Keys(home / "sensor")))
        self.sensor.peer("127.0.0.1", self.hub.listen())
        self.server = stack.enter_context(WebSocketServer(self.hub))

    def connect(self, token: str = "", certificate: str = "", **options: Any) -> ClientConnection:
        context = ssl.create_default_context(cafile=self.home / "authority.pem")
        if certificate:
            context.load_cert_chain(self.home / f"{certificate}.pem", self.home / f"{certificate}.key")
        if token:
            options.setdefault("additional_headers", {"Authorization": f"Bearer {token}"})
        url = f"wss://localhost:{self.server.port}{PATH}"
        made: ClientConnection = self._stack.enter_context(connect(url, ssl=context, proxy=None, **options))
        return made

    def token(self, name: str = "page", seconds: float = 3600.0) -> str:
        return make_token(Keys(self.home / name), seconds)

    def join(self, *topics: str, **options: Any) -> ClientConnection:
        client = self.connect(**options)
        client.send(json.dumps(topics))
        assert receive(client)["type"] == "ack"
        until(lambda: set(map(str.encode, topics)) <= set(self.sensor.core.peer_subscriptions()))
        return client

    def refused(self) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for each in self.hub.refusals():
            found.setdefault(each.identity, set()).add(each.verb)
        return found


@pytest.fixture
def face(home: Path) -> Iterator[Face]:
    with ExitStack() as stack:
        yield Face(stack, home)


def test_a_client_is_who_its_token_or_its_certificate_says(face: Face) -> None:
    offered = ["chappe.json", f"chappe.token.{face.token()}"]
    ways: list[dict[str, Any]] = [{"token": face.token()}, {"certificate": "page"}, {"subprotocols": offered}]
    for way in ways:
        client = face.join("told/", **way)
        assert client.subprotocol == ("chappe.json" if "subprotocols" in way else None)
        face.sensor.publish("told/1", Count(5))
        assert receive(client)["data"] == 5
        client.send(message("other", "count", 1))
        answer = receive(client)
        assert (answer["code"], answer["context"]) == (
            "not_permitted",
            "page may not publish 'other': no rule allows it",
        )
    assert face.refused() == {"page": {"publish"}}


def test_a_token_counts_before_a_certificate_that_may_be_that_of_a_proxy(face: Face) -> None:
    client = face.join("told/", token=face.token("page"), certificate="hub")
    client.send(message("other", "count", 1))
    assert receive(client)["context"].startswith("page may not")


def test_who_is_nobody_gets_no_further_than_the_handshake(face: Face, tmp_path_factory: pytest.TempPathFactory) -> None:
    theirs = tmp_path_factory.mktemp("theirs")
    permissions.init(theirs, "page", "server")
    tokens = {
        "": "a token or the certificate of an identity is needed",
        "nonsense": "invalid token",
        make_token(Keys(theirs / "page"), 60.0): "is not signed by an identity",
        face.token() + "A": "is not signed by an identity",
    }
    for token, why in tokens.items():
        with pytest.raises(InvalidStatus) as refused:
            face.connect(token)
        assert refused.value.response.status_code == 401
        assert why in (refused.value.response.body or b"").decode()
    both = ["chappe.json", f"chappe.token.{face.token()}"]
    with pytest.raises(InvalidStatus) as refused:
        face.connect(face.token(), subprotocols=both)
    assert b"more than one token" in (refused.value.response.body or b"")
    with pytest.raises((InvalidMessage, ConnectionError, EOFError)):  # beside an identity nothing is plain
        connect(f"ws://localhost:{face.server.port}{PATH}", proxy=None)
    assert face.server.refused == 5
    assert face.server.clients == 0


def test_what_a_client_may_not_is_refused_and_the_connection_stays(face: Face) -> None:
    client = face.connect(face.token())
    for topic, why in (("other", "no rule allows it"), ("told/secret/1", "the rule denies it (line ")):
        client.send(json.dumps([topic]))
        answer = receive(client)
        assert (answer["type"], answer["code"]) == ("error", "not_permitted")
        assert answer["context"].startswith(f"page may not subscribe '{topic}': {why}")
    client.send('["told/"]')
    assert receive(client)["type"] == "ack"
    with face.sensor.subscribe("") as all_:
        until(lambda: b"" in face.hub.core.peer_subscriptions())
        client.send(message("told/1", "string", "forged"))
        assert receive(client)["code"] == "not_permitted"
        client.send(message("ask/1", "string", "please"))
        found = all_.get(PATIENCE_S)
        assert found is not None
        assert (found.topic, found.value) == ("ask/1", "please")
    assert face.refused() == {"page": {"publish", "subscribe"}}


def test_of_a_prefix_a_client_gets_the_topics_that_it_may_have(face: Face) -> None:
    client = face.join("", token=face.token())
    for topic in ("other", "told/secret/1", "told/1"):
        face.sensor.publish(topic, topic)
    assert receive(client)["data"] == "told/1"


def test_what_is_sealed_is_for_clients_of_the_group_alone(face: Face) -> None:
    page, doctor = face.join("told/", token=face.token("page")), face.join("told/", token=face.token("doctor"))
    for topic in ("told/patients/1", "told/1"):
        face.sensor.publish(topic, "ill" if "patients" in topic else "news")
    assert receive(page)["data"] == "news"
    assert [receive(doctor)["data"] for _ in range(2)] == ["ill", "news"]
    page.send(message("ask/patients/1", "string", "how is she"))
    assert receive(page)["context"] == "page may not publish 'ask/patients/1': it is sealed for ward"
    with face.sensor.subscribe("ask/") as asked:
        until(lambda: b"ask/" in face.hub.core.peer_subscriptions())
        doctor.send(message("ask/patients/1", "string", "how is she"))
        found = asked.get(PATIENCE_S)
        assert found is not None
        assert (found.value, found.sealed_by) == ("how is she", "hub")


@pytest.mark.parametrize("way", ["token", "certificate"])
def test_a_client_that_is_revoked_is_ended_within_seconds_and_refused(face: Face, way: str) -> None:
    given = {"token": face.token()} if way == "token" else {"certificate": "page"}
    page, doctor = face.join("told/", **given), face.join("told/", token=face.token("doctor"))
    permissions.revoke(face.home, "page")
    end = end_of(page)
    assert end.code == 1008
    assert end.reason.startswith("page was revoked")
    with pytest.raises(InvalidStatus) as refused:
        face.connect(**given)
    assert b"page was revoked" in (refused.value.response.body or b"")
    face.sensor.publish("told/1", 1)
    assert receive(doctor)["data"] == 1


def test_a_client_ends_with_its_token(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    client, lasting = face.join("told/", token=face.token()), face.join("told/", token=face.token(seconds=2 * DAY_S))
    tomorrow = SimpleNamespace(time_ns=lambda: time.time_ns() + int(DAY_S * 1e9))
    monkeypatch.setattr("chappe.web.server.time", tomorrow)
    end = end_of(client)
    assert (end.code, end.reason) == (1008, "the token has expired: connect again with another one")
    face.sensor.publish("told/1", 1)
    assert receive(lasting)["data"] == 1


def test_rules_that_change_count_for_who_is_connected(face: Face) -> None:
    client = face.join("told/", token=face.token())
    file = face.home / "permissions.toml"
    text = file.read_text()
    file.write_text(text.replace('topics = ["told/*"]', 'topics = ["told/still/*"]', 1))
    permissions.sign(file)

    def only_what_is_left() -> bool:
        face.sensor.publish("told/before", "before")
        face.sensor.publish("told/still/here", "still")
        found = [receive(client)["data"]]
        while found[-1] != "still":
            found.append(receive(client)["data"])
        return found == ["still"]

    until(only_what_is_left)


def test_no_token_stands_in_a_log_or_an_answer(face: Face, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    token = face.token()
    with pytest.raises(InvalidStatus) as refused:
        face.connect(token + "A")
    client = face.connect(token)
    permissions.revoke(face.home, "page")
    lines = [each.getMessage() for each in caplog.records if not each.name.startswith("websockets")]  # of the client
    said = "\n".join([(refused.value.response.body or b"").decode(), end_of(client).reason, repr(face.server), *lines])
    assert "is not signed by an identity" in said
    assert "page was revoked" in said
    assert token.partition(".")[2] not in said
