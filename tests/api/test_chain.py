"""Chains over real sockets: commands once, in one order, at all servers; servers that go and come."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import zmq
from tests.api.chain_rig import Ledger, Servers, new_configuration, serving
from tests.waiting import PATIENCE_S, until

from chappe import AsyncChain, Chain, ChainConfiguration, ChainServer
from chappe.errors import (
    CommandFailed,
    ConfigError,
    IdentityInUse,
    NoChain,
    NotPermitted,
    RecordTooLarge,
    TimedOut,
    UsageError,
)
from chappe.replication.chain.events import Applied
from chappe.replication.chain.wire import FRAME_BYTES_MAX, REQUEST, SERVER, chain_of, encode_header


def call(chain: Chain, *commands: bytes) -> list[bytes]:
    return [each.result for each in chain.call_many(commands, timeout=PATIENCE_S)]


def test_commands_are_done_in_order_by_all_servers(tmp_path: Path) -> None:
    configuration = new_configuration()
    with serving(configuration, tmp_path) as servers, Chain(configuration) as chain:
        answer = chain.call(b"first", timeout=PATIENCE_S)

        assert (answer.result, answer.members, answer.durable) == (b"1", 3, True)
        assert call(chain, *(b"%d" % each for each in range(2_000))) == [b"%d" % each for each in range(2, 2_002)]
        until(servers.whole)
        assert servers.states() == {chain.read(b"all", timeout=PATIENCE_S)}
        for name in configuration.names:
            assert chain.read(b"", server=name, timeout=PATIENCE_S) == b"2001"


def test_what_several_clients_write_is_in_one_order(tmp_path: Path) -> None:
    configuration = new_configuration()
    with serving(configuration, tmp_path) as servers:

        def write(who: int) -> None:
            with Chain(configuration) as chain:
                for each in range(50):
                    chain.call(b"%d-%d" % (who, each), timeout=PATIENCE_S)

        writers = [threading.Thread(target=write, args=(who,)) for who in range(4)]
        for each in writers:
            each.start()
        for each in writers:
            each.join()
        until(servers.whole)

        assert len(servers.states()) == 1
        lines = servers.machines["b"].lines
        for who in range(4):
            assert [each for each in lines if each.startswith(b"%d-" % who)] == [b"%d-%d" % (who, n) for n in range(50)]


def test_a_session_has_the_address_of_its_client_at_all_servers(tmp_path: Path) -> None:
    configuration = new_configuration()
    with serving(configuration, tmp_path) as servers, Chain(configuration) as chain:
        chain.call(b"one", timeout=PATIENCE_S)
        until(servers.whole)
        for each in servers.running.values():
            sessions = each._ports.core.replica._sessions.values()
            assert {session.origin for session in sessions} == {b"127.0.0.1"}


def test_what_the_machine_raises_is_told_and_the_chain_goes_on(tmp_path: Path) -> None:
    configuration = new_configuration("a")
    with serving(configuration, tmp_path), Chain(configuration) as chain:
        with pytest.raises(CommandFailed, match="ValueError: that is refused"):
            chain.call(b"refuse", timeout=PATIENCE_S)

        assert call(chain, b"next") == [b"1"]


def test_a_chain_goes_on_without_its_head_and_takes_it_back_as_tail(tmp_path: Path) -> None:
    configuration = new_configuration()
    with serving(configuration, tmp_path) as servers, Chain(configuration) as chain:
        call(chain, b"one")
        servers.stop("a")

        assert chain.call(b"two", timeout=PATIENCE_S).members == 2
        servers.start("a")
        until(servers.whole)
        assert servers.members() == {("b", "c", "a")}
        assert servers.states() == {Ledger.snapshot(servers.machines["a"])}
        assert servers.machines["a"].lines == [b"one", b"two"]


def test_the_last_one_of_a_fixed_chain_confirms_and_who_comes_back_gets_everything(tmp_path: Path) -> None:
    configuration = new_configuration(fixed=True)
    with serving(configuration, tmp_path) as servers, Chain(configuration) as chain:
        call(chain, b"one")
        servers.stop("a")
        servers.stop("b")

        assert chain.call(b"two", timeout=PATIENCE_S).members == 1
        assert chain.read(b"") == b"2"
        servers.start("a")
        servers.start("b")
        until(servers.whole)
        assert {each[0] for each in servers.members()} == {"c"}
        assert len(servers.states()) == 1
        assert servers.machines["a"].lines == [b"one", b"two"]


def test_a_fixed_chain_is_told_from_one_whose_servers_agree(tmp_path: Path) -> None:
    configuration = new_configuration("a", fixed=True)
    agreed = replace(configuration, fixed=False)
    with serving(configuration, tmp_path), Chain(configuration) as chain, Chain(agreed) as other:
        call(chain, b"one")
        with pytest.raises(NotPermitted, match="another chain: compare the names, and fixed, in the files"):
            other.call(b"two", timeout=PATIENCE_S)
    with pytest.raises(UsageError, match="is of a chain that is fixed: set fixed as it was"):
        ChainServer(Ledger(), agreed, "a", directory=tmp_path / "a")


def test_all_servers_start_again_with_what_was_confirmed(tmp_path: Path) -> None:
    configuration = new_configuration()
    with serving(configuration, tmp_path) as servers, Chain(configuration) as chain:
        call(chain, b"one", b"two")
    with serving(configuration, tmp_path) as servers, Chain(configuration) as chain:
        assert call(chain, b"three") == [b"3"]
        until(servers.whole)
        assert servers.machines["b"].lines == [b"one", b"two", b"three"]
        assert len(servers.states()) == 1


def test_a_chain_in_memory_needs_no_directory_and_outlives_each_server() -> None:
    configuration = new_configuration(durable=False)
    with serving(configuration, None) as servers, Chain(configuration) as chain:
        call(chain, b"0")
        for turn, name in enumerate("abc", 1):
            servers.stop(name)
            assert not chain.call(b"%d" % turn, timeout=PATIENCE_S).durable
            servers.start(name)
            until(servers.whole)

        assert servers.machines["a"].lines == [b"0", b"1", b"2", b"3"]


def test_a_server_that_lost_its_disk_gets_everything_from_the_tail(tmp_path: Path) -> None:
    configuration = new_configuration()
    with serving(configuration, tmp_path) as servers, Chain(configuration) as chain:
        call(chain, b"one", b"two")
        servers.stop("c")
        for each in (tmp_path / "c").iterdir():
            each.unlink()
        servers.start("c")
        until(servers.whole)

        assert servers.machines["c"].lines == [b"one", b"two"]


def test_servers_are_taken_out_and_come_back(tmp_path: Path) -> None:
    configuration = new_configuration()
    with serving(configuration, tmp_path) as servers, Chain(configuration) as chain:
        call(chain, b"one")
        chain.remove("b", timeout=PATIENCE_S)

        assert servers.running["a"].status().out == ("b",)
        assert servers.running["b"].status().role == "outside"
        assert chain.call(b"two", timeout=PATIENCE_S).members == 2
        chain.add("b", timeout=PATIENCE_S)
        until(servers.whole)
        assert servers.members() == {("a", "c", "b")}
        with pytest.raises(UsageError, match="no server 'd', but a, b, c"):
            chain.remove("d")


def test_the_last_member_cannot_be_taken_out(tmp_path: Path) -> None:
    configuration = new_configuration("a")
    with serving(configuration, tmp_path), Chain(configuration) as chain:
        call(chain, b"one")
        with pytest.raises(UsageError, match="a is the last member of the chain"):
            chain.remove("a", timeout=PATIENCE_S)


def test_an_event_loop_uses_a_chain_without_blocking(tmp_path: Path) -> None:
    configuration = new_configuration()

    async def use() -> list[bytes]:
        async with AsyncChain(configuration) as chain:
            found = await asyncio.gather(*(chain.call(b"%d" % each, timeout=PATIENCE_S) for each in range(20)))
            found += await chain.call_many([b"more"], timeout=PATIENCE_S)
            assert await chain.read(b"", timeout=PATIENCE_S) == b"21"
            status = await chain.status(timeout=PATIENCE_S)
            assert [each.role for each in status.values() if each is not None] == ["head", "middle", "tail"]
            return [each.result for each in found]

    with serving(configuration, tmp_path):
        assert sorted(map(int, asyncio.run(use()))) == list(range(1, 22))


def test_without_servers_it_is_certain_that_nothing_is_done() -> None:
    with Chain(new_configuration()) as chain:
        with pytest.raises(NoChain, match="no server of the chain orders took it in time") as raised:
            chain.call(b"one", timeout=0.05)

        assert raised.value.definite
        assert chain.pending == 0
        assert dict(chain.status(timeout=0.05)) == {"a": None, "b": None, "c": None}


def test_a_chain_that_is_not_whole_yet_says_whom_it_waits_for(tmp_path: Path) -> None:
    servers = Servers(new_configuration(), tmp_path)
    with servers.start("a") as server, Chain(servers.configuration) as chain:
        until(lambda: "b, c still missing" in server.status().why)
        until(lambda: chain.status(timeout=1.0)["a"] is not None)

        def told() -> bool:
            with pytest.raises(NoChain) as raised:
                chain.call(b"one", timeout=1.0)
            return "a chain begins when all its servers are there and hear each other; b, c still" in str(raised.value)

        until(told)


def test_a_command_that_was_sent_and_not_answered_may_still_be_done(tmp_path: Path) -> None:
    configuration = new_configuration("a")
    with serving(configuration, tmp_path) as servers, Chain(configuration) as chain:
        call(chain, b"one")
        servers.stop("a")
        with pytest.raises(TimedOut, match="it may still be done") as raised:
            chain.call(b"two", timeout=0.1)

        assert not raised.value.definite
        servers.start("a")
        until(lambda: not chain.pending)
        assert servers.machines["a"].lines == [b"one", b"two"]


def test_garbage_on_the_port_is_counted_and_harms_nobody(tmp_path: Path) -> None:
    configuration = new_configuration("a")
    with serving(configuration, tmp_path) as servers, Chain(configuration) as chain, zmq.Context() as context:
        call(chain, b"one")
        address = configuration.addresses[0]
        with socket.create_connection((address.host, address.port)) as raw:
            raw.sendall(os.urandom(10_000))
        stranger = context.socket(zmq.DEALER)
        stranger.setsockopt(zmq.LINGER, 0)
        stranger.connect(address.endpoint(0))
        good = encode_header(REQUEST, 0, configuration.chain)
        for frames in (
            [b"hello"],
            [b"hello", b"world"],
            [good, b""],
            [good, os.urandom(100)],
            [good, b"x", b"y"],
            [encode_header(SERVER, 0, configuration.chain), b"\x91\xc0"],
            [encode_header(SERVER, 9, configuration.chain), b"\x91\xc0"],
            [encode_header(REQUEST, 0, bytes(8)), b"\x91\xc0"],
        ):
            stranger.send_multipart(frames)
        until(lambda: servers.running["a"].status().malformed >= 8)  # ZeroMQ may take the raw bytes for a message
        stranger.send_multipart([good, bytes(FRAME_BYTES_MAX + 1)])  # the connection ends
        stranger.close()

        assert call(chain, b"two") == [b"2"]


def test_a_client_with_other_names_is_told_so(tmp_path: Path) -> None:
    configuration = new_configuration("a")
    other = ChainConfiguration({"x": configuration.servers["a"]})
    assert chain_of("orders", ["a"]) == configuration.chain
    with (
        serving(configuration, tmp_path),
        Chain(other) as chain,
        pytest.raises(NotPermitted, match="this server has another chain"),
    ):
        chain.call(b"one", timeout=PATIENCE_S)


def test_an_answer_that_comes_while_its_call_is_given_up_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    with Chain(new_configuration("a")) as chain:
        call = chain.submit(b"one")

        def withdraw(token: int) -> bool:
            call._answer(b"done")
            return False

        with monkeypatch.context() as late:
            late.setattr(chain.member.core, "withdraw", withdraw)
            assert call.take() == b"done"


def test_who_watches_hears_of_each_command_once_in_order(tmp_path: Path) -> None:
    heard: list[Applied] = []
    tails: set[bool] = set()

    def applied(found: Sequence[Applied], tail: bool) -> None:
        heard.extend(found)
        tails.add(tail)

    configuration = new_configuration("a")
    with serving(configuration, tmp_path, on_applied=applied), Chain(configuration) as chain:
        call(chain, b"one", b"two")
        with pytest.raises(CommandFailed):
            chain.call(b"refuse", timeout=PATIENCE_S)

    assert [(each.command, each.outcome, each.result) for each in heard] == [
        (b"one", 0, b"1"),
        (b"two", 0, b"2"),
        (b"refuse", 1, b"ValueError: that is refused"),
    ]
    assert [each.index for each in heard] == [
        heard[0].index,
        heard[0].index,
        heard[0].index + 1,
    ]  # "two" came with "one"
    assert tails == {True}


def test_calls_without_waiting_are_answered_later(tmp_path: Path) -> None:
    configuration = new_configuration()
    told: list[int] = []
    with serving(configuration, tmp_path), Chain(configuration) as chain:
        calls = [chain.submit(b"%d" % each) for each in range(100)]
        for place, each in enumerate(calls):
            each.then(lambda place=place: told.append(place))  # type: ignore[misc]
        assert calls[-1].wait(PATIENCE_S)

        assert [each.take().result for each in calls] == [b"%d" % each for each in range(1, 101)]
        assert told == list(range(100))


def test_what_cannot_be_a_command_or_a_query_is_refused_at_once(tmp_path: Path) -> None:
    with Chain(new_configuration("a")) as chain:
        with pytest.raises(RecordTooLarge, match="a command has at most 4,194,304 bytes"):
            chain.call(bytes((4 << 20) + 1))
        with pytest.raises(UsageError, match="a command is bytes"):
            chain.call("text")  # type: ignore[arg-type]
        with pytest.raises(RecordTooLarge, match="a query has at most 4,194,304 bytes"):
            chain.read(bytes((4 << 20) + 1))
        with pytest.raises(UsageError, match="a query is bytes"):
            chain.read(5)  # type: ignore[arg-type]


def test_a_directory_is_of_one_server_at_a_time(tmp_path: Path) -> None:
    servers = Servers(new_configuration("a"), tmp_path)
    with servers.start("a"), pytest.raises(IdentityInUse):
        servers.start("a")


def test_a_durable_chain_needs_a_directory() -> None:
    with pytest.raises(UsageError, match="needs a directory"):
        ChainServer(Ledger(), new_configuration("a"), "a")


@pytest.mark.parametrize(
    ("servers", "says"),
    [
        ({}, "name at least one"),
        ({f"s{each}": f"127.0.0.1:{each + 1}" for each in range(16)}, "at most 15 servers"),
        ({"a b": "127.0.0.1:1"}, "is no name"),
        ({"a": "127.0.0.1:0"}, "needs a port"),
        ({"a": "127.0.0.1"}, "needs a port"),
        ({"a": "127.0.0.1:x"}, "not the address of a server of a chain"),
        ({"a": "127.0.0.1:1", "b": "127.0.0.1:1"}, "a and b have the same address"),
    ],
)
def test_a_configuration_that_is_none_is_refused(servers: dict[str, str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        ChainConfiguration(servers)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "servers"),
        ("[servers]\n", "name at least one"),
        ("servers = 3\n", "Expected `object`, got `int`"),
        ("[servers]\na = '127.0.0.1:1'\n[other]\n", "unknown field `other`"),
        ("[servers\n", "line 1"),
        ("durable = 'yes'\n[servers]\na = '127.0.0.1:1'\n", "durable"),
    ],
)
def test_a_file_that_is_no_configuration_is_named(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "chain.toml"
    path.write_text(text)

    with pytest.raises(ConfigError, match=says) as raised:
        ChainConfiguration.load(path)
    assert str(raised.value).startswith(str(path))


def test_a_file_has_what_servers_and_clients_share(tmp_path: Path) -> None:
    path = tmp_path / "chain.toml"
    path.write_text(
        'name = "orders"\ndurable = false\nfixed = true\n[servers]\nb = "127.0.0.1:7001"\na = "hub@127.0.0.1:7002"\n'
    )

    found = ChainConfiguration.of(path)
    servers = {"b": "127.0.0.1:7001", "a": "hub@127.0.0.1:7002"}
    assert found == ChainConfiguration(servers, "orders", durable=False, fixed=True)
    assert found.names == ("b", "a")
    with pytest.raises(ConfigError, match="cannot be read: no such file"):
        ChainConfiguration.of(tmp_path / "other.toml")
