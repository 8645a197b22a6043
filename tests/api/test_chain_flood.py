"""A chain of processes is flooded with sessions, from one address and from many; a client that was idle comes back."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest
import zmq
from tests.api.chain_soak import NAMES, Servers
from tests.waiting import PATIENCE_S, until

from chappe import Chain, ChainConfiguration
from chappe.limits import CHAIN_LIMITS
from chappe.replication.chain.messages import Do as Command
from chappe.replication.chain.messages import Done, Listen, Open, Opened, Request, encode
from chappe.replication.chain.origins import FEW
from chappe.replication.chain.wire import REQUEST, encode_header, pack, unpack_answers

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(sys.platform != "linux", reason="the loopback interface has one address there"),
]
AGAIN_MS: Final = 1_000  # requests of which no answer came are repeated
ADDRESSES: Final = 1_400
EACH: Final = FEW  # sessions of each; so many that were never used are let be
assert ADDRESSES * EACH > CHAIN_LIMITS.sessions_max > ADDRESSES


class Rogue:
    """Opens sessions from an address, and perhaps uses each once."""

    def __init__(
        self, address: str, configuration: ChainConfiguration, context: zmq.Context[zmq.Socket[bytes]]
    ) -> None:
        self.sessions: dict[bytes, int] = {}
        self.used: set[int] = set()
        self._header = encode_header(REQUEST, 0, configuration.chain)
        self._servers = [context.socket(zmq.DEALER) for _ in configuration.addresses]
        for sock, server in zip(self._servers, configuration.addresses, strict=True):
            sock.setsockopt(zmq.LINGER, 0)
            sock.connect(f"tcp://{address}:0;{server.host}:{server.port}")
        self._poller = zmq.Poller()
        for sock in self._servers:
            self._poller.register(sock, zmq.POLLIN)

    def open(self, nonces: Sequence[bytes]) -> None:
        """Open a session with each of these."""
        while missing := [each for each in nonces if each not in self.sessions]:
            self._ask([Open(each) for each in missing], [Listen(0, each) for each in missing])

    def use(self) -> None:
        """Have one command done in each."""
        while missing := [each for each in self.sessions.values() if each not in self.used]:
            self._ask([Command(each, 1, 0, b"x") for each in missing], [Listen(each, b"-") for each in missing])

    def _ask(self, requests: Sequence[Request], listens: Sequence[Request]) -> None:
        """Ask the head, and have the tail answer; take what comes until nothing has come for a while."""
        head, *_, tail = self._servers
        for sock, messages in ((tail, listens), (head, requests)):
            for frame in pack([encode(each) for each in messages]):
                sock.send_multipart([self._header, frame])
        answered = 0
        while answered < len(requests) and (ready := self._poller.poll(AGAIN_MS)):
            for sock, _ in ready:
                for each in unpack_answers(sock.recv_multipart()[1]):
                    if isinstance(each, Opened):
                        self.sessions[each.nonce] = each.session
                        answered += 1
                    elif isinstance(each, Done):
                        self.used.add(each.session)
                        answered += 1

    def close(self) -> None:
        """Go."""
        for each in self._servers:
            each.close()


def flood(configuration: ChainConfiguration, addresses: Sequence[str], *, use: bool) -> None:
    """Open more sessions than a chain remembers, and use each at once, if at all."""
    with zmq.Context() as context:
        rogue: Rogue | None = None
        for number in range(ADDRESSES):
            if number < len(addresses):
                if rogue is not None:
                    rogue.close()
                rogue = Rogue(addresses[number], configuration, context)
            assert rogue is not None
            rogue.open([b"%d-%d" % (number, each) for each in range(EACH)])
            if use:
                rogue.use()
        assert rogue is not None
        rogue.close()


@pytest.fixture
def configuration(tmp_path: Path) -> Iterator[ChainConfiguration]:
    servers = Servers(tmp_path)
    for name in NAMES:
        servers.start(name)
    yield ChainConfiguration.load(servers.file)
    servers.close()


@pytest.mark.parametrize("addresses", [1, ADDRESSES])
@pytest.mark.parametrize("use", [False, True])
def test_a_client_comes_back_to_its_session_after_ten_thousand_of_others(
    addresses: int, use: bool, configuration: ChainConfiguration
) -> None:
    with Chain(configuration, security="plain") as chain:
        chain.call(b"first", timeout=PATIENCE_S)
        until(lambda: members(chain) == NAMES)
        flood(configuration, [f"127.0.{1 + place // 250}.{1 + place % 250}" for place in range(addresses)], use=use)

        done = int(chain.call(b"second", timeout=PATIENCE_S).result)
        assert done > CHAIN_LIMITS.sessions_max if use else done == 2
        seen = chain.status(timeout=PATIENCE_S)["a"]
        assert seen is not None
        assert seen.sessions == CHAIN_LIMITS.sessions_max


def members(chain: Chain) -> tuple[str, ...]:
    seen = chain.status(timeout=PATIENCE_S)["a"]
    return () if seen is None else seen.members
