"""``chappe chain``: servers as processes of their own, what is shown of them, and the demo."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.ports import free_ports
from tests.waiting import PATIENCE_S, until

from chappe import Chain


def chappe(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "chappe", "chain", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False, **options)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    first = free_ports(3)
    path = tmp_path / "chain.toml"
    servers = "".join(f'{name} = "127.0.0.1:{first + place}"\n' for place, name in enumerate("abc"))
    path.write_text(f'name = "orders"\n[servers]\n{servers}')
    return path


class Served:
    """Servers that run."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.processes: dict[str, subprocess.Popen[str]] = {}

    def start(self, name: str) -> dict[str, Any]:
        command = [sys.executable, "-m", "chappe", "chain", "serve", str(self.file), "--name", name, "--json"]
        made = self.processes[name] = subprocess.Popen(
            [*command, "--directory", str(self.file.parent / name)], stdout=subprocess.PIPE, text=True
        )
        assert made.stdout is not None
        found: dict[str, Any] = json.loads(made.stdout.readline())
        return found


@pytest.fixture
def served(file: Path) -> Any:
    made = Served(file)
    yield made
    for each in made.processes.values():
        each.terminate()
    for each in made.processes.values():
        each.communicate(timeout=PATIENCE_S)


def test_servers_are_shown_taken_out_and_taken_in(served: Served, file: Path) -> None:
    for name in "abc":
        assert served.start(name)["name"] == name
    with Chain(file) as chain:
        assert chain.call(b'["put", "k", 1]', timeout=PATIENCE_S).result == b"null"

        shown = chappe("status", file)
        assert shown.returncode == 0, shown.stderr
        assert [line.split()[:2] for line in shown.stdout.splitlines()[1:]] == [
            ["a", "head"],
            ["b", "middle"],
            ["c", "tail"],
        ]
        assert chappe("remove", file, "b").stderr == (
            f"b is out of the chain; `chappe chain add {file} b` has it come back\n"
        )
        facts = json.loads(chappe("status", file, "--json").stdout)
        assert facts["a"]["out"] == ["b"]
        assert facts["a"]["members"] == ["a", "c"]
        assert chappe("add", file, "b").stderr == "b is in the chain\n"
        served.processes["a"].kill()
        until(lambda: json.loads(chappe("status", file, "--json").stdout)["c"]["members"] == ["c", "b"])
        shown = chappe("status", file)
        assert ["a", "silent"] in [line.split()[:2] for line in shown.stdout.splitlines()]
        assert chain.read(b'["get", "k"]', timeout=PATIENCE_S) == b"1"


def test_a_server_ends_in_good_order(served: Served) -> None:
    served.start("a")
    served.processes["a"].terminate()

    assert served.processes["a"].wait(PATIENCE_S) == 0


@pytest.mark.parametrize(
    ("text", "arguments", "says"),
    [
        (None, ["status", "FILE"], "FILE cannot be read: no such file or directory"),
        ("[servers]\n", ["serve", "FILE", "--name", "a"], "name at least one"),
        (
            "[servers]\na = '127.0.0.1:1'\n",
            ["serve", "FILE", "--name", "b"],
            "the chain chain has no server 'b', but a",
        ),
        (
            "machine = 'x'\n[servers]\na = '127.0.0.1:PORT'\n",
            ["serve", "FILE", "--name", "a"],
            "machine 'x' is not known",
        ),
        (
            "machine = 'nowhere:X'\n[servers]\na = '127.0.0.1:PORT'\n",
            ["serve", "FILE", "--name", "a"],
            "there is no module nowhere",
        ),
        (
            "machine = 'json:X'\n[servers]\na = '127.0.0.1:PORT'\n",
            ["serve", "FILE", "--name", "a"],
            "the module json has no X",
        ),
        (
            "machine = 'json:JSONEncoder'\n[servers]\na = '127.0.0.1:PORT'\n",
            ["serve", "FILE", "--name", "a"],
            "it lacks apply, read, snapshot, restore",
        ),
        ("[servers]\na = '127.0.0.1:PORT'\n", ["remove", "FILE", "x"], "no server 'x'"),
        ("[servers]\na = '10.1.1.1:7001'\n", ["serve", "FILE", "--name", "a"], "10.1.1.1 is not this machine"),
    ],
)
def test_what_cannot_be_is_said_in_a_line(tmp_path: Path, text: str | None, arguments: list[str], says: str) -> None:
    path = tmp_path / "chain.toml"
    if text is not None:
        path.write_text(text.replace("PORT", str(free_ports())))
    place = ["--directory", str(tmp_path / "home")] if arguments[0] == "serve" else []

    found = chappe(*(str(path) if each == "FILE" else each for each in arguments), *place)

    assert found.returncode == 2
    assert says.replace("FILE", str(path)) in found.stderr
    assert len(found.stderr.splitlines()) == 1


def test_without_servers_status_fails_and_says_where_it_looked(file: Path) -> None:
    found = chappe("status", file, "--timeout", "0.1")

    assert found.returncode == 1
    assert "no server of the chain orders answers at 127.0.0.1:" in found.stderr
    assert [line.split()[1] for line in found.stdout.splitlines()[1:]] == ["silent"] * 3


def test_a_machine_of_ones_own_is_served(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "class Counter:\n"
        "    total = 0\n"
        "    def apply(self, command):\n        self.total += int(command)\n        return b'%d' % self.total\n"
        "    def read(self, query):\n        return b'%d' % self.total\n"
        "    def snapshot(self):\n        return b'%d' % self.total\n"
        "    def restore(self, state):\n        self.total = int(state)\n"
    )
    path = tmp_path / "chain.toml"
    path.write_text(f"machine = 'mine:Counter'\n[servers]\na = '127.0.0.1:{free_ports()}'\n")
    command = [sys.executable, "-m", "chappe", "chain", "serve", str(path), "--name", "a", "--directory", "home"]
    with subprocess.Popen(command, cwd=tmp_path) as process, Chain(path) as chain:
        try:
            assert chain.call(b"2", timeout=PATIENCE_S).result == b"2"
            assert chain.call(b"3", timeout=PATIENCE_S).result == b"5"
        finally:
            process.terminate()


def test_the_demo_kills_its_head_and_loses_nothing() -> None:
    found = chappe("demo", "--seconds", "4")

    assert found.returncode == 0, found.stderr
    assert "killed a, the head, with -9: b > c" in found.stderr
    assert "has every one of them once" in found.stderr
