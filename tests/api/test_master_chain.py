"""Masters on a chain: in this process, and as processes that are killed or stand still while a clone writes."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.api.chain_rig import new_configuration
from tests.api.counting import Writer
from tests.api.master_process import Link
from tests.endpoints import PATIENCE_S, Make, endpoint_of, until
from tests.ports import free_ports

from chappe import ChainConfiguration, DataStore, Endpoint
from chappe.errors import ConfigError, StaleData, UsageError
from chappe.kv.events import CloneStale

Links = dict[str, Link]


@pytest.fixture
def links(tmp_path: Path) -> Iterator[Links]:
    """Three processes."""
    file = tmp_path / "chain.toml"
    servers = new_configuration().servers
    file.write_text("[servers]\n" + "".join([f'{name} = "{address}"\n' for name, address in servers.items()]))
    first = free_ports(len(servers))
    made: Links = {}
    try:
        for port, name in enumerate(servers, first):
            made[name] = Link(port, str(file), name, str(tmp_path / name))
        yield made
    finally:
        for each in made.values():
            each.kill()


def members(links: Links) -> list[str]:
    """Who is in the chain, head first, if all that run agree and have the same."""
    found = [each.chain() for each in links.values()]
    same = len({(tuple(each["members"]), each["committed"]) for each in found}) == 1
    return found[0]["members"] if same and all(each["committed"] == each["end"] for each in found) else []


def whole(links: Links) -> list[str]:
    """Wait until all are members; their order."""
    until(lambda: {*members(links)} == {*links}, lambda: str([each.chain() for each in links.values()]))
    return members(links)


def clone_of(make: Make, links: Links) -> DataStore:
    endpoint = make()
    for each in links.values():
        endpoint.peer("127.0.0.1", each.port, retry_s=0.05)
    return endpoint.attach_clone("s", timeout=PATIENCE_S)


@pytest.mark.process
def test_every_server_dies_once_and_each_increment_is_done_once_at_all_of_them(make: Make, links: Links) -> None:
    clone = clone_of(make, links)
    statuses = endpoint_of(clone).statuses()
    writer = Writer(clone)
    with clone.watch() as watch:
        for place in (0, 1, 2):  # the head, a server in the middle, the tail
            writer.more()
            there = members(links)
            victim = links[there[place] if len(there) == len(links) else list(links)[place]]
            victim.kill()
            writer.more()
            victim.start()
            until(lambda: len(_order(links)) == len(links))
        frozen = links[_order(links)[0]]
        frozen.signal(signal.SIGSTOP)
        writer.more()  # its connections are still there
        frozen.signal(signal.SIGCONT)
        writer.stop()
        shown = [event.value for event in watch.poll()]
    whole(links)
    assert clone["n"] == writer.confirmed
    assert [each.ask("get n") for each in links.values()] == [writer.confirmed] * 3
    assert shown == sorted(set(shown))  # nothing twice, and never back
    assert not [event for event in statuses.poll() if isinstance(event, CloneStale)]


def _order(links: Links) -> list[str]:
    """Who is in the chain, as the newest of those that answer has it."""
    found = max([each.chain() for each in links.values()], key=lambda each: each["number"])
    return list(found["members"])


@pytest.fixture
def new() -> Iterator[Make]:
    """Makes endpoints in a process that has sockets of ZeroMQ: what those leave open is not counted."""
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(Endpoint(**options))


def attached(new: Make, chain: ChainConfiguration, home: Path) -> list[DataStore]:
    """All servers of a chain, in this process, each linked with each."""
    found: list[DataStore] = []
    for name in chain.names:
        endpoint = new()
        for other in found:
            endpoint.peer("127.0.0.1", endpoint_of(other).listen())
        directory = home / name if chain.durable else None
        found.append(endpoint.attach_master("s", chain=chain, server=name, directory=directory))
    return found


def test_a_store_on_a_chain_is_read_and_written_at_every_server(new: Make, tmp_path: Path) -> None:
    stores = attached(new, new_configuration(durable=False), tmp_path)
    until(lambda: all(each.ready for each in stores))
    for number, each in enumerate(stores):
        each.put(f"k{number}", number, timeout=PATIENCE_S)
    assert stores[1].put_unique("k0", 7, timeout=PATIENCE_S) is False
    until(lambda: [each.items() for each in stores] == [[("k0", 0), ("k1", 1), ("k2", 2)]] * 3)
    assert [each.chain().role for each in stores if each.chain()] == ["head", "middle", "tail"]  # type: ignore[union-attr]


def test_a_chain_that_begins_again_has_what_was_confirmed(new: Make, tmp_path: Path) -> None:
    chain = new_configuration("ab")
    for lives in range(2):
        stores = attached(new, chain, tmp_path)
        until(lambda: stores[0].ready)  # noqa: B023
        if lives:
            assert stores[0]["k"] == 0
        stores[0].put("k", lives, timeout=PATIENCE_S)
        for each in stores:
            each.close()


def test_a_server_alone_says_why_it_cannot_be_read(new: Make) -> None:
    chain = new_configuration("ab", durable=False)
    with new().attach_master("s", chain=chain, server="a") as store:
        until(lambda: store.chain().why != "")  # type: ignore[union-attr]

        def says() -> bool:
            with pytest.raises(StaleData) as found:
                store.get("k")
            return "b still missing" in str(found.value)

        until(says)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "say which server of the chain this is"),
        ({"server": "x"}, "has no server 'x'"),
        ({"server": "a", "backend": "sqlite", "path": "s.db"}, "no backend sqlite"),
        ({"server": "a", "path": "s.db"}, "takes no path"),
        ({"server": "a", "partner": "127.0.0.1:1", "role": "primary"}, "no pair of masters: attach three on a chain"),
        ({"server": "a"}, "needs a directory"),
    ],
)
def test_what_does_not_go_with_a_chain_is_refused(new: Make, options: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        new().attach_master("s", chain=new_configuration("ab"), **options)


def test_a_fixed_chain_is_refused(new: Make, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="data stores on a chain need servers that agree"):
        new().attach_master("s", chain=new_configuration("ab", fixed=True), server="a", directory=tmp_path)


def test_a_server_without_a_chain_is_refused(new: Make, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="give its configuration"):
        new().attach_master("s", server="a")
    with pytest.raises(UsageError, match="no pair of masters: attach three on a chain"):
        new().attach_master("s", partner="127.0.0.1:1", role="primary")
    with pytest.raises(ConfigError, match="cannot be read"):
        new().attach_master("s", chain=tmp_path / "none.toml", server="a")
