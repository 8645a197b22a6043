"""Pairs of map servers of which one is the Guide's C program: failing over and back, with our client and with theirs.

Without terms nothing more is promised there than by two of theirs: what the other had got is there.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.interop.clone_originals import FIRST, SECOND, VARIABLE, CloneProgram, find_programs, ports
from tests.waiting import PATIENCE_S, until

from chappe import MapServer, SharedMap
from chappe.errors import WriteUnknown

pytestmark = pytest.mark.process
LINKS = ("*:5003", "localhost:5004")  # of a primary; a backup has them the other way round


@pytest.fixture
def clone() -> Iterator[Path]:
    found = find_programs()
    if found is None:
        pytest.skip(f"the Guide's C programs are not here: set {VARIABLE} to their directory to run these tests")
    with ports():
        yield found


def primary() -> MapServer:
    return MapServer(FIRST, partner=SECOND, role="primary", link=LINKS)


def backup() -> MapServer:
    return MapServer(SECOND, partner=FIRST, role="backup", link=("*:5004", "localhost:5003"))


def is_passive(server: MapServer) -> None:
    """It knows that the other one serves."""

    def found() -> bool:
        pair = server.status().pair
        return pair is not None and pair.state == "passive"

    until(found, lambda: f"it is passive: {server.status()}")


def write(ours: SharedMap[bytes], key: str) -> None:
    """Write until it is confirmed: where their server takes it, nobody may know at first."""

    def written() -> bool:
        try:
            ours[key] = b"x"
        except WriteUnknown:
            return False
        return True

    until(written)


def joined(theirs: CloneProgram) -> None:
    """Their passive server has our copy, and hears what we publish: what comes before it is in the copy."""
    theirs.expect("ready as passive")
    theirs.expect("received snapshot")


def followed(ours: SharedMap[bytes], server: str) -> None:
    until(lambda: ours.server == server, lambda: f"{server} is followed, and not {ours.server}")


def test_our_primary_and_their_backup_take_over_from_each_other(clone: Path) -> None:
    with CloneProgram(clone, "clonesrv6", "-b") as theirs, primary() as server:
        joined(theirs)
        with SharedMap(FIRST, SECOND, timeout=PATIENCE_S) as ours:
            ours["/a"] = b"1"
            theirs.expect("received update")
            server.close()
            followed(ours, SECOND)  # it voted
            assert ours.snapshot() == {"/a": b"1"}
            write(ours, "/b")
            with primary() as again:
                is_passive(again)
                until(lambda: again.status().keys == 2, "it has what theirs has")
                write(ours, "/c")
                until(lambda: again.status().keys == 3)
                theirs.kill()
                followed(ours, FIRST)
                assert set(ours.snapshot()) == {"/a", "/b", "/c"}
                with CloneProgram(clone, "clonesrv6", "-b") as last:
                    joined(last)
                    ours["/d"] = b"x"
                    last.expect("received update")


def test_their_primary_and_our_backup_take_over_from_each_other(clone: Path) -> None:
    with CloneProgram(clone, "clonesrv6", "-p") as theirs, backup() as server:
        is_passive(server)
        with SharedMap(FIRST, SECOND, timeout=PATIENCE_S) as ours:
            write(ours, "/a")
            until(lambda: server.status().keys == 1, "our backup has it")
            theirs.kill()
            followed(ours, SECOND)
            assert set(ours.snapshot()) == {"/a"}
            ours["/b"] = b"x"
            with CloneProgram(clone, "clonesrv6", "-p") as again:
                joined(again)
                ours["/c"] = b"x"
                again.expect("received update")
                server.close()
                followed(ours, FIRST)
                assert "/c" in ours.snapshot()


def test_their_client_goes_with_a_pair_of_both_kinds(clone: Path) -> None:
    with CloneProgram(clone, "clonesrv6", "-b") as theirs, primary() as server:
        joined(theirs)
        with CloneProgram(clone, "clonecli6") as client:
            until(lambda: server.status().keys > 0, "their client writes to our server")
            theirs.expect("received update")
            server.close()
            theirs.expect("ready as active")
            before = len(client.lines)
            until(lambda: len(client.lines) > before, "their client has gone on")
            with primary() as again:
                is_passive(again)
                until(lambda: again.status().keys, "it has what theirs has")
                copied = again.status().sequence
                until(lambda: again.status().sequence > copied, "our server hears what their client writes to theirs")
                theirs.kill()
                until(lambda: again.status().active, "our server serves")
                at = again.status().sequence
                until(lambda: again.status().sequence > at, "their client writes to our server")
