"""Endpoints that go by the permissions of their identities, over TLS with certificates of one authority."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.endpoints import PATIENCE_S, Make, event, until

from chappe import Endpoint, Keys
from chappe.api import permissions
from chappe.errors import ConfigError, PeerUnavailable, UsageError
from chappe.mesh.events import EndpointDiscovered, PeerAdded, PeerLost, PeerRefused, PeerRemoved, RefusedByPeer
from chappe.mesh.forwarding.judging import Refusal
from chappe.mesh.rules import MeshRules
from chappe.runtime.mesh_rules import RulesWatch
from chappe.storage import key_files
from chappe.storage.key_files import WatchedPermissions, watched_permissions
from chappe.system import time


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """An authority with a hub in the middle, and programs around it."""
    made = tmp_path / "keys"
    permissions.init(made, "hub", "member")
    for name in ("sensor", "report"):
        permissions.add(made, name, "member")
    return made


def copy_of(home: Path, name: str = "elsewhere") -> Path:
    """Files that do not see what changes from now on; nobody signs there."""
    made = home.parent / name
    made.mkdir()
    for each in home.iterdir():
        if each.name == "authority.key":
            continue
        (made / each.name).write_bytes(each.read_bytes())
        (made / each.name).chmod(each.stat().st_mode)
    return made


def test_an_identity_that_is_revoked_is_cut_off_and_refused(make: Make, home: Path) -> None:
    hub, report = make(security=Keys(home / "hub")), make(security=Keys(home / "report"))
    sensor = make(security=Keys(copy_of(home) / "sensor"))
    port = hub.listen()
    with hub.statuses() as here, sensor.statuses() as there:
        sensor.peer("127.0.0.1", port, retry_s=0.2)
        report.peer("127.0.0.1", port)

        permissions.revoke(home, "sensor")

        gone = event(here, PeerRemoved)
        assert gone.id == sensor.id
        assert gone.reason == f"sensor was revoked on {datetime.now(UTC):%Y-%m-%d}"
        event(there, PeerLost)
        told = event(there, PeerUnavailable)
        assert str(told).endswith(f"the peer refused the connection: {gone.reason}")
        assert event(here, PeerRefused).reason == gone.reason
    assert [each.id for each in hub.peers()] == [report.id]
    assert report.await_peer(hub.id, PATIENCE_S)
    assert hub.refused >= 2
    assert {(each.identity, each.verb) for each in hub.refusals()} == {("sensor", "join")}


def test_one_that_is_dialled_by_who_refuses_it_hears_why(make: Make, home: Path) -> None:
    sensor = make(security=Keys(copy_of(home) / "sensor"))
    permissions.revoke(home, "sensor")
    hub = make(security=Keys(home / "hub"))
    with sensor.statuses() as there:
        with pytest.raises(PeerUnavailable, match="sensor was revoked"):
            hub.peer("127.0.0.1", sensor.listen(), retry_s=0)
        assert "sensor was revoked" in event(there, RefusedByPeer).reason
    assert hub.refusals() == [Refusal("sensor", "join", 1)]


def test_an_identity_that_is_added_is_let_in_without_a_restart(make: Make, home: Path) -> None:
    old = copy_of(home)
    hub = make(security=Keys(old / "hub"))
    permissions.add(home, "late", "member")
    late = make(security=Keys(home / "late"))
    with late.statuses() as statuses:
        late.peer_nosync("127.0.0.1", hub.listen(), retry_s=0.2)
        assert "know no identity late" in str(event(statuses, PeerUnavailable))
        (old / "permissions.toml").write_bytes((home / "permissions.toml").read_bytes())
        assert late.await_peer(hub.id, PATIENCE_S)


def test_a_file_that_the_authority_has_not_signed_changes_nothing(make: Make, home: Path) -> None:
    hub, sensor = (make(security=Keys(home / name)) for name in ("hub", "sensor"))
    sensor.peer("127.0.0.1", hub.listen())
    path = home / "permissions.toml"
    looked = hub.node._rules
    assert looked is not None
    stamp = looked._permissions._stamp
    path.write_bytes(path.read_bytes().replace(b'roles = ["member"]', b'roles = ["nobody"]'))
    until(lambda: looked._permissions._stamp != stamp, "a look at the file")
    assert hub.core.router.rules is looked.rules
    assert [each.id for each in hub.peers()] == [sensor.id]


def revoked(home: Path) -> Keys:
    permissions.revoke(home, "sensor")
    return Keys(home / "sensor")


def changed(home: Path) -> Keys:
    path = home / "permissions.toml"
    path.write_bytes(path.read_bytes().replace(b"[[rules]]", b"[[rules]]  # more", 1))
    return Keys(home / "sensor")


def missing(home: Path) -> Keys:
    (home / "permissions.toml").unlink()
    return Keys(home / "sensor")


def test_a_later_endpoint_of_a_program_trusts_the_authority_that_the_program_began_with(make: Make, home: Path) -> None:
    make(security=Keys(home / "hub"))
    sensor = make(security=Keys(copy_of(home) / "sensor"))
    permissions.init(home.parent / "other", "stranger", "member")
    stranger = make(security=Keys(home.parent / "other" / "stranger"))
    for name in ("authority.pem", "permissions.toml"):
        (home / name).write_bytes((home.parent / "other" / name).read_bytes())

    later = make(security=Keys(home / "report"))
    port = later.listen()
    sensor.peer("127.0.0.1", port, timeout=PATIENCE_S)
    assert later.await_peer(sensor.id, timeout=PATIENCE_S)
    with pytest.raises(PeerUnavailable, match="not of our authority"):
        stranger.peer("127.0.0.1", port, retry_s=0)


@pytest.mark.parametrize(
    ("broken", "kind", "text"),
    [
        (revoked, UsageError, "cannot be used: sensor was revoked"),
        (changed, ConfigError, "not as the authority signed it"),
        (missing, UsageError, "does not exist"),
    ],
)
def test_an_endpoint_does_not_begin_with_keys_that_are_no_use(home: Path, broken: Any, kind: type, text: str) -> None:
    keys = broken(home)
    with pytest.raises(kind, match=text):
        Endpoint(security=keys)


def test_certificates_alone_ask_for_no_permissions(make: Make, home: Path) -> None:
    hub, sensor = (make(security=Keys(home / name).tls()) for name in ("hub", "sensor"))
    permissions.revoke(home, "sensor")
    assert sensor.peer("127.0.0.1", hub.listen(), retry_s=0) == hub.id
    assert hub.core.router.rules is None


@pytest.fixture
def clock() -> Iterator[list[float]]:
    """The wall clock, in seconds since 1970; the other one goes on with it."""
    at = [time.time_ns() / 1e9]
    time.use((lambda: at[0], lambda: int(at[0] * 1e9), lambda seconds: None))
    yield at
    time.use(None)


def test_rules_are_made_anew_when_somebody_expires_and_not_before(home: Path, clock: list[float]) -> None:
    permissions.add(home, "short", "member", days=1)
    watch = RulesWatch(WatchedPermissions(home))
    assert watch.rules.refusal("short") == ""
    clock[0] += 86_000
    assert watch.look() is None
    clock[0] += 800
    found = watch.look()
    assert found is watch.rules
    assert found is not None
    assert found.refusal("short").startswith("short expired")
    assert found.refusal("sensor") == ""
    assert watch.look() is None
    clock[0] += 800 * 86_400
    assert watch.look() is not None
    assert watch.rules.refusal("sensor").startswith("sensor expired")
    clock[0] += 8_000 * 86_400
    assert watch.look() is not None
    assert watch.rules.refusal("sensor").startswith("the permissions expired")
    assert watch.look() is None


def test_permissions_that_begin_later_are_in_force_then(
    home: Path, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_files, "authority_check", lambda _: lambda signature, text: True)  # it is as young as they
    now = clock[0]
    clock[0] -= 86_400
    watch = RulesWatch(WatchedPermissions(home))
    assert "begin on" in watch.rules.refusal("sensor")
    assert watch.look() is None
    clock[0] = now
    found = watch.look()
    assert found is not None
    assert found.refusal("sensor") == ""


def test_another_file_counts_also_if_others_of_this_process_have_taken_it_first(home: Path) -> None:
    watched = watched_permissions(home)
    watch = RulesWatch(watched)
    permissions.revoke(home, "sensor")
    assert watched.refresh()
    found = watch.look()
    assert found is not None
    assert found.refusal("sensor").startswith("sensor was revoked")


def test_a_revocation_that_one_knows_counts_for_all_and_is_kept_for_the_next_start(make: Make, home: Path) -> None:
    permissions.add(home, "far", "member")
    homes = {name: copy_of(home, name) for name in ("report", "far", "sensor")}
    hub = make(security=Keys(home / "hub"))
    report, far, sensor = (make(security=Keys(there / name)) for name, there in homes.items())
    report.peer("127.0.0.1", hub.listen())
    far.peer("127.0.0.1", report.listen())
    sensor.peer("127.0.0.1", far.listen(), retry_s=0.2)
    assert hub.await_peer(sensor.id, PATIENCE_S)
    with far.statuses() as statuses:
        permissions.revoke(home, "sensor")
        assert event(statuses, PeerRemoved).reason.startswith("sensor was revoked")
    signed = (home / "permissions.toml").read_bytes()
    for name in ("report", "far"):
        until(lambda name=name: (homes[name] / "permissions.toml").read_bytes() == signed, name)  # type: ignore[misc]
    assert far.refused


def test_permissions_that_somebody_made_up_are_not_taken_from_neighbours(make: Make, home: Path) -> None:
    hub, sensor = make(security=Keys(home / "hub")), make(security=Keys(copy_of(home) / "sensor"))
    sensor.peer("127.0.0.1", hub.listen())
    rules = sensor.core.router.rules
    assert rules is not None
    forged = MeshRules(replace(rules.permissions, version=99), datetime.now(UTC), rules.raw + b"# more\n")
    with hub.statuses() as statuses:
        with sensor.node.lock:
            sensor.node.do(sensor.core.set_rules(forged, time.monotonic()))
        until(lambda: hub.core.router.handing_on._offered_at, "an offer")
        assert hub.core.router.rules is not None
        assert hub.core.router.rules.permissions.version != 99
        told = list(iter(lambda: statuses.get(0), None))
        assert all(isinstance(each, EndpointDiscovered | PeerAdded) for each in told)  # nothing of permissions
