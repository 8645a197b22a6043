"""``chappe store --chain`` and ``chappe produce --chain``: ordered topics on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.conftest import Shell
from tests.ports import free_ports

pytestmark = pytest.mark.process


def chain_file(directory: Path, *, durable: bool = True) -> str:
    first = free_ports(2)
    path = directory / "chain.toml"
    servers = "".join(f'{name} = "127.0.0.1:{port}"\n' for port, name in enumerate("ab", first))
    path.write_text(f"{'' if durable else 'durable = false' + chr(10)}[servers]\n{servers}")
    return str(path)


def test_two_programs_write_one_topic_that_others_read_as_any(shell: Shell, tmp_path: Path) -> None:
    shell.up()
    file = chain_file(tmp_path)
    stores = [
        shell.start("store", str(tmp_path / name), "--chain", file, "--name", name, "--json") for name in ("a", "b")
    ]
    started = [json.loads(each.stdout.readline()) for each in stores if each.stdout is not None]
    assert [each["name"] for each in started] == ["a", "b"]

    lines = [b"".join(b"%s %d\n" % (name, number) for number in range(100)) for name in (b"x", b"y")]
    said = [
        json.loads(shell.run("produce", "t", "--chain", file, "--partitions", "2", "--json", stdin=each).stdout)
        for each in lines
    ]
    assert [(each["records"], each["stored"]) for each in said] == [(100, 100)] * 2
    partitions = said[0]["partition"].split(", ")
    assert said[1]["partition"].split(", ") == partitions

    read = shell.run("consume", "t", "--until-end", "--json").stdout.splitlines()
    records = [json.loads(line) for line in read]
    assert sorted(each["value"] for each in records) == sorted(b"".join(lines).decode().splitlines())
    assert {each["partition"] for each in records} <= set(partitions)
    (row,) = [json.loads(line) for line in shell.run("topics", "t", "--json").stdout.splitlines()]
    assert (row["records"], row["partitions"]) == (200, len({each["partition"] for each in records}))


def test_what_does_not_go_together_is_said(shell: Shell, tmp_path: Path) -> None:
    file = chain_file(tmp_path, durable=False)
    for arguments, text in (
        (("store", str(tmp_path / "a"), "--chain", file), "needs --name NAME, which of them this is"),
        (("store", str(tmp_path / "a"), "--name", "a\nb"), "a name is 1 to 64 printable characters"),
        (("store", str(tmp_path / "a"), "--chain", file, "--name", "z"), "has no server 'z'"),
        (("store", str(tmp_path / "a"), "--chain", file, "--name", "a"), "must be durable"),
        (("produce", "t", "--partitions", "2"), "--partitions is for ordered topics"),
        (("produce", "t", "--chain", file, "--identity", "me"), "--chain, the order of many writers, goes with none"),
        (("produce", "t", "--chain", str(tmp_path / "none")), "cannot be read"),
    ):
        refused = shell.run(*arguments, stdin=b"")
        assert refused.returncode == 2, arguments
        assert text in refused.stderr.decode(), arguments
        assert b"Traceback" not in refused.stderr
