"""Units of systemd: they start what was asked for, and systemd understands them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.conftest import Shell
from tests.commands import commands_of, whole_program

from chappe.cli import service
from chappe.errors import UsageError

STORE = ["store", "/var/lib/chappe/100% mine", "--tower", "10.0.0.5:5556", "--metrics", "9464"]


def directives(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def test_a_unit_says_how_a_command_is_started_and_when_it_is_ready() -> None:
    found = directives(service.unit(STORE, system=True, user="events", writes=[Path("/srv/a b")]))
    assert found["ExecStart"].endswith('chappe store "/var/lib/chappe/100%% mine" --tower 10.0.0.5:5556 --metrics 9464')
    assert (found["Type"], found["User"], found["ReadWritePaths"]) == ("notify", "events", '"/srv/a b"')
    assert found["WantedBy"] == "multi-user.target"
    own = directives(service.unit(["consume", "orders"], system=False, user="", writes=()))
    assert (own["Type"], own["WantedBy"]) == ("exec", "default.target")
    assert "ProtectSystem" not in own


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (["stroe"], "chappe has no command 'stroe': one of"),
        (["kv"], "the command is not whole: one of "),
        (["store", "--towr", "x"], "chappe store: No such option: --towr"),
        (["store", "a", "b"], "chappe store: unexpected argument 'b'"),
        (["kv", "serve"], "chappe kv serve: STORE is missing"),
        (["service", "print", "store"], "chappe service is no service"),
        (["store", "a\nb"], "has characters that no unit can have"),
    ],
)
def test_a_command_that_would_fail_gets_no_unit(command: list[str], why: str) -> None:
    with pytest.raises(UsageError) as refused:
        service.unit(command, system=False, user="", writes=())
    assert why in str(refused.value)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
@pytest.mark.skipif(sys.platform != "linux", reason="systemd is Linux's")
def test_systemd_understands_every_unit(tmp_path: Path) -> None:
    needed = {"archive": ["t", "--to", "d"], "record": ["/a", "--to", "t"], "kv serve": ["prices"]}
    needed |= {"map witness": ["--path", "w"], "gateway": ["g.toml"], "pipeline run": ["p.toml"]}
    needed |= {"chain serve": ["c.toml", "--name", "a"], "copy": ["t", "--to-tower", "10.0.0.6"]}
    serving = [
        [*name.split(), *needed.get(name, [])]
        for name, command in commands_of(whole_program())
        if any("--metrics" in each.opts for each in command.params)
    ]
    files: list[str] = []
    for system in (True, False):
        for command in [*serving, STORE]:
            file = tmp_path / f"{system}-{len(files)}.service"
            # a user and a home of this machine: otherwise it warns of those
            file.write_text(service.unit(command, system=system, user="root", writes=[tmp_path]))
            files.append(str(file))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", *files], capture_output=True, text=True)
    wrong = [line for line in done.stderr.splitlines() if str(tmp_path) in line or ".service" in line]
    assert [each for each in wrong if "SO_PASSCRED" not in each] == []


@pytest.mark.process
def test_a_unit_is_written_where_systemd_finds_it_and_never_over_another(shell: Shell) -> None:
    place = Path(shell.env["XDG_CONFIG_HOME"]) / "systemd/user/chappe-store.service"
    done = shell.run("service", "install", "store", "data")
    assert (done.returncode, done.stdout) == (0, b"")
    assert f"wrote {place}; start it" in done.stderr.decode()
    assert b"systemctl --user enable --now chappe-store.service" in done.stderr
    done = shell.run("service", "print", "store", "data")
    assert (done.returncode, done.stdout, done.stderr) == (0, place.read_bytes(), b"")
    assert shell.run("service", "install", "store", "data").returncode == 0
    done = shell.run("service", "install", "store", "other")
    assert (done.returncode, b"is there already and says something else" in done.stderr) == (2, True)
    assert shell.run("service", "install", "--name", "second", "store", "other").returncode == 0
    assert shell.run("service", "install", "--name", "a/b", "store").returncode == 2
    assert [each.name for each in place.parent.iterdir() if each.name.startswith(".")] == []
