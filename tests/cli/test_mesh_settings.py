"""The settings of the mesh reach every command that makes an endpoint, from file, environment and command line."""

from __future__ import annotations

import ast
import os
from pathlib import Path
from typing import Any

import pytest
import typer
from tests.cli.conftest import Shell
from tests.commands import commands_of, whole_program

import chappe.cli
from chappe.cli import declared, log_options, logs, network, node
from chappe.cli.config import Config, defaults_of_commands, load
from chappe.cli.declared import DECLARED
from chappe.errors import ConfigError, UsageError


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [each for each in os.environ if each.startswith("CHAPPE_")]:
        monkeypatch.delenv(name)


def made(line: str, file: Path | None = None) -> Any:
    """The context of a command, as it is before it runs."""
    found = Config() if file is None else load(str(file))
    root = whole_program()
    name, *arguments = line.split()
    defaults = defaults_of_commands(found, root.commands)
    above = typer.Context(root, obj=found)
    return root.commands[name].make_context(name, arguments, parent=above, default_map=defaults[name])


def parsed(line: str, file: Path | None = None) -> dict[str, Any]:
    """The parameters of a command."""
    return dict(made(line, file).params)


def run(line: str, file: Path) -> None:
    context = made(line, file)
    with context:
        context.command.invoke(context)


def test_the_command_line_counts_more_than_the_environment_than_the_file_than_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert parsed("publish /t")["paths"] == 1
    file = tmp_path / "chappe.toml"
    file.write_text('[mesh]\npaths = 2\nretry_s = 2.5\npeers = ["a"]\nforwarding = false\npeer_bytes_max = "1MiB"\n')
    of_file = parsed("node", file)
    assert (of_file["paths"], of_file["retry_s"], of_file["peers"]) == (2, 2.5, ["a"])
    assert (of_file["forwarding"], of_file["peer_bytes_max"]) == (False, 1 << 20)
    values = {"PATHS": "1", "RETRY_S": "3", "PEERS": "b, c:7000", "FORWARDING": "yes", "PEER_BYTES_MAX": "2KiB"}
    for name, value in values.items():
        monkeypatch.setenv(f"CHAPPE_MESH_{name}", value)
    named = parsed("node", file)
    assert (named["paths"], named["retry_s"], named["peers"]) == (1, 3.0, ["b", "c:7000"])
    assert (named["forwarding"], named["peer_bytes_max"]) == (True, 2048)
    typed = parsed("node --paths 2 --retry-s 4 --peer d --peer e:1 --no-forwarding --peer-bytes-max 5", file)
    assert (typed["paths"], typed["retry_s"], typed["peers"]) == (2, 4.0, ["d", "e:1"])
    assert (typed["forwarding"], typed["peer_bytes_max"]) == (False, 5)


def test_a_nodes_own_file_counts_more_than_the_common_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    common, own = tmp_path / "chappe.toml", tmp_path / "node.toml"
    common.write_text(
        '[mesh]\nretry_s = 2\nattempts = 3\nlisten = ["a:1"]\n'
        '[node]\nwebsocket = 80\norigins = ["https://common"]\ntap = 70\n'
    )
    alone = parsed("node", common)
    assert (alone["websocket"], alone["origins"], alone["at_tap"]) == ("80", ["https://common"], "70")
    own.write_text(
        'retry_s = 5\nlisten = ["b:1"]\nrecording_directory = "shapes"\ntap = 71\n'
        '[websocket]\nlisten = 81\norigins = ["https://own"]\n'
    )
    found = parsed(f"node {own}", common)
    assert (found["retry_s"], found["attempts"], found["listen"]) == (5.0, 3, ["b:1"])
    assert found["recording_directory"] == str(tmp_path / "shapes")
    assert (found["websocket"], found["origins"], found["at_tap"]) == ("81", ["https://own"], "71")
    monkeypatch.setenv("CHAPPE_MESH_RETRY_S", "7")
    assert parsed(f"node {own}", common)["retry_s"] == 7.0


def test_none_clears_a_setting_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "chappe.toml"
    file.write_text('[mesh]\nattempts = 3\nretry_max_s = 9\npeers = ["a"]\n')
    monkeypatch.setenv("CHAPPE_MESH_ATTEMPTS", "none")
    monkeypatch.setenv("CHAPPE_MESH_PEERS", "none")
    found = parsed("node --retry-max-s none", file)
    assert (found["attempts"], found["retry_max_s"], found["peers"]) == (None, None, [])
    assert parsed("ping", file)["peer"] == declared.HERE
    monkeypatch.delenv("CHAPPE_MESH_PEERS")
    assert parsed("ping", file)["peer"] == "a"


def test_what_is_typed_is_one_topic_whatever_it_is() -> None:
    arguments = ["--forward", "", "--forward", " a,b ", "--forward", "none"]
    context = whole_program().commands["node"].make_context("node", arguments)
    assert list(context.params["forward"]) == ["", " a,b ", "none"]


@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [
        ("CHAPPE_MESH_PATHS", "3", "'3' is not a whole number from 1 to 2"),
        ("CHAPPE_MESH_ATTEMPTS", "0", "'0' is not a whole number of at least 1"),
        ("CHAPPE_MESH_RETRY_S", "soon", "'soon' is not a number of seconds above 0"),
        ("CHAPPE_MESH_HEARTBEAT_S", "nan", "'nan' is not a number of seconds above 0"),
        ("CHAPPE_MESH_ON_FULL", "none", "'none' is none of block, drop_oldest, drop_newest, disconnect"),
        ("CHAPPE_MESH_PEER_BYTES_MAX", "many", "'many' is not a size"),
        ("CHAPPE_NODE_TAP", "x", "'x' is not an address"),
        ("CHAPPE_NODE_WEBSOCKET", "h:y", "'h:y' is not an address"),
        ("CHAPPE_MESH_PEERS", "a,b:x", "'b:x' is not an address"),
    ],
)
def test_a_wrong_value_names_variable_or_option(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, told: str
) -> None:
    key = next(each.key for each in DECLARED.values() if each.variable == variable)
    option = "--peer" if key == "mesh.peers" else "--" + DECLARED[key].name.replace("_", "-")
    with pytest.raises(UsageError, match=f"^{option}: {told if value != 'a,b:x' else ''}"):
        parsed(f"node {option} {value}")
    monkeypatch.setenv(variable, value)
    with pytest.raises(UsageError, match=f"^{variable}: {told}"):
        parsed("node")


def test_waits_that_contradict_each_other_name_where_both_come_from(shell: Shell) -> None:
    (shell.directory / "chappe.toml").write_text("[mesh]\nretry_s = 5\n")
    shell.env["CHAPPE_MESH_RETRY_MAX_S"] = "2"
    done = shell.run("subscribe", "/t")
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr == b"chappe: CHAPPE_MESH_RETRY_MAX_S is 2, below the 5 of mesh.retry_s in chappe.toml\n"


def test_a_wrong_setting_of_a_nodes_file_names_its_line(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text("\nattempts = 0\n")
    with pytest.raises(ConfigError, match=r"node.toml, line 2: attempts: 0 is not a whole number of at least 1"):
        parsed(f"node {file}")


def test_every_setting_is_an_option_with_its_default() -> None:
    found: dict[str, set[str]] = {}
    for name, command in commands_of(whole_program()):
        for each in command.params:
            if each.envvar in {one.variable for one in DECLARED.values()}:
                found.setdefault(each.envvar, set()).add(name)
                setting = next(one for one in DECLARED.values() if one.variable == each.envvar)
                default = None if setting.several and name != "ping" else each.default
                assert default in (setting.default, declared.HERE), (name, each.name)
    assert {each.variable for each in DECLARED.values()} == set(found)


def test_every_command_that_makes_an_endpoint_takes_the_settings() -> None:
    making = {
        name
        for name, command in commands_of(whole_program())
        if "heartbeat_s" in {each.name for each in command.params}
    }
    dialling = {
        name
        for name, command in commands_of(whole_program())
        if any("--peer" in each.opts or each.envvar == "CHAPPE_MESH_PEERS" for each in command.params)
    }
    assert dialling | {"gateway"} == making


def test_commands_make_endpoints_only_with_the_settings() -> None:
    calls = []
    for path in sorted(Path(chappe.cli.__file__).parent.rglob("*.py")):
        for each in ast.walk(ast.parse(path.read_text())):
            if isinstance(each, ast.Call) and getattr(each.func, "id", "") == "Endpoint":
                calls.append(path.name)
    assert calls == ["mesh.py"]


@pytest.mark.process
def test_a_node_and_those_that_speak_to_it_go_by_file_and_environment(shell: Shell) -> None:
    (shell.directory / "chappe.toml").write_text(
        '[mesh]\nlisten = ["127.0.0.1:0"]\npeers = ["127.0.0.1:1"]\nretry_s = 0.05\nattempts = 1\n'
    )
    shell.env["CHAPPE_MESH_ATTEMPTS"] = "3"
    process = shell.start("node")
    assert process.stderr is not None
    title = process.stderr.readline().decode()
    lines = iter(process.stderr.readline, b"")
    assert next(each for each in lines if b"given up" in each).endswith(b"given up after 3 attempts\n")
    shell.env["CHAPPE_MESH_PEERS"] = title.partition(" at ")[2].partition(";")[0]
    done = shell.run("publish", "/t", "1")
    assert (done.returncode, done.stderr) == (0, b"published 1 message, to which nobody has subscribed\n")


def test_a_map_takes_settings_of_a_node_that_stays_but_no_such_options(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "chappe.toml"
    file.write_text('[mesh]\nlisten = [":1"]\nretry_s = 2\n')
    found: list[dict[str, Any]] = []
    for module in (node, log_options):
        monkeypatch.setattr(module, "hear_warnings", lambda *_: None)
    monkeypatch.setattr(logs.log, "ask", lambda **_: None)
    monkeypatch.setattr(network, "show", lambda *given: found.append({"peers": given[4]}))
    monkeypatch.setenv("CHAPPE_MESH_FORWARDING", "no")
    run("node --map --peer a --plain --verbose --heartbeat-s 3", file)
    assert found == [{"peers": ["a"]}]
    for option in ("--listen :1", "--retry-s 3", "--recording-directory x"):
        with pytest.raises(UsageError, match=f"leave out {option.split()[0]}"):
            run(f"node --map {option}", file)


def test_the_file_sets_options_whatever_their_parameter_is_called(tmp_path: Path) -> None:
    file = tmp_path / "chappe.toml"
    file.write_text('[produce]\nformat = "json"\n[consume]\nfrom = 17\n[store]\ndirectory = "/data"\n')
    assert parsed("produce t", file)["form"] == "json"
    assert parsed("consume t", file)["start"] == "17"
    assert [str(parsed(name, file)["directory"]) for name in ("store", "up", "doctor")] == ["/data"] * 3
