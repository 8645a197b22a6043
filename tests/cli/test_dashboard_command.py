"""``chappe dashboard``, and ``--dashboard`` of other commands, as processes; pages are tested in tests/dashboard."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import suppress
from http.client import HTTPException, HTTPMessage
from pathlib import Path
from typing import Any, cast

import pytest
from tests.cli.conftest import PATIENCE_S, Shell
from tests.ports import free_ports
from tests.waiting import until

from chappe import Keys
from chappe.api import permissions
from chappe.api.tokens import make_token

pytestmark = pytest.mark.process


def said(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.stderr.read().decode() if process.stderr else ""
    return cast(dict[str, Any], json.loads(line))


def fetched(url: str) -> Any:
    with urllib.request.urlopen(f"{url}snapshot.json", timeout=PATIENCE_S) as answer:
        return json.load(answer)


def is_open(url: str) -> bool:
    host, port = url.removeprefix("http://").rstrip("/").split(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


def test_a_dashboard_beside_up_shows_its_store_and_ends_with_it_however_that_ends(shell: Shell) -> None:
    shell.env["CHAPPE_FORWARDERS"] = "127.0.0.1:1"  # of other commands
    process = shell.start("up", "--tower", "127.0.0.1:0", "--dashboard", "--json")
    facts = said(process)

    until(lambda: any(each["kind"] == "store" for each in fetched(facts["dashboard"])["members"]))
    process.send_signal(signal.SIGKILL)
    process.wait(PATIENCE_S)

    until(lambda: not is_open(facts["dashboard"]))


def test_numbers_for_prometheus_say_what_the_snapshot_says(shell: Shell) -> None:
    facts = said(shell.start("up", "--tower", "127.0.0.1:0", "--json"))
    url = said(shell.start("dashboard", "--at", "0", "--tower", facts["tower"], "--json"))["url"]

    def numbers() -> str:
        with urllib.request.urlopen(f"{url}metrics", timeout=PATIENCE_S) as answer:
            assert answer.headers.get_content_type() == "text/plain"
            return str(answer.read().decode())

    until(lambda: 'chappe_members{kind="store",level="good"} 1.0' in numbers())
    assert "# TYPE chappe_topic_written_total counter" in numbers()


def test_a_dashboard_ends_also_if_who_started_it_ended_before_pages_could_be_opened(shell: Shell) -> None:
    shell.env["CHAPPE_DASHBOARD_BESIDE"] = "1"
    process = shell.start("dashboard", "--at", "0", "--tower", "127.0.0.1:1", "--json")
    for each in (process.stdin, process.stdout, process.stderr):
        assert each is not None
        each.close()
    process.stdin = process.stdout = process.stderr = None  # nobody is there to read

    process.wait(PATIENCE_S)


def test_a_dashboard_beside_a_node_shows_the_node_and_misses_no_tower(shell: Shell) -> None:
    process = shell.start("node", "--listen", "127.0.0.1:0", "--dashboard", "--json")
    facts = said(process)

    until(lambda: any(each["id"] == facts["id"] for each in fetched(facts["dashboard"])["members"]))
    found = fetched(facts["dashboard"])
    assert {each["kind"] for each in found["members"]} == {"endpoint", "this dashboard"}
    assert found["problems"] == []
    code, _, _ = shell.stop(process)
    assert code == 0
    assert not is_open(facts["dashboard"])


def test_a_dashboard_beside_a_server_of_a_chain_shows_the_chain(shell: Shell) -> None:
    file = shell.directory / "chain.toml"
    file.write_text(f"[servers]\na = '127.0.0.1:{free_ports()}'\n")
    facts = said(shell.start("chain", "serve", str(file), "--name", "a", "--dashboard", "--json"))

    def places() -> list[list[str]]:
        return [[each["name"], each["status"]] for each in fetched(facts["dashboard"])["members"]]

    until(lambda: places() == [["a", "alone"]], lambda: str(places()))


def test_beyond_this_machine_the_address_that_is_printed_has_a_token(shell: Shell) -> None:
    process = shell.start("dashboard", "--at", "*:0", "--tower", "127.0.0.1:1", "--plain", "--json")
    url = said(process)["url"]
    port = int(url.split("/?")[0].rpartition(":")[2])
    here = f"http://127.0.0.1:{port}/"

    with pytest.raises(urllib.error.HTTPError) as refused:
        fetched(here)
    assert refused.value.code == 403
    assert b"a token is needed" in refused.value.read()

    token = url.rpartition("=")[2]
    assert len(token) >= 32
    asked = urllib.request.Request(f"{here}snapshot.json", headers={"Cookie": f"chappe-dashboard-{port}={token}"})
    with urllib.request.urlopen(asked, timeout=PATIENCE_S) as answer:
        headers: HTTPMessage = answer.headers
        assert headers["Content-Security-Policy"].startswith("default-src 'none'")


@pytest.fixture
def keys(shell: Shell, tmp_path: Path) -> Path:
    home = tmp_path / "keys"
    permissions.init(home, "desk", "administrator")
    permissions.add(home, "sensor", "producer")
    file = home / "permissions.toml"
    text = file.read_text()
    rules = """[[rules]]
allow = ["everything"]
roles = ["administrator"]
topics = ["*"]

"""
    first = text.index("[[rules]]")
    file.write_text(text[:first] + rules + text[text.index("[identities") :])
    permissions.sign(file)
    return home


def secured(keys: Path, url: str, name: str = "", token: str = "") -> int:
    """The status of what comes over TLS, as an identity by its certificate, or with a token."""
    context = ssl.create_default_context(cafile=keys / "authority.pem")
    if name:
        context.load_cert_chain(keys / f"{name}.pem", keys / f"{name}.key")
    query = f"?token={token}" if token else ""
    opener = urllib.request.build_opener(
        urllib.request.HTTPSHandler(context=context), urllib.request.HTTPCookieProcessor()
    )
    try:
        with opener.open(f"{url}/snapshot.json{query}", timeout=PATIENCE_S) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        return refused.code


def test_beyond_this_machine_it_is_served_over_tls_to_who_has_the_token_or_may_administer(
    shell: Shell, keys: Path
) -> None:
    process = shell.start("dashboard", "--at", "*:0", "--tower", "127.0.0.1:1", "--as", str(keys / "desk"), "--json")
    url = said(process)["url"]
    assert url.startswith("https://")
    port = int(url.split("/?")[0].rpartition(":")[2])
    here, token = f"https://localhost:{port}", url.rpartition("=")[2]
    idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(300)]

    assert secured(keys, here, token=token) == 200
    assert secured(keys, here, name="desk") == 200
    assert secured(keys, here, token=make_token(Keys(keys / "desk"), 60.0)) == 200
    assert secured(keys, here) == 403
    assert secured(keys, here, name="sensor") == 403
    assert secured(keys, here, token=make_token(Keys(keys / "sensor"), 60.0)) == 403
    with pytest.raises((OSError, HTTPException)):
        urllib.request.urlopen(f"http://localhost:{port}/snapshot.json?token={token}", timeout=PATIENCE_S)
    for each in idle:
        each.close()


def test_who_connects_and_asks_for_nothing_keeps_nobody_out(shell: Shell) -> None:
    url = said(shell.start("dashboard", "--at", "0", "--tower", "127.0.0.1:1", "--json"))["url"]
    port = int(url.rstrip("/").rpartition(":")[2])
    idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(400)]
    for each in idle[::2]:
        with suppress(OSError):
            each.sendall(b"GET / HTTP/1.1\r\nHost:")

    assert fetched(url)["problems"] is not None
    for each in idle:
        each.close()


def test_a_token_that_was_given_is_asked_for_and_not_printed(shell: Shell) -> None:
    shell.env["CHAPPE_DASHBOARD_TOKEN"] = "sixteen-characters"
    process = shell.start("dashboard", "--at", "0", "--tower", "127.0.0.1:1", "--json")
    url = said(process)["url"]
    assert "sixteen" not in url
    with pytest.raises(urllib.error.HTTPError):
        fetched(url)
    request = urllib.request.Request(f"{url}snapshot.json", headers={"Authorization": "Bearer sixteen-characters"})
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        assert json.load(answer)["problems"] is not None
    process.terminate()
    _, errors = process.communicate()
    assert b"sixteen" not in errors


@pytest.mark.parametrize(
    ("arguments", "env", "code", "text"),
    [
        (["--at", "nowhere"], {}, 2, "'nowhere' is not an address: [HOST:]PORT is wanted, such as 127.0.0.1:8788"),
        (["--at", "127.0.0.1:70000"], {}, 2, "'127.0.0.1:70000' is not an address"),
        (["--at", "0"], {"CHAPPE_DASHBOARD_TOKEN": "short"}, 2, "a token has at least 16 characters"),
        (
            ["--at", "0"],
            {"CHAPPE_DASHBOARD_TOKEN": "sixteen characters;"},
            2,
            "a token has at least 16 characters, each",
        ),
        (["--at", "*:0"], {}, 2, "0.0.0.0 is not this machine: give the dashboard an identity"),
        (["--at", "0", "--peer", "10.0.0.1:1"], {}, 2, "10.0.0.1 is not this machine: give --as"),
    ],
)
def test_wrong_use_is_one_sentence(
    shell: Shell, arguments: list[str], env: dict[str, str], code: int, text: str
) -> None:
    shell.env |= env
    done = shell.run("dashboard", *arguments)

    assert (done.returncode, done.stdout) == (code, b"")
    assert done.stderr.decode().startswith(f"chappe: {text}")
    assert done.stderr.count(b"\n") == 1


def test_a_port_that_is_taken_is_one_sentence(shell: Shell) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        at = f"127.0.0.1:{taken.getsockname()[1]}"
        done = shell.run("dashboard", "--at", at)
        assert done.returncode == 1
        assert b"is in use: stop the program that listens there, or choose another: --at PORT" in done.stderr


def test_without_its_packages_the_extra_is_named_and_nothing_else_needs_them(shell: Shell) -> None:
    code = "import sys; sys.modules['nicegui'] = None; sys.argv[0] = 'chappe'; from chappe.cli import main; main()"
    without = [sys.executable, "-c", code]

    done = subprocess.run(
        [*without, "dashboard", "--at", "0"], env=shell.env, capture_output=True, timeout=PATIENCE_S, check=False
    )
    other = subprocess.run([*without, "config"], env=shell.env, capture_output=True, timeout=PATIENCE_S, check=False)

    assert done.returncode == 1
    assert done.stderr.decode().endswith("pip install 'chappe[dashboard]'\n")
    assert b"Traceback" not in done.stderr
    assert other.returncode == 0


def test_the_command_line_does_not_import_what_only_pages_need() -> None:
    code = (
        "import sys, chappe.cli.app; print([each for each in ('nicegui', 'fastapi', 'uvicorn') if each in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], env=dict(os.environ), capture_output=True, check=True)
    assert done.stdout == b"[]\n"
