"""Where Prometheus reads: who comes in great numbers, says nothing, or dials by a foreign name."""

from __future__ import annotations

import socket
import threading
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pytest
from tests.waiting import PATIENCE_S, until

from chappe.cli import metrics
from chappe.cli.metrics import MetricsServer


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
    monkeypatch.setattr(metrics._Handler, "timeout", 0.05)
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
