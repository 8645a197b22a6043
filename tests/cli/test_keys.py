from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.conftest import Shell

from chappe.errors import UsageError
from chappe.security import Tls
from chappe.transports.tls import contexts

pytestmark = pytest.mark.process


def test_an_authority_and_certificates_that_endpoints_can_use(shell: Shell) -> None:
    assert shell.run("keys", "authority").returncode == 0
    facts = json.loads(shell.run("keys", "make", "sensor", "--host", "sensor.example.org", "--json").stdout)
    keys = shell.directory / "keys"
    assert Path(facts["certificate"]).name == "sensor.pem"
    made = contexts(Tls.of(keys, "sensor"))
    assert made is not None
    assert [each.hex() for each in made.ids] == [facts["id"].replace("-", "")]
    assert {each.stat().st_mode & 0o77 for each in keys.glob("*.key")} == {0}


def test_a_certificate_for_several_programs_names_no_id(shell: Shell) -> None:
    shell.run("keys", "authority")
    facts = json.loads(shell.run("keys", "make", "shared", "--no-id", "--json").stdout)
    assert facts["id"] is None
    made = contexts(Tls.of(shell.directory / "keys", "shared"))
    assert made is not None
    assert made.ids == frozenset()


def test_keys_can_be_encrypted(shell: Shell) -> None:
    shell.env["CHAPPE_KEY_PASSPHRASE"] = "open sesame"
    shell.run("keys", "authority")
    assert shell.run("keys", "make", "one", "--encrypt").returncode == 0
    keys = shell.directory / "keys"
    assert contexts(Tls.of(keys, "one", passphrase="open sesame")) is not None
    with pytest.raises(UsageError, match="is encrypted"):
        contexts(Tls.of(keys, "one"))


def test_nothing_is_ever_overwritten(shell: Shell) -> None:
    first = shell.run("keys", "make", "one")
    assert (first.returncode, b"make an authority first" in first.stderr) == (2, True)
    shell.run("keys", "authority")
    before = (shell.directory / "keys" / "authority.pem").read_bytes()
    again = shell.run("keys", "authority")
    assert (again.returncode, b"exists already" in again.stderr) == (2, True)
    assert (shell.directory / "keys" / "authority.pem").read_bytes() == before
    shell.run("keys", "make", "one")
    assert b"exists already" in shell.run("keys", "make", "one").stderr
    for wrong in (["authority"], ["../one"], ["x", "--host", "a b"]):
        refused = shell.run("keys", "make", *wrong)
        assert refused.returncode == 2


@pytest.mark.parametrize("days", ["99999999", "1e300"])
def test_days_that_no_certificate_has_are_refused(shell: Shell, days: str) -> None:
    refused = shell.run("keys", "authority", "--days", days)

    assert refused.returncode == 2
    assert b"it has to end between 1950 and 9999" in refused.stderr
    assert not (shell.directory / "keys").exists()
