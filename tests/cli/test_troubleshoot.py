"""The page on troubleshooting: what it says that programs print is what they print, where its symptoms are provoked."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final
from uuid import uuid4

import pytest
from tests.cli.conftest import Shell, shell_in
from tests.test_docs import SPOKEN, pattern

from chappe import Endpoint, Producer, Store, Tower
from chappe.errors import ChappeError

pytestmark = [pytest.mark.process]

PAGE: Final = Path(__file__).parents[2] / "docs" / "how-to" / "troubleshoot.md"
NOBODY: Final = "127.0.0.1:1"


class System:
    """A tower with a store, a tower without one, an endpoint, a shell beside them; ``orders`` has a record."""

    def __init__(self, shell: Shell, stack: ExitStack) -> None:
        self.directory = shell.directory
        self.lone = stack.enter_context(Tower("127.0.0.1:0")).address
        self.tower = stack.enter_context(Tower("127.0.0.1:0")).address
        self.store = stack.enter_context(Store(self.directory / "kept", tower=self.tower))
        self.endpoint = stack.enter_context(Endpoint())
        shell.env["CHAPPE_TOWER"] = self.tower
        self._shell = shell
        self.says("produce", "orders", "--identity", "mine", stdin=b"{}\n")
        self.data = Path(shell.env["XDG_DATA_HOME"]) / "chappe"

    def says(self, *arguments: str, stdin: bytes = b"") -> str:
        done = self._shell.run(*arguments, stdin=stdin)
        return (done.stdout + done.stderr).decode()

    def produces(self, *arguments: str) -> str:
        return self.says("produce", "orders", *arguments, stdin=b"{}\n")

    def works(self, program: str) -> str:
        return self.says("consume", "orders", "--until-end", "--identity", "worker", "--exec", program)

    def beside_the_same_producer(self) -> str:
        with Producer("orders", tower=self.tower, identity="mine", directory=self.data):
            return self.produces("--identity", "mine")

    def flushes(self) -> str:
        def call() -> None:
            with Producer("orders", tower=self.lone) as producer:
                producer.send("nobody keeps it")
                producer.flush(timeout=0.01)

        return raised(call)

    def peers_with_a_silent_one(self) -> str:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            return raised(lambda: self.endpoint.peer(*silent.getsockname(), timeout=0.01))

    def runs_at(self, master: str) -> str:
        pytest.importorskip("pyspark")
        (self.directory / "query.toml").write_text(
            'sql = "SELECT * FROM orders"\n[inputs.orders]\ntopic = "orders"\n[output]\nkind = "console"\n'
        )
        return self.says("pipeline", "run", "query.toml", "--master", master)


def raised(call: Callable[[], object]) -> str:
    with pytest.raises(ChappeError) as found:
        call()
    return str(found.value)


def open_to_others(system: System) -> str:
    system.says("keys", "init", "keys", "--name", "hub", "--role", "server")
    (system.directory / "keys" / "hub.key").chmod(0o644)
    return system.produces("--as", "keys/hub")


def written_by_a_newer_one(system: System) -> str:
    with Store(system.directory / "newer", tower=system.lone):
        pass
    for path in (system.directory / "newer").glob("chappe-store*.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 99}))
    return system.says("store", "newer", "--tower", system.lone)


# Sentences of the page by their beginnings.
PROVOKED: Final[dict[str, Callable[[System], str]]] = {
    "no tower answers at": lambda it: it.says("topics", "--tower", NOBODY),
    "the tower at … knows no store": lambda it: it.says("topics", "--tower", it.lone),
    "… records of topic … are not stored after": System.flushes,
    "no peering with … yet": System.peers_with_a_silent_one,
    "no master of store": lambda it: raised(lambda: it.endpoint.attach_clone("hosts", timeout=0.01)),
    "another … uses the identity in": System.beside_the_same_producer,
    "the identity in … belongs to": lambda it: it.says("produce", "others", "--identity", "mine", stdin=b"{}\n"),
    "the store in … is used by": lambda it: it.says("store", "kept"),
    "port … on … is in use": lambda it: it.says("tower", "--listen", ":".join(it.tower.split(":")[:2])),
    "… holds other files and no store": lambda it: it.says("store", "."),
    "… written by a newer chappe": written_by_a_newer_one,
    "… is not this machine: give the": lambda it: raised(lambda: Tower("0.0.0.0:0")),
    "… is not this machine: give --as": lambda it: it.says("tower", "--listen", "0.0.0.0:0"),
    "… is a private key that others can read": open_to_others,
    "offset … is not there yet": lambda it: it.says("consume", "orders", "--from", "99"),
    "the store does not have a topic": lambda it: it.says("consume", "nobody", "--until-end"),
    "… workers in a row did not get done with": lambda it: it.works("false"),
    "worker … cannot go on": lambda it: it.works("echo hello"),
    "cannot peer with": lambda it: it.says("publish", "t", "1", "--peer", NOBODY),
    "there is no way to endpoint": lambda it: raised(lambda: it.endpoint.publish("t", 1, to=uuid4())),
    "no Spark master answers at": lambda it: it.runs_at(f"spark://{NOBODY}"),
    "no Spark Connect server answers at": lambda it: it.runs_at(f"sc://{NOBODY}"),
}


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    with ExitStack() as stack:
        shell = stack.enter_context(shell_in(tmp_path_factory.mktemp("troubleshoot")))
        yield System(shell, stack)


def on_the_page(beginning: str) -> str:
    sentences = {" ".join(each.split()) for each in SPOKEN.findall(PAGE.read_text())}
    (found,) = (each for each in sentences if each.startswith(beginning))
    return found


@pytest.mark.parametrize("beginning", PROVOKED)
def test_a_symptom_prints_what_the_page_says(system: System, beginning: str) -> None:
    said = " ".join(PROVOKED[beginning](system).split())
    assert pattern(on_the_page(beginning)).search(said), said


def test_the_commands_of_the_page_run(system: System) -> None:
    typed = re.findall(r"^\$ chappe (.*)", PAGE.read_text(), re.MULTILINE)
    assert len(typed) >= 2
    for line in typed:
        assert system.says(*line.split())
