"""``chappe copy`` as a process: it is killed on its way, follows, and says what is wrong."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.cli.conftest import Shell
from tests.waiting import PATIENCE_S, until

from chappe import Consumer, Producer, Store, Tower
from chappe.log.batch import Record

pytestmark = pytest.mark.process
COUNT = 100_000


class Site:
    """A tower and a store in this process."""

    def __init__(self, directory: Path, ending: ExitStack) -> None:
        self.tower = ending.enter_context(Tower("127.0.0.1:0")).address
        self.store = ending.enter_context(Store(directory, tower=self.tower))

    def write(self, *values: str) -> None:
        with Producer("orders", tower=self.tower) as producer:
            producer.send_many(values)

    def read(self) -> list[Record]:
        with Consumer("orders", tower=self.tower) as consumer:
            return sorted(consumer.to_end(PATIENCE_S), key=lambda each: (each.partition, each.offset))


@pytest.fixture
def sites(tmp_path: Path) -> Iterator[tuple[Site, Site]]:
    with ExitStack() as ending:
        yield Site(tmp_path / "north", ending), Site(tmp_path / "south", ending)


def test_killed_at_any_moment_it_goes_on_and_following_it_ends_well(shell: Shell, sites: tuple[Site, Site]) -> None:
    north, south = sites
    for part in range(2):
        north.write(*(f"{part} {n} {'x' * 100}" for n in range(COUNT)))
    command = ("copy", "orders", "--tower", north.tower, "--to-tower", south.tower, "--json")
    for goal in (1, COUNT // 2, COUNT):
        process = shell.start(*command)
        until(lambda goal=goal: south.store.status().written_records >= goal)  # type: ignore[misc]
        process.kill()
        process.wait()
    done = shell.run(*command)
    facts = json.loads(done.stdout)
    assert (done.returncode, facts["gone"], facts["sent"] == facts["stored"]) == (0, 0, True)
    assert north.read() == south.read()
    assert len(south.read()) == 2 * COUNT

    process = shell.start(*command, "--follow")
    north.write("late")
    until(lambda: south.store.status().written_records == 2 * COUNT + 1)
    code, out, err = shell.stop(process, signal.SIGINT)
    assert (code, json.loads(out)["sent"], err) == (0, 1, "")


def test_wrong_places_are_refused_in_a_sentence(shell: Shell, sites: tuple[Site, Site]) -> None:
    north, south = sites
    north.write("a")
    there = ("copy", "orders", "--tower", north.tower)
    for arguments, code, text in (
        (there, 2, "say where to: --to-tower"),
        ((*there, "--to-tower", north.tower), 2, "the stores of both places are the same"),
        ((*there, "--to-tower", "127.0.0.1:1"), 1, "no tower answers at 127.0.0.1:1"),
        ((*there, "--to-tower", south.tower, "--to-forwarders", "127.0.0.1:1"), 2, "give only one of"),
        ((*there, "ord*", "--to", "copies"), 2, "one name for several topics"),
        ((*there[:1], "order", *there[2:], "--to-tower", south.tower), 1, "has a topic 'order'"),
    ):
        done = shell.run(*arguments)
        err = done.stderr.decode()
        assert (done.returncode, text in err, err.count("\n")) == (code, True, 1), err
