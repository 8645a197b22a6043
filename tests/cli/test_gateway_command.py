"""``chappe gateway`` as real processes, and what it shows."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.cli.conftest import Shell
from tests.waiting import PATIENCE_S, until

from chappe import Endpoint, GatewayStatus
from chappe.cli import gateway
from chappe.errors import ConfigError
from chappe.gateway.core import SideStatus

HOST = "127.0.0.1"


def start_gateway(shell: Shell, file: str) -> tuple[subprocess.Popen[bytes], dict[str, Any]]:
    process = shell.start("gateway", file, "--json")
    assert process.stdout is not None
    facts: dict[str, Any] = json.loads(process.stdout.readline())
    return process, facts


def gateways(endpoint: Endpoint) -> set[str]:
    """The ids of those who announce that they pass, as an endpoint sees them."""
    return {
        each.hex()
        for each, wanted in endpoint.core.filters().items()
        if any(prefix.startswith(b"<$>/gateway/") and b"p/" in prefix for prefix in wanted)
    }


@pytest.mark.process
def test_messages_go_on_when_the_gateway_that_passes_is_killed(shell: Shell) -> None:
    with Endpoint() as office, Endpoint() as plant:
        (shell.directory / "door.toml").write_text(
            f"""
            [domains.office]
            peers = ["{HOST}:{office.listen()}"]
            passes = ["/orders"]

            [domains.plant]
            listen = ["{HOST}:0"]
            peers = ["{HOST}:{plant.listen()}"]
            passes = ["/alarms"]
            """
        )
        alarms = office.subscribe("/alarms")
        first, facts = start_gateway(shell, "door.toml")
        assert list(facts["domains"]) == ["office", "plant"]
        assert facts["domains"]["office"]["listen"] == []
        assert facts["domains"]["plant"]["listen"][0].startswith(HOST)
        until(lambda: b"/alarms" in plant.core.peer_subscriptions())
        passing = gateways(plant)
        assert len(passing) == 1
        second, _ = start_gateway(shell, "door.toml")
        until(lambda: len(plant.peers()) == 2)

        plant.publish("/alarms", "one")
        assert alarms.get(PATIENCE_S).value == "one"  # type: ignore[union-attr]
        first.send_signal(signal.SIGKILL)
        until(lambda: gateways(plant) - passing and b"/alarms" in plant.core.peer_subscriptions())
        for each in range(100):
            plant.publish("/alarms", each)
        assert [alarms.get(PATIENCE_S).value for _ in range(100)] == list(range(100))  # type: ignore[union-attr]
        plant.publish("/orders", "not from here")
        plant.publish("/alarms", "end")
        assert alarms.get(PATIENCE_S).value == "end"  # type: ignore[union-attr]

        assert second.stdout is not None
        told = json.loads(second.stdout.readline())
        while told["state"] != "passing" or told["domains"][1]["passed"] != 101:
            told = json.loads(second.stdout.readline())
        assert [each["domain"] for each in told["domains"]] == ["office", "plant"]
        assert (told["domains"][1]["wanted"], told["domains"][1]["peers"][0]["status"]) == (["/alarms"], "peered")
        assert shell.stop(second)[0] == 0


@pytest.mark.process
def test_what_happens_is_said(shell: Shell) -> None:
    with Endpoint() as office, Endpoint() as plant:
        (shell.directory / "door.toml").write_text(
            f'[domains.office]\npeers = ["{HOST}:{office.listen()}"]\n'
            f'[domains.plant]\npasses = [""]\npeers = ["{HOST}:{plant.listen()}"]\n'
        )
        process = shell.start("gateway", "door.toml")
        assert process.stderr is not None
        said = [process.stderr.readline()]
        while said[-1] != b"passing between office and plant\n":
            said.append(process.stderr.readline())
        assert said[0] == b"gateway between office and plant; Ctrl-C stops\n"
        office.peer(HOST, plant.listen())
        while b"office and plant are one mesh: the gateway sees its own other side there" not in said[-1]:
            said.append(process.stderr.readline())
        code, out, err = shell.stop(process)
    assert (code, out) == (0, "")
    assert err.endswith("gateway stopped\n")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "a gateway joins two domains, [domains.NAME] each, and none is described"),
        ('[domains.a]\npeers = ["x"]\n', "a gateway joins two domains, [domains.NAME] each, and 1 are described: a"),
        ("[domains.a]\n[domains.b]\n", "domain a needs listen or peers"),
        ('[domains.a]\nlisten = [":1"]\nprefixes = ["/"]\n[domains.b]\n', "unknown key 'domains.a.prefixes'"),
        ('[domains.a]\nlisten = [":1"]\n[domains.b]\nlisten = [":2"]\n', "nothing is to pass"),
        ('[domains.a]\nlisten = ":1"\n[domains.b]\n', "domains.a.listen: "),
        ('[domain.a]\nlisten = [":1"]\n', "unknown section 'domain'; did you mean 'domains'?"),
        ("domains.a = 1\ndomains.b = 2\n", "a is a section of its own: [domains.a]"),
        ("[domains.a\n", "line 1"),
    ],
)
def test_a_wrong_file_is_refused_with_its_line(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "door.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as error:
        gateway.load(str(file))
    assert said in str(error.value)
    assert "door.toml, line " in str(error.value)


@pytest.mark.process
@pytest.mark.parametrize(
    ("a", "said"),
    [
        ('listen = ["10.0.0.1:1"]', b"10.0.0.1 is not this machine"),
        ('listen = ["127.0.0.1:0"]\npasses = ["<$>/x"]', b"door.toml: topics that begin with '<' are the mesh's own"),
        ('listen = ["127.0.0.1:0"]\nid = "x"', b"'x' is not an endpoint id"),
        ('listen = ["127.0.0.1:0"]\ntls = { directory = "nowhere", name = "x" }', b"does not exist"),
        ('listen = ["127.0.0.1:0"]\nsecurity = "plain"\ntls = { directory = "n", name = "x" }', b"only one of"),
    ],
)
def test_what_cannot_be_is_one_sentence(a: str, said: bytes, shell: Shell) -> None:
    text = f'[domains.a]\n{a}\n[domains.b]\nlisten = ["127.0.0.1:0"]\npasses = ["/"]\n'
    (shell.directory / "door.toml").write_text(text)
    done = shell.run("gateway", "door.toml")
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_picture_has_both_domains() -> None:
    sides = (
        SideStatus("office", 12, 1, (b"/alarms",), 1_234, 0),
        SideStatus("plant", 3, 1, tuple(b"/orders/%d" % each for each in range(9)), 5, 2),
    )
    status = GatewayStatus("passing", "", sides, 7)
    console = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(gateway.table("gateway between office and plant", status, (12.0, 0.0), ((), ())))
    shown = console.export_text()
    assert "gateway between office and plant: passing; 7 dropped, as peers were slow" in shown
    assert "1,234" in shown
    assert "/orders/3, ... (9 prefixes)" in shown
    status = GatewayStatus("standing by", "another gateway passes", sides, 0)
    assert list(gateway.lines(status, (12.0, 0.0), ((), ()))) == [
        "standing by: another gateway passes; 12/s from office, 0/s from plant"
    ]
