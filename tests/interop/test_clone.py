"""Shared maps with the Guide's C programs: our server with their clients, their servers with our client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.conftest import Shell
from tests.cli.conftest import shell as shell
from tests.interop.clone_originals import FIRST, SECOND, VARIABLE, CloneProgram, find_programs, ports
from tests.waiting import PATIENCE_S, until

from chappe import MapServer, SharedMap
from chappe.errors import InvalidOperation, WriteUnknown

pytestmark = pytest.mark.process
KEYS = 5_000
FEW = 500  # of a snapshot that their queues hold: what is more they drop


@pytest.fixture
def clone() -> Iterator[Path]:
    found = find_programs()
    if found is None:
        pytest.skip(f"the Guide's C programs are not here: set {VARIABLE} to their directory to run these tests")
    with ports():
        yield found


def signed(sequence: int) -> int:
    """As they print it."""
    low = sequence & 0xFFFFFFFF
    return low - (1 << 32) if low >> 31 else low


def write(ours: SharedMap[bytes], key: str) -> None:
    """Write until it is confirmed: a new server may publish it before our subscription has come back to it."""

    def written() -> bool:
        try:
            ours[key] = b"x"
        except WriteUnknown:
            return False
        return True

    until(written)


# -- our server ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [5, 6])
def test_their_client_writes_to_our_server_and_its_values_expire(clone: Path, model: int) -> None:
    with MapServer(FIRST, model=5 if model == 5 else 6) as server, SharedMap(FIRST) as ours:
        with ours.watch(prefix="/client/") as changes, CloneProgram(clone, f"clonecli{model}"):
            change = changes.get(PATIENCE_S)
            while change is None or change.kind != "erase":  # it gives most of them a time to live, up to 29 s
                assert change is None or change.kind == "update" or change.value is not None
                change = changes.get(PATIENCE_S)
            assert change.before is not None
            assert change.before.isdigit()
        assert server.status().malformed == 0


def test_their_client_takes_our_snapshot_whole_and_every_update(clone: Path) -> None:
    with MapServer(FIRST) as server, SharedMap(FIRST) as ours:
        ours.set_many((f"/client/{n}", b"%d" % n) for n in range(KEYS))
        at = server.status().sequence
        with CloneProgram(clone, "clonecli5") as theirs:
            theirs.expect("received snapshot")
            assert theirs.lines[0] == f"I: received snapshot={signed(at)}"
            ours["/client/a"] = b"1"
            del ours["/client/a"]
            theirs.expect("received update", 3)
            told = [int(line.partition("=")[2]) for line in theirs.lines[1:]]
            assert told == [signed(at + n) for n in range(1, len(told) + 1)]


# -- their server -------------------------------------------------------------------------------------------


def test_our_client_reads_and_writes_at_their_server(clone: Path) -> None:
    with CloneProgram(clone, "clonesrv5"), SharedMap(FIRST) as ours:
        ours["/a"] = b"1"
        ours.set("/ttl", b"2", ttl=1.0)
        ours.set("/c/d", b"\x00\xff", properties={"unit": "EUR"})
        ours.set_many((f"/n/{n % FEW}", b"x") for n in range(KEYS))  # more than their queues hold at once
        del ours["/a"]
        with SharedMap(FIRST, subtree="/c/") as part:
            assert part.snapshot() == {"/c/d": b"\x00\xff"}
            assert part.properties("/c/d") == {"unit": "EUR"}
            ours["/c/e"] = b"3"
            ours["/d"] = b"4"
            assert part.wait_for("/c/e", timeout=PATIENCE_S) == b"3"
            assert set(part) == {"/c/d", "/c/e"}
        assert ours.wait_for("/ttl", until=lambda value: value is None, timeout=PATIENCE_S) is None
        assert len(ours) == FEW + 3
        with pytest.raises(InvalidOperation, match="is not one of chappe"):
            ours.compare_and_set("/a", None, b"1")


def test_a_write_that_their_server_did_not_get_is_unknown_and_a_new_one_is_followed(clone: Path) -> None:
    with CloneProgram(clone, "clonesrv5") as theirs, SharedMap(FIRST) as ours:
        ours["/a"] = b"1"
        theirs.kill()
        with pytest.raises(WriteUnknown):
            ours.set("/b", b"2", timeout=PATIENCE_S)
        assert ours["/a"] == b"1"  # can be read on
        with CloneProgram(clone, "clonesrv5"):
            until(lambda: not len(ours), "the map is that of the new server")
            until(lambda: ours.state == "active")
            write(ours, "/c")


def test_a_server_of_ours_takes_the_place_of_theirs_and_back(clone: Path) -> None:
    with CloneProgram(clone, "clonesrv5") as theirs, SharedMap(FIRST) as ours:
        ours["/a"] = b"1"
        theirs.kill()
        with MapServer(FIRST), SharedMap(FIRST) as other:
            other["/b"] = b"2"
            until(lambda: ours.snapshot() == {"/b": b"2"}, "the map is that of our server")
            assert ours.step({"/b": None, "/c": b"3"}, timeout=PATIENCE_S)
        with CloneProgram(clone, "clonesrv5"):
            until(lambda: not len(ours), "the map is that of their server")
            until(lambda: ours.state == "active")
            write(ours, "/d")


def test_our_client_goes_with_their_pair_to_the_backup(clone: Path) -> None:
    with CloneProgram(clone, "clonesrv6", "-p") as primary, CloneProgram(clone, "clonesrv6", "-b") as backup:
        primary.expect("ready as active")
        backup.expect("ready as passive")
        with SharedMap(FIRST, SECOND, timeout=PATIENCE_S) as ours:
            assert ours.server == FIRST
            ours["/a"] = b"1"
            ours["/b"] = b"2"  # their backup takes a ttl for a moment, which has passed
            backup.expect("received update=2")
            primary.kill()
            until(lambda: ours.server == SECOND, "the backup is followed")
            assert ours.snapshot() == {"/a": b"1", "/b": b"2"}
            write(ours, "/c")


def test_our_commands_work_at_their_server(clone: Path, shell: Shell) -> None:
    shell.env["CHAPPE_MAP_SERVERS"] = FIRST
    with CloneProgram(clone, "clonesrv5"):
        lines = b"".join(b'{"key":"/n/%d","value":"%d"}\n' % (n, n) for n in range(FEW))
        assert shell.run("map", "load", stdin=lines).returncode == 0
        assert shell.run("map", "get", "/n/7").stdout == b"7\n"
        assert shell.run("map", "delete", "/n/7").returncode == 0
        found = [json.loads(line)["key"] for line in shell.run("map", "dump").stdout.splitlines()]
        assert len(found) == len(set(found)) == FEW - 1
        done = shell.run("map", "set", "/n/8", "1", "--unique")
        assert done.returncode == 1
        assert b"is not one of chappe" in done.stderr
