"""Chains with keys: who is a server, who writes, who reads, who takes servers out."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.api.chain_rig import Ledger
from tests.ports import free_ports
from tests.waiting import PATIENCE_S, until

from chappe import Chain, ChainConfiguration, ChainServer, Keys
from chappe.api import permissions
from chappe.errors import NoChain, NotPermitted, UsageError
from chappe.replication.chain.messages import Listen, Read
from chappe.runtime.chain_rules import ChainRules
from chappe.transports.gate import gate_of

RULES = """
[[rules]]
allow = ["write", "attach-clone"]
names = ["writer"]
topics = ["orders"]

[[rules]]
allow = ["attach-clone"]
names = ["reader"]
topics = ["orders"]

[[rules]]
allow = ["write", "attach-clone"]
names = ["other"]
topics = ["bills"]
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    made = tmp_path / "keys"
    permissions.init(made, "hub", "server")
    path = made / "permissions.toml"
    path.write_text(path.read_text().replace("[[rules]]", RULES + "\n[[rules]]", 1))
    permissions.sign(path)
    for name, role in (("hub2", "server"), ("writer", "nothing"), ("reader", "nothing"), ("other", "nothing")):
        permissions.add(made, name, role)
    return made


@pytest.fixture
def configuration() -> ChainConfiguration:
    first = free_ports(2)
    return ChainConfiguration({"a": f"hub@127.0.0.1:{first}", "b": f"hub2@127.0.0.1:{first + 1}"}, "orders", False)


@pytest.fixture
def servers(home: Path, configuration: ChainConfiguration) -> Iterator[list[ChainServer]]:
    with (
        ChainServer(Ledger(), configuration, "a", security=Keys(home / "hub")) as a,
        ChainServer(Ledger(), configuration, "b", security=Keys(home / "hub2")) as b,
    ):
        yield [a, b]


def test_who_may_write_writes_and_who_may_read_reads(
    home: Path, configuration: ChainConfiguration, servers: list[ChainServer]
) -> None:
    with Chain(configuration, security=Keys(home / "writer")) as chain:
        assert chain.call(b"one", timeout=PATIENCE_S).members == 2
    with Chain(configuration, security=Keys(home / "reader")) as chain:
        assert chain.read(b"", timeout=PATIENCE_S) == b"1"
        with pytest.raises(NotPermitted, match="reader may not write orders"):
            chain.call(b"two", timeout=PATIENCE_S)
        assert chain.pending == 0
        assert chain.member.core.next_timeout() == math.inf  # nothing is asked again and again
        with pytest.raises(NotPermitted, match="reader may not administer orders"):
            chain.remove("b", timeout=PATIENCE_S)
        assert chain.status(timeout=PATIENCE_S)["a"] is not None
    with (
        Chain(configuration, security=Keys(home / "other")) as chain,
        pytest.raises(NotPermitted, match="other may not attach-clone orders"),
    ):
        chain.read(b"", timeout=PATIENCE_S)


def test_who_administers_takes_servers_out(
    home: Path, configuration: ChainConfiguration, servers: list[ChainServer]
) -> None:
    path = home / "permissions.toml"
    rule = '[[rules]]\nallow = ["administer"]\nnames = ["reader"]\ntopics = ["orders"]\n\n'
    path.write_text(path.read_text().replace("[[rules]]", rule + "[[rules]]", 1))
    permissions.sign(path)
    with Chain(configuration, security=Keys(home / "reader")) as chain:

        def removed() -> bool:
            try:
                chain.remove("b", timeout=1.0)
            except (NotPermitted, NoChain):  # servers look at their files once a second
                return False
            return True

        until(removed)
    assert servers[0].status().members == ("a",)


def test_answers_of_sessions_go_to_those_who_may_write(home: Path) -> None:
    gate = gate_of(Keys(home / "hub"))
    assert gate is not None
    rules = ChainRules(gate, "orders", ["hub", "hub2"])

    assert rules.heard("writer", Listen(7, b"me")) == Listen(7, b"me")
    assert rules.heard("reader", Listen(7, b"me")) == Listen(0, b"me")
    assert rules.heard("reader", Read(1, b"")) == Read(1, b"")


def test_who_has_no_keys_is_not_heard(configuration: ChainConfiguration, servers: list[ChainServer]) -> None:
    until(lambda: servers[0].status().number)
    plain = ChainConfiguration(
        {name: each.rpartition("@")[2] for name, each in configuration.servers.items()}, "orders"
    )
    with Chain(plain, security="plain") as chain, pytest.raises(NoChain):
        chain.call(b"one", timeout=0.5)
    with pytest.raises(UsageError, match="has keys, and we have none"):
        Chain(configuration, security="plain")


def test_a_server_is_who_the_configuration_says(home: Path, configuration: ChainConfiguration) -> None:
    with pytest.raises(UsageError, match="hub2 is not the server a of the chain, hub is"):
        ChainServer(Ledger(), configuration, "a", security=Keys(home / "hub2"))


def test_who_says_that_he_is_another_server_is_not_believed(
    home: Path, configuration: ChainConfiguration, servers: list[ChainServer]
) -> None:
    until(lambda: servers[0].status().number)
    first = free_ports()
    # It is at the place of b for itself, and is one that the others do not know there.
    mine = ChainConfiguration(
        {"a": configuration.servers["a"], "b": f"writer@127.0.0.1:{first}"}, "orders", durable=False
    )
    permissions_file = home / "permissions.toml"
    rule = '[[rules]]\nallow = ["attach-master"]\nnames = ["writer"]\ntopics = ["orders"]\n\n'
    permissions_file.write_text(permissions_file.read_text().replace("[[rules]]", rule + "[[rules]]", 1))
    permissions.sign(permissions_file)
    with ChainServer(Ledger(), mine, "b", security=Keys(home / "writer")):
        gate = servers[0]._ports._gate
        assert gate is not None
        until(lambda: gate.refusals.by_identity().get("writer"))
    assert servers[0].status().members == ("a", "b")
