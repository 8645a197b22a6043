"""Groups as the authority makes them and members have them."""

from __future__ import annotations

import json
import shutil
from base64 import b64encode
from datetime import timedelta
from pathlib import Path

import pytest

from chappe.api import permissions
from chappe.errors import ConfigError, UsageError
from chappe.permissions.rules import Group
from chappe.security import Keys, permissions_file, sealed_file
from chappe.storage.sealed_files import LOOK_S, SealedGroups, watched_groups

TOPIC = "patients/1"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    made = tmp_path / "keys"
    permissions.init(made, "hub", "server")
    permissions.add(made, "ann", "member")
    permissions.add(made, "bob", "member")
    permissions.seal(made, "ward", ["patients/*"], roles=["member"])
    return made


class Member:
    """What one has; each look comes when it may."""

    def __init__(self, home: Path, name: str) -> None:
        self._now = 0.0
        self._files = SealedGroups(Keys(home / name))
        self.groups = self._files.held
        self.look()

    def look(self) -> None:
        self._files.look(self._now)
        self._now += LOOK_S

    @property
    def refusal(self) -> str:
        self.look()
        group = self.groups.group(TOPIC)
        assert group is not None
        return self.groups.refusal(group)

    @property
    def epoch(self) -> int:
        self.look()
        ring = self.groups.ring("ward")
        return 0 if ring is None or ring.newest is None else ring.newest.number


def test_members_have_a_key_and_others_are_told_that_they_are_none(home: Path) -> None:
    ann = Member(home, "ann")
    assert ann.refusal == ""
    assert ann.epoch == 1
    assert ann.groups.group("orders") is None
    assert Member(home, "hub").refusal == "hub is not of the group ward"


def test_who_is_added_gets_the_next_epoch_and_who_is_revoked_none_after(home: Path) -> None:
    ann, bob = Member(home, "ann"), Member(home, "bob")
    permissions.add(home, "cat", "member")
    cat = Member(home, "cat")
    assert [each.epoch for each in (ann, bob, cat)] == [2, 2, 2]
    assert cat.groups.ring("ward").secret(1) is None  # type: ignore[union-attr]

    permissions.revoke(home, "bob")
    assert [each.epoch for each in (ann, bob, cat)] == [3, 0, 3]
    assert bob.refusal == "bob is not of the group ward"


def test_a_change_of_the_file_that_is_signed_changes_the_members(home: Path) -> None:
    path = permissions_file(home)
    path.write_text(path.read_text().replace('roles = ["member"]\n\n#', 'names = ["ann"]\n\n#'))
    assert permissions.sign(path).sealed == (Group("ward", ("patients/*",), frozenset(), frozenset({"ann"})),)
    assert [Member(home, name).epoch for name in ("ann", "bob")] == [2, 0]


def test_nothing_is_sealed_with_keys_that_somebody_has_who_was_revoked(home: Path, tmp_path: Path) -> None:
    there = tmp_path / "there"
    shutil.copytree(home, there)
    ann = Member(there, "ann")
    permissions.revoke(home, "bob")
    shutil.copy2(permissions_file(home), there)
    assert ann.refusal.endswith("is older than the permissions, which do not have bob in the group")
    shutil.copy2(sealed_file(home, "ward"), there)
    assert ann.refusal == ""
    assert ann.epoch == 2


def test_older_or_damaged_keys_change_nothing(home: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    old, path = sealed_file(home, "ward").read_bytes(), sealed_file(home, "ward")
    permissions.rotate(home, "ward")
    ann = Member(home, "ann")
    for raw, said in [(old, "older than the keys in force"), (b"nonsense", "signature check failed")]:
        path.write_bytes(raw)
        assert ann.epoch == 2
        assert said in caplog.text
    path.unlink()
    assert ann.epoch == Member(home, "ann").epoch == 2  # what one member of a process has counts for all


def apart(home: Path, *names: str) -> list[Path]:
    """Directories of other machines, as they are now, without the authority's key."""
    made = []
    for name in names:
        made.append(home.parent / name)
        shutil.copytree(home, made[-1])
        (made[-1] / "authority.key").unlink()
    return made


def handed(source: Path, to: Path) -> bool:
    """What one has, handed to another."""
    theirs, ours = watched_groups(source), watched_groups(to)
    for each in (theirs, ours):
        each.refresh()
    return ours.offer("ward", theirs.after("ward", ours.versions()["ward"]))


def test_newer_keys_that_are_handed_on_count_and_are_there_after_the_next_start(home: Path) -> None:
    here, there = apart(home, "here", "there")
    ann = Member(there, "ann")
    permissions.rotate(home, "ward")
    shutil.copy2(sealed_file(home, "ward"), here)
    assert handed(here, there)
    assert ann.epoch == 2
    assert sealed_file(there, "ward").read_bytes() == sealed_file(home, "ward").read_bytes()
    assert sealed_file(there, "ward").stat().st_mode & 0o777 == 0o644
    assert not handed(here, there)


def test_who_has_no_keys_of_a_group_gets_them(home: Path) -> None:
    here, there = apart(home, "here", "there")
    sealed_file(there, "ward").unlink()
    ann = Member(there, "ann")
    assert "has not been handed on yet" in ann.refusal
    assert handed(here, there)
    assert (ann.refusal, ann.epoch) == ("", 1)


def test_keys_that_the_disk_refuses_are_taken_all_the_same(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    here, there = apart(home, "here", "there")
    ann = Member(there, "ann")
    permissions.rotate(home, "ward")
    shutil.copy2(sealed_file(home, "ward"), here)
    sealed_file(there, "ward").unlink()
    sealed_file(there, "ward").mkdir()  # root may write everywhere
    caplog.set_level("INFO")
    assert handed(here, there)
    assert ann.epoch == 2
    assert "keys of ward that were handed on are kept in memory alone: Is a directory" in caplog.text


def test_what_nobody_has_signed_or_of_no_group_is_not_taken(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    (there,) = apart(home, "there")
    permissions.rotate(home, "ward")
    groups, source = watched_groups(there), watched_groups(home)
    for each in (groups, source):
        each.refresh()
    before, raw = sealed_file(there, "ward").read_bytes(), source.after("ward", 1)
    for _ in range(2):
        for bad in (b"", raw[:-20], raw.replace(b"true", b"false"), b"nonsense\n" * 100):
            assert not groups.offer("ward", bad)
    assert caplog.text.count("keys of ward that were handed on are not taken") == 4  # said once of each
    assert not groups.offer("yard", raw.replace(b'"ward"', b'"yard"'))
    assert sealed_file(there, "ward").read_bytes() == before
    assert groups.offer("ward", raw)


def test_where_the_authority_is_nothing_is_written(home: Path) -> None:
    (there,) = apart(home, "there")
    old = sealed_file(home, "ward").read_bytes()
    permissions.rotate(home, "ward")
    shutil.copy2(sealed_file(home, "ward"), there)
    sealed_file(home, "ward").write_bytes(old)
    ann = Member(home, "ann")
    assert ann.epoch == 1
    assert handed(there, home)
    assert ann.epoch == 2
    assert sealed_file(home, "ward").read_bytes() == old


def test_keys_that_were_made_anew_after_a_loss_count(home: Path) -> None:
    (there,) = apart(home, "there")
    ann = Member(there, "ann")
    sealed_file(home, "ward").unlink()
    permissions.rotate(home, "ward")
    assert not handed(home, there)  # they do not follow: somebody has to say that they are meant
    shutil.copy2(sealed_file(home, "ward"), there)
    assert ann.refusal == ""
    assert ann.groups.ring("ward").keys == watched_groups(home).keys("ward")  # type: ignore[union-attr]


def test_keys_of_another_authority_are_none(home: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    other = tmp_path / "other"
    permissions.init(other)
    permissions.add(other, "ann", "member")
    permissions.seal(other, "ward", ["patients/*"], roles=["member"])
    shutil.copy2(sealed_file(other, "ward"), home)
    assert "is not there, or not usable" in Member(home, "ann").refusal
    with pytest.raises(ConfigError, match="signature check failed"):
        permissions.rotate(home, "ward")
    permissions.add(home, "cat", "member")  # which does not need them
    assert "the group has no new keys: copy the file from a member, or remove it" in caplog.text
    sealed_file(home, "ward").unlink()
    made = permissions.rotate(home, "ward")
    assert made is not None
    assert made.members() == {"ann", "bob", "cat"}


def test_keys_are_rotated_when_they_are_old_and_given_when_asked(home: Path) -> None:
    assert permissions.rotate(home, "ward", older_than=timedelta(days=1)) is None
    made = permissions.rotate(home, "ward", older_than=timedelta())
    assert made is not None
    assert made.newest.number == 2
    permissions.add(home, "cat", "member")
    permissions.give(home, "cat", "ward", 2)
    ring = Member(home, "cat").groups.ring("ward")
    assert ring is not None
    assert [ring.secret(n) is not None for n in (1, 2, 3)] == [False, True, True]
    with pytest.raises(UsageError, match="hub is not of the group ward: there are ann, bob, cat"):
        permissions.give(home, "hub", "ward", 1)
    with pytest.raises(UsageError, match="has no epoch 4: the newest is 3"):
        permissions.give(home, "cat", "ward", 4)


def test_what_makes_no_group_is_one_sentence(home: Path) -> None:
    with pytest.raises(UsageError, match="a group has topics, and roles or names"):
        permissions.seal(home, "yard", ["x"])
    with pytest.raises(UsageError, match="there is a group ward already"):
        permissions.seal(home, "ward", ["x"], roles=["member"])
    with pytest.raises(UsageError, match="there is no group 'yard': there are ward"):
        permissions.rotate(home, "yard")
    with pytest.raises(ConfigError, match="has its \\* at the end"):
        permissions.seal(home, "yard", ["x*y"], roles=["member"])


def test_secrets_of_a_group_are_in_no_file(home: Path) -> None:
    ring = Member(home, "ann").groups.ring("ward")
    assert ring is not None
    assert ring.newest is not None
    secret = ring.newest.secret
    for path in home.iterdir():
        raw = path.read_bytes()
        assert secret not in raw
        assert b64encode(secret).rstrip(b"=")[:40] not in raw


def test_the_file_of_keys_is_open_and_says_who_is_a_member(home: Path) -> None:
    path = sealed_file(home, "ward")
    assert path.stat().st_mode & 0o777 == 0o644
    said = json.loads(path.read_bytes().split(b"\n")[1].partition(b" ")[0])
    assert sorted(said["keys"]) == ["ann", "bob"]
