"""Values of a shared map that end with a process: killed, closed, stopped for a while."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.api.sealed_net import make_home
from tests.ports import free_address
from tests.waiting import PATIENCE_S, until

from chappe import AsyncSharedMap, Keys, MapServer, SharedMap
from chappe.errors import UsageError
from chappe.system import time

OWN = """
import sys
from chappe import SharedMap
with SharedMap(*sys.argv[2:], values=str) as shared:
    shared.set("/here/" + sys.argv[1], "here", session=True)
    shared.set("/stays/" + sys.argv[1], "stays")
    print("here", flush=True)
    sys.stdin.readline()
"""


class Owner:
    """A process that has a session value."""

    def __init__(self, name: str, *servers: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", OWN, name, *servers], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "here\n"

    def close(self) -> None:
        self.process.communicate("\n")

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def server() -> Iterator[MapServer]:
    with MapServer("127.0.0.1:0") as made:
        yield made


def gone(shared: SharedMap[str], key: str) -> bool:
    return shared.wait_for(key, until=lambda value: value is None, timeout=PATIENCE_S) is None


@pytest.mark.process
def test_the_value_of_a_process_that_is_killed_or_closed_ends_and_no_other(server: MapServer) -> None:
    with SharedMap(server.address, values=str, timeout=PATIENCE_S) as shared:
        killed, closed, lives = (Owner(each, server.address) for each in ("killed", "closed", "lives"))
        until(lambda: len(shared) == 6)
        killed.kill()
        began = time.monotonic()
        closed.close()
        assert gone(shared, "/here/closed")
        assert "/here/killed" in shared or time.monotonic() > began + 5  # a busy machine
        assert gone(shared, "/here/killed")
        assert set(shared) == {"/here/lives", "/stays/lives", "/stays/killed", "/stays/closed"}
        lives.close()


@pytest.mark.process
def test_a_process_that_is_stopped_for_a_moment_keeps_its_value(server: MapServer) -> None:
    with SharedMap(server.address, values=str, timeout=PATIENCE_S) as shared, shared.watch() as changes:
        owner = Owner("me", server.address)
        owner.process.send_signal(signal.SIGSTOP)
        shared.set("/while/it/stands", "still")
        owner.process.send_signal(signal.SIGCONT)
        owner.close()
        assert gone(shared, "/here/me")
        kinds = [(each.kind, each.key) for each in changes.get_many(10, timeout=0)]
        assert kinds == [
            ("insert", "/here/me"), ("insert", "/stays/me"), ("insert", "/while/it/stands"), ("erase", "/here/me"),
        ]  # fmt: skip


@pytest.mark.process
def test_the_value_of_a_killed_process_ends_at_the_server_that_took_over() -> None:
    first, second = free_address(4), free_address(4)
    with MapServer(second, partner=first, role="backup") as backup:
        primary = MapServer(first, partner=second, role="primary")
        with SharedMap(first, second, values=str, timeout=PATIENCE_S) as shared:
            killed, lives = (Owner(each, first, second) for each in ("killed", "lives"))
            until(lambda: len(shared) == 4)
            killed.kill()
            primary.close()
            until(lambda: backup.status().active)
            assert gone(shared, "/here/killed")
            assert "/here/lives" in shared
            lives.close()
            assert gone(shared, "/here/lives")


def test_a_sealed_value_ends_too_and_only_its_mark_is_plain(tmp_path: Path) -> None:
    home = make_home(tmp_path / "keys")
    options: Any = {"name": "patients", "values": str, "timeout": PATIENCE_S}
    with (
        MapServer("127.0.0.1:0", name="patients", security=Keys(home / "hub")) as server,
        SharedMap(server.address, security=Keys(home / "ann"), **options) as reader,
    ):
        with SharedMap(server.address, security=Keys(home / "ann"), **options) as owner:
            assert owner.compare_and_set("/lock", None, "mine", session=True)
            owner.set("/here", "me", session=True, properties={"why": "because"})
            assert reader.wait_for("/here", timeout=PATIENCE_S) == "me"
            assert reader.properties("/here") == {"why": "because"}
        assert gone(reader, "/here")
        assert gone(reader, "/lock")


def test_asyncio_has_them_and_nobody_writes_the_mark(server: MapServer) -> None:
    async def main() -> None:
        async with AsyncSharedMap(server.address, values=str) as reader:
            async with AsyncSharedMap(server.address, values=str) as owner:
                await owner.set("/here", "me", session=True)
                assert await owner.step({"/a": "1", "/b": "1"}, session=True)
                await reader.wait_for("/b", timeout=PATIENCE_S)
                assert reader.properties("/here") == {}
                with pytest.raises(UsageError, match="session=True"):
                    await owner.set("/here", "me", properties={"chappe-session": "1"})
            for key in ("/here", "/a", "/b"):
                assert await reader.wait_for(key, until=lambda value: value is None, timeout=PATIENCE_S) is None

    asyncio.run(main())
