"""Where Prometheus reads: who comes in great numbers, says nothing, or dials by a foreign name."""

from __future__ import annotations

import json
import socket
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Shell
from tests.commands import commands_of, whole_program
from tests.waiting import PATIENCE_S, until

from chappe.api import permissions
from chappe.api.serving import Office
from chappe.api.tokens import make_token
from chappe.cli import metrics
from chappe.cli.metrics import MetricsServer
from chappe.errors import UsageError
from chappe.observing.numbers import Family
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


class Ill:
    """A command one part of which is not ready, and another one of which has to be started again."""

    def families(self) -> Iterable[Family]:
        return [Family("chappe_member_ready", "r", "gauge", ("kind", "member"), [(("store", "s"), 0.0)])]

    def unready(self) -> list[str]:
        return ["store s: its disk refuses writes: full", "tower t: it has met a defect"]

    def defects(self) -> list[str]:
        return ["tower t: it has met a defect"]


def probed(server: MetricsServer, word: str, **tls: Any) -> tuple[int, dict[str, Any]]:
    try:
        with urllib.request.urlopen(f"{server.url.removesuffix('metrics')}health/{word}", **tls) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_probes_get_yes_or_no_and_one_sentence() -> None:
    well = metrics.serve_numbers(metrics.RunNumbers(list, str), "0", None)
    ill = metrics.serve_numbers(Ill(), "0", None)
    with closing(well), closing(ill):
        assert probed(well, "live") == (200, {"live": True})
        assert probed(well, "ready") == (200, {"ready": True})
        assert probed(ill, "live") == (503, {"live": False, "why": "tower t: it has met a defect"})
        assert probed(ill, "ready")[1]["why"].startswith("store s: its disk refuses writes: full; tower t: ")
        assert b'chappe_member_ready{kind="store",member="s"} 0.0' in read(ill)
        request = urllib.request.Request(ill.url, headers={"Accept": "application/openmetrics-text"})
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            assert answer.read().endswith(b"# EOF\n")


# -- with an identity -------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path) -> Path:
    permissions.init(tmp_path, "hub", "server")
    permissions.add(tmp_path, "prometheus", "administrator")
    permissions.add(tmp_path, "sensor", "producer")
    return tmp_path


@pytest.fixture
def guarded(home: Path) -> Iterator[MetricsServer]:
    office = Office(Keys(home / "hub"))
    made = MetricsServer(metrics.guarded(office, numbers), "127.0.0.1", 0, office)
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


def test_probes_need_no_identity_where_numbers_do(home: Path) -> None:
    server = metrics.serve_numbers(Ill(), "0", Keys(home / "hub"))
    context = ssl.create_default_context(cafile=home / "authority.pem")
    context.check_hostname = False
    with closing(server):
        assert probed(server, "ready", context=context)[0] == 503
        assert asked(server, home)[0] == 401
        assert asked(server, home, certificate="prometheus")[0] == 200


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


# -- commands ---------------------------------------------------------------------------------------

SERVING = (
    "archive", "chain serve", "copy", "dashboard", "forward", "gateway", "kv serve", "map serve", "map witness", "node",
    "pipeline run", "record", "store", "tower", "up",
)  # fmt: skip


def test_every_command_that_serves_has_numbers() -> None:
    having = [
        name
        for name, command in commands_of(whole_program())
        if any("--metrics" in each.opts for each in command.params)
    ]
    assert sorted(having) == list(SERVING)


@pytest.mark.process
def test_a_command_says_where_its_numbers_are_to_its_user_and_to_systemd(shell: Shell) -> None:
    place = str(shell.directory / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(place)
        systemd.settimeout(PATIENCE_S)
        shell.env["NOTIFY_SOCKET"] = place
        url = shell.up("--metrics", "0")["metrics"]
        assert systemd.recv(100) == b"READY=1"
    until(lambda: urllib.request.urlopen(url.replace("metrics", "health/ready"), timeout=PATIENCE_S).status == 200)
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
        said = answer.read()
    for wanted in (b'chappe_member_ready{kind="store",', b'chappe_member_ready{kind="tower",', b"process_open_fds "):
        assert wanted in said
    port = url.split(":")[2].split("/")[0]
    done = shell.run("tower", "--listen", "127.0.0.1:0", "--metrics", port)
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.decode().startswith(f"chappe: port {port} on 127.0.0.1 is in use: stop the program ")
    done = shell.run("tower", "--listen", "127.0.0.1:0", "--metrics", "0.0.0.0:0")
    assert done.returncode == 2
    assert b"0.0.0.0 is not this machine: give the numbers an identity" in done.stderr or b"--plain" in done.stderr
