"""Where Prometheus reads: who comes in great numbers, says nothing, or dials by a foreign name."""

from __future__ import annotations

import socket
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import PATIENCE_S, until

from chappe.api import permissions
from chappe.api.serving import Office
from chappe.api.tokens import make_token
from chappe.cli import metrics
from chappe.cli.metrics import MetricsServer
from chappe.errors import UsageError
from chappe.security import Keys


def numbers(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"up 1\n"]


@pytest.fixture
def server() -> Iterator[MetricsServer]:
    made = MetricsServer(numbers, "127.0.0.1", 0)
    yield made
    made.close()


def read(server: MetricsServer) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/metrics", timeout=PATIENCE_S) as answer:
        found: bytes = answer.read()
    return found


def test_however_many_say_nothing_the_numbers_are_served_and_threads_are_few(server: MetricsServer) -> None:
    before = threading.active_count()
    with ExitStack() as stack:
        silent = [
            stack.enter_context(socket.create_connection(("127.0.0.1", server.server_port), PATIENCE_S))
            for _ in range(5 * metrics.CONNECTIONS_MAX)
        ]
        assert read(server) == b"up 1\n"
        until(lambda: threading.active_count() - before <= metrics.CONNECTIONS_MAX + 1)
        with suppress(ConnectionError):
            assert silent[0].recv(1) == b""


def test_who_says_nothing_is_cut_off(server: MetricsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics._MetricsHandler, "timeout", 0.05)
    with (
        socket.create_connection(("127.0.0.1", server.server_port), PATIENCE_S) as connection,
        suppress(ConnectionError),
    ):
        assert connection.recv(1) == b""


@pytest.mark.parametrize(
    ("host", "status"), [("localhost:9100", b"200"), ("[::1]", b"200"), ("rebound.example.com", b"403"), ("", b"403")]
)
def test_on_loopback_a_foreign_name_is_not_answered(server: MetricsServer, host: str, status: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.server_port), PATIENCE_S) as connection:
        connection.sendall(f"GET /metrics HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        said = b""
        while b"\r\n" not in said:
            said += connection.recv(100)
    assert said.split()[1] == status


def test_beyond_loopback_any_name_is_answered() -> None:
    made = MetricsServer(numbers, "0.0.0.0", 0)
    try:
        assert read(made) == b"up 1\n"
    finally:
        made.close()


# -- with an identity -------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path) -> Path:
    permissions.init(tmp_path, "hub", "server")
    permissions.add(tmp_path, "prometheus", "administrator")
    permissions.add(tmp_path, "sensor", "producer")
    return tmp_path


@pytest.fixture
def guarded(home: Path) -> Iterator[MetricsServer]:
    made = MetricsServer(numbers, "127.0.0.1", 0, Office(Keys(home / "hub")))
    yield made
    made.close()


def asked(server: MetricsServer, home: Path, token: str = "", certificate: str = "") -> tuple[int, str]:
    context = ssl.create_default_context(cafile=home / "authority.pem")
    if certificate:
        context.load_cert_chain(home / f"{certificate}.pem", home / f"{certificate}.key")
    url = f"https://localhost:{server.server_port}/metrics"
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S, context=context) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_with_an_identity_administrators_read_along_and_nobody_else(guarded: MetricsServer, home: Path) -> None:
    token = make_token(Keys(home / "prometheus"), 3600.0)
    assert asked(guarded, home, token) == (200, "up 1\n")
    assert asked(guarded, home, certificate="prometheus") == (200, "up 1\n")
    refused = {
        "a token or the certificate of an identity is needed": asked(guarded, home),
        "invalid token": asked(guarded, home, "nonsense"),
        "is not signed by an identity": asked(guarded, home, token + "A"),
        "sensor may not administer all topics": asked(guarded, home, make_token(Keys(home / "sensor"), 60.0)),
        "hub may not administer all topics": asked(guarded, home, certificate="hub"),
    }
    for why, (status, said) in refused.items():
        assert (status, why in said) == (401, True), said
    permissions.revoke(home, "prometheus")
    assert asked(guarded, home, token)[0] == asked(guarded, home, certificate="prometheus")[0] == 401


def test_with_an_identity_nothing_is_plain_and_strangers_are_few(
    guarded: MetricsServer, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises((OSError, urllib.error.URLError)):
        read(guarded)
    monkeypatch.setattr(metrics, "HANDSHAKE_TIMEOUT_S", 10 * PATIENCE_S)  # so that nothing else ends them
    before = threading.active_count()
    with ExitStack() as stack:
        silent = [
            stack.enter_context(socket.create_connection(("127.0.0.1", guarded.server_port), PATIENCE_S))
            for _ in range(5 * metrics.CONNECTIONS_MAX)
        ]
        assert asked(guarded, home, certificate="prometheus")[0] == 200
        for each in silent[: 3 * metrics.CONNECTIONS_MAX]:
            with suppress(ConnectionError):
                assert each.recv(1) == b""
        until(lambda: threading.active_count() - before <= metrics.CONNECTIONS_MAX + 1)


def test_beyond_this_machine_it_takes_an_identity_or_a_word(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="is not this machine: give the pipeline's numbers an identity"):
        Office.of(None, "0.0.0.0", "pipeline's numbers")
    assert Office.of(None, "127.0.0.1", "pipeline's numbers") is None
    assert Office.of("plain", "0.0.0.0", "pipeline's numbers") is None
    monkeypatch.setenv("CHAPPE_IDENTITY", str(home / "hub"))
    assert Office.of(None, "0.0.0.0", "pipeline's numbers") is not None
