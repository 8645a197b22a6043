from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Shell
from tests.commands import whole_program

from chappe.api import permissions
from chappe.api.tokens import token_holder
from chappe.errors import UsageError
from chappe.security import Keys, Tls
from chappe.storage.key_files import curve_keys
from chappe.transports.tls import contexts

pytestmark = pytest.mark.process


def keys(shell: Shell, *arguments: str, code: int = 0) -> Any:
    done = shell.run("keys", *arguments, "--json")
    assert done.returncode == code, done.stderr.decode()
    return json.loads(done.stdout) if not code else done.stderr.decode()


def check(shell: Shell, *arguments: str) -> tuple[int, str]:
    done = shell.run("permissions", "check", *arguments)
    return done.returncode, done.stdout.decode().strip()


def test_three_programs_get_what_mesh_and_log_need(shell: Shell) -> None:
    made = keys(shell, "init", "--name", "hub", "--role", "server", "--host", "10.0.0.5")
    sensor = keys(shell, "add", "sensor", "--role", "producer")
    home = shell.directory / "keys"

    assert made["identity"]["role"] == "server"
    assert {Path(each).name for each in sensor["files"]} == {each.name for each in home.glob("*") if each.stem in (
        "permissions", "sensor") or each.name == "authority.pem"}  # fmt: skip
    assert {each.stat().st_mode & 0o77 for each in home.glob("*.key")} == {0}
    for name, facts in (("hub", made["identity"]), ("sensor", sensor)):
        tls = contexts(Keys(home / name).tls())
        assert tls is not None
        assert [each.hex() for each in tls.ids] == [facts["endpoint"].replace("-", "")]
        assert len(curve_keys(Keys(home / name)).public) == 32
    listed = keys(shell, "list")
    assert [(each["name"], each["role"], each["state"]) for each in listed["identities"]] == [
        ("hub", "server", "valid"),
        ("sensor", "producer", "valid"),
    ]
    shown = shell.run("keys", "list").stdout.decode()
    assert [line.split()[:3] for line in shown.splitlines()[1:]] == [
        ["hub", "server", "valid"],
        ["sensor", "producer", "valid"],
    ]


def test_it_is_said_who_may_do_what_and_which_line_says_so(shell: Shell) -> None:
    keys(shell, "init")
    keys(shell, "add", "sensor", "--role", "producer")
    rules = shell.directory / "keys" / "permissions.toml"
    line = next(n for n, text in enumerate(rules.read_text().splitlines(), 1) if '"producer"' in text) - 2

    assert check(shell, "sensor", "produce", "orders") == (
        0,
        f"yes: the rule allows it (keys/permissions.toml, line {line})",
    )
    assert check(shell, "sensor", "consume", "orders") == (1, "no: no rule allows it (keys/permissions.toml)")
    assert check(shell, "admin", "administer")[0] == 0
    assert check(shell, "nobody", "consume", "x") == (1, "no: there is no identity nobody (keys/permissions.toml)")
    assert shell.run("permissions", "check", "sensor", "eat", "x").returncode == 2
    done = shell.run("permissions", "check", "sensor", "consume", "a*", "--json")
    facts = json.loads(done.stdout)
    assert (done.returncode, facts["allowed"], facts["line"], facts["version"]) == (1, False, None, 3)


def test_rules_that_somebody_wrote_are_in_force_once_they_are_signed(shell: Shell) -> None:
    keys(shell, "init")
    keys(shell, "add", "sensor", "--role", "producer")
    path = shell.directory / "keys" / "permissions.toml"
    rule = '# not those\n[[rules]]\ndeny = ["produce"]\nnames = ["sensor"]\ntopics = ["secret/*"]\n\n[[rules]]'
    path.write_text(path.read_text().replace("[[rules]]", rule, 1))

    for refused in (("permissions", "check", "sensor", "produce", "x"), ("keys", "add", "b", "--role", "producer")):
        done = shell.run(*refused)
        assert (done.returncode, b"not as the authority signed it" in done.stderr) == (2, True)
    signed = json.loads(shell.run("permissions", "sign", "--json").stdout)
    assert signed["version"] == 4
    assert check(shell, "sensor", "produce", "secret/1")[0] == 1
    assert check(shell, "sensor", "produce", "orders")[0] == 0
    keys(shell, "revoke", "sensor")
    assert "# not those" in path.read_text()
    shown = json.loads(shell.run("permissions", "show", "--json").stdout)
    assert (shown["version"], shown["rules"][0]["names"], shown["rules"][0]["allow"]) == (5, ["sensor"], False)
    assert b"secret/*" in shell.run("permissions", "show").stdout
    path.write_text(path.read_text().replace('["secret/*"]', '["secret/*"'))
    done = shell.run("permissions", "sign")
    assert (done.returncode, b"keys/permissions.toml: it is not TOML" in done.stderr) == (2, True)


def test_a_rule_that_denies_nobody_is_refused_or_told(shell: Shell) -> None:
    keys(shell, "init")
    keys(shell, "add", "sensor", "--role", "producer")
    path = shell.directory / "keys" / "permissions.toml"
    text = path.read_text()
    assert 'names = ["*"] is everybody' in text

    def deny(whom: str) -> None:
        made = f'[[rules]]\ndeny = ["produce"]\n{whom}\ntopics = ["secret/*"]\n\n[[rules]]'
        path.write_text(text.replace("[[rules]]", made, 1))

    line = text[: text.index("[[rules]]")].count("\n") + 1
    deny('roles = ["*"]')
    refused = shell.run("permissions", "sign")
    assert refused.returncode == 2
    assert (
        f'keys/permissions.toml: line {line}: there is no role "*": names = ["*"] is everybody'
        in refused.stderr.decode()
    )
    assert shell.run("permissions", "check", "sensor", "produce", "x").returncode == 2  # nothing was signed

    deny('roles = ["sensors"]')
    signed = shell.run("permissions", "sign")
    assert signed.returncode == 0
    assert f"line {line} denies less than it may seem: no identity has the role sensors" in signed.stderr.decode()
    told = check(shell, "sensor", "produce", "secret/1")
    assert told[0] == 0
    assert f"line {line} does not deny this as it may seem: no identity has the role sensors" in told[1]
    assert "may seem" not in check(shell, "sensor", "produce", "orders")[1]
    deny('names = ["sensro"]')
    facts = json.loads(shell.run("permissions", "sign", "--json").stdout)
    assert facts["warnings"] == [f"line {line} denies less than it may seem: there is no identity sensro"]
    deny('names = ["*"]')
    assert json.loads(shell.run("permissions", "sign", "--json").stdout)["warnings"] == []
    assert check(shell, "sensor", "produce", "secret/1")[0] == 1


def test_who_is_revoked_may_nothing_and_its_name_stays_taken(shell: Shell) -> None:
    keys(shell, "init")
    keys(shell, "add", "sensor", "--role", "producer")
    assert keys(shell, "revoke", "sensor")["state"] == "revoked"
    assert check(shell, "sensor", "produce", "x")[1].startswith("no: sensor was revoked on ")
    assert "was revoked already" in keys(shell, "revoke", "sensor", code=2)
    assert "was revoked" in keys(shell, "renew", "sensor", code=2)
    assert "exists already" in keys(shell, "add", "sensor", "--role", "producer", code=2)
    assert "there is no identity 'nobody': there are admin, sensor" in keys(shell, "revoke", "nobody", code=2)


def test_a_renewed_identity_is_the_same_and_expires_later(shell: Shell) -> None:
    keys(shell, "init")
    made = keys(shell, "add", "sensor", "--role", "producer", "--host", "10.0.0.7", "--days", "5")
    private = (shell.directory / "keys" / "sensor.key").read_bytes()
    assert made["state"] == "expires soon"

    renewed = keys(shell, "renew", "sensor")

    assert (renewed["state"], renewed["endpoint"], renewed["curve"]) == ("valid", made["endpoint"], made["curve"])
    assert (shell.directory / "keys" / "sensor.key").read_bytes() == private
    tls = contexts(Keys(shell.directory / "keys" / "sensor").tls())
    assert tls is not None
    assert [each.hex() for each in tls.ids] == [made["endpoint"].replace("-", "")]


def test_a_certificate_for_several_programs_names_no_id(shell: Shell) -> None:
    keys(shell, "init")
    facts = keys(shell, "add", "shared", "--role", "member", "--no-id")
    assert facts["endpoint"] is None
    made = contexts(Tls.of(shell.directory / "keys", "shared"))
    assert made is not None
    assert made.ids == frozenset()


def test_keys_can_be_encrypted(shell: Shell) -> None:
    shell.env["CHAPPE_KEY_PASSPHRASE"] = "open sesame"
    keys(shell, "init")
    keys(shell, "add", "one", "--role", "member", "--encrypt")
    one = shell.directory / "keys" / "one"
    assert contexts(Keys(one, "open sesame").tls()) is not None
    assert "open sesame" not in repr(Keys(one, "open sesame"))
    for load in (lambda it: contexts(it.tls()), curve_keys):
        with pytest.raises(UsageError, match="is encrypted"):
            load(Keys(one))
        with pytest.raises(UsageError, match="the passphrase is not that of"):
            load(Keys(one, "open"))


def test_nothing_is_ever_overwritten(shell: Shell) -> None:
    assert "make an authority first" in keys(shell, "add", "one", "--role", "member", code=2)
    keys(shell, "init")
    files = {path: path.read_bytes() for path in (shell.directory / "keys").glob("*")}
    assert "exists already" in keys(shell, "init", code=2)
    for wrong in (["authority"], ["../one"], ["x", "--host", "a b"], ["x", "--role", "eater"], ["admin"]):
        refused = shell.run("keys", "add", "--role", "member", *wrong)
        assert refused.returncode == 2
    assert files == {path: path.read_bytes() for path in (shell.directory / "keys").glob("*")}


@pytest.mark.parametrize("days", ["99999999", "1e300"])
def test_days_that_no_certificate_has_are_refused(shell: Shell, days: str) -> None:
    assert "it has to end between 1950 and 9999" in keys(shell, "init", "--days", days, code=2)
    assert not (shell.directory / "keys").exists()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o622])
def test_a_private_key_that_others_can_read_is_refused(shell: Shell, mode: int) -> None:
    keys(shell, "init")
    one = shell.directory / "keys" / "admin"
    one.with_suffix(".key").chmod(mode)
    for load in (lambda it: contexts(it.tls()), curve_keys):
        with pytest.raises(UsageError, match=r"a private key that others can read: chmod 600"):
            load(Keys(one))
    (shell.directory / "keys" / "authority.key").chmod(mode)
    assert "authority.key is a private key that others can read" in keys(shell, "revoke", "admin", code=2)


def test_an_endpoint_of_a_command_is_who_the_environment_or_the_file_says(shell: Shell) -> None:
    keys(shell, "init")
    (shell.directory / "chappe.toml").write_text('identity = "keys/nobody"\n')
    refused = shell.run("ping", "127.0.0.1:1")
    assert (refused.returncode, b"keys/nobody.pem does not exist" in refused.stderr) == (2, True)
    shell.env["CHAPPE_IDENTITY"] = "keys/nobody2"
    assert b"keys/nobody2.pem does not exist" in shell.run("ping", "127.0.0.1:1").stderr
    assert b"keys/nobody3.pem does not exist" in shell.run("ping", "127.0.0.1:1", "--as", "keys/nobody3").stderr
    assert b"does not exist" not in shell.run("ping", "127.0.0.1:1", "--plain").stderr


def test_who_to_be_counts_only_once_a_command_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CHAPPE_IDENTITY", raising=False)
    program = whole_program()
    for command in ("tower", "topics", "ping"):
        program.commands[command].make_context(command, ["--as", "keys/nobody"])
    assert "CHAPPE_IDENTITY" not in os.environ


def test_a_token_is_printed_alone_and_made_where_the_key_is(shell: Shell) -> None:
    keys(shell, "init", "--name", "hub", "--role", "server")
    printed = shell.run("keys", "token", "hub", "--hours", "2")
    (token,) = printed.stdout.decode().split()
    known = permissions.read(shell.directory / "keys")
    now = datetime.now(UTC)
    holder = token_holder(token, known, now)
    assert holder.name == "hub"
    assert timedelta(0) < datetime.fromtimestamp(holder.end, UTC) - now < timedelta(hours=2, seconds=1)
    assert keys(shell, "token", "hub")["name"] == "hub"

    (shell.directory / "keys" / "hub.key").unlink()
    assert "hub.key does not exist" in keys(shell, "token", "hub", code=2)


def test_the_commands_of_the_docs_set_up_three_programs_on_two_machines(shell: Shell) -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/permissions.md").read_text()
    blocks = re.findall(r"^```console.*?\n(.*?)^```", page, re.DOTALL | re.MULTILINE)[:2]
    commands = [line.removeprefix("$ ") for block in blocks for line in block.splitlines() if line.startswith("$ ")]
    assert len(commands) <= 4
    other = shell.directory / "other"
    (other / "keys").mkdir(parents=True, mode=0o700)
    tools = shell.directory / "tools"
    tools.mkdir()
    scp = 'shift; for last; do :; done; while [ $# -gt 1 ]; do cp -p "$1" "$OTHER/${last#*:}"; shift; done'
    for name, script in (("chappe", f'exec "{sys.executable}" -m chappe "$@"'), ("scp", scp)):
        (tools / name).write_text(f"#!/bin/sh\n{script}\n")
        (tools / name).chmod(0o755)
    env = shell.env | {"PATH": f"{tools}:{os.environ['PATH']}", "OTHER": str(other)}
    for command in commands:
        subprocess.run(command, shell=True, cwd=shell.directory, env=env, check=True, capture_output=True)

    here = shell.directory / "keys"
    assert sorted(each.name for each in (other / "keys").iterdir()) == sorted(
        ["authority.pem", "permissions.toml", "sensor.key", "sensor.pem", "report.key", "report.pem"]
    )
    for home, name in ((here, "hub"), (other / "keys", "sensor"), (other / "keys", "report")):
        assert contexts(Keys(home / name).tls()) is not None
        known = permissions.read(home).identities[name]
        assert known.curve == curve_keys(Keys(home / name)).public
        assert known.hosts == ("10.0.0.5" if name == "hub" else "10.0.0.7",)
    moment = datetime.now(UTC)
    found = permissions.read(other / "keys")
    assert found.decide("sensor", "produce", "orders", moment).allowed
    assert found.decide("report", "consume", "orders", moment).allowed
    assert not found.decide("report", "produce", "orders", moment).allowed
