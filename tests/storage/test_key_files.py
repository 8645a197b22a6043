"""Permissions that are watched, and files that are not what they should be."""

from __future__ import annotations

from pathlib import Path

import pytest

from chappe.api import permissions
from chappe.errors import ConfigError, UsageError
from chappe.security import Keys
from chappe.storage.key_files import CurveKeys, WatchedPermissions, curve_keys, read_permissions, watched_permissions


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("authority")
    permissions.init(home)
    permissions.add(home, "one", "member")
    return home


@pytest.fixture
def home(made: Path, tmp_path: Path) -> Path:
    """A directory of keys for each test."""
    for each in made.iterdir():
        (tmp_path / each.name).write_bytes(each.read_bytes())
        (tmp_path / each.name).chmod(each.stat().st_mode)
    return tmp_path


def test_a_newer_file_is_in_force_as_soon_as_it_is_looked_at(home: Path) -> None:
    watched = WatchedPermissions(home)
    public = curve_keys(Keys(home / "one")).public
    found = watched.holder(public)
    assert not isinstance(found, str)
    assert found.name == "one"
    assert not watched.refresh()

    permissions.revoke(home, "one")

    assert watched.refresh()
    assert "one was revoked" in str(watched.holder(public))


def test_who_begins_where_others_are_goes_by_the_newest_file(home: Path) -> None:
    watched = watched_permissions(home)
    assert "late" not in watched.permissions.identities
    permissions.add(home, "late", "member")
    assert watched_permissions(home) is watched
    assert "late" in watched.permissions.identities


def test_an_older_file_is_not_believed_again(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = home / "permissions.toml"
    former = path.read_bytes()
    permissions.revoke(home, "one")
    watched = WatchedPermissions(home)

    path.write_bytes(former)

    assert not watched.refresh()
    assert watched.permissions.identities["one"].revoked is not None
    assert "has version 3 and version 4 is in force" in caplog.text


def test_what_is_not_signed_changes_nothing(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = home / "permissions.toml"
    watched = WatchedPermissions(home)
    before = watched.permissions

    path.write_bytes(path.read_bytes() + b"# mine\n")
    assert not watched.refresh()
    assert not watched.refresh()
    path.unlink()
    assert not watched.refresh()

    assert watched.permissions is before
    assert [("not signed" in each.message, "does not exist" in each.message) for each in caplog.records] == [
        (True, False),
        (False, True),
    ]


def test_permissions_of_another_authority_are_none(home: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("other")
    permissions.init(other)
    (home / "permissions.toml").write_bytes((other / "permissions.toml").read_bytes())

    with pytest.raises(ConfigError, match="not as the authority signed it"):
        read_permissions(home)

    both = (home / "authority.pem").read_bytes() + (other / "authority.pem").read_bytes()
    (home / "authority.pem").write_bytes(both)  # while an authority is replaced
    assert read_permissions(home).version == 2


def test_a_program_that_runs_keeps_to_the_authority_that_it_began_with(
    home: Path, tmp_path_factory: pytest.TempPathFactory, caplog: pytest.LogCaptureFixture
) -> None:
    other = tmp_path_factory.mktemp("other")
    permissions.init(other)
    for _ in range(5):
        permissions.sign(other / "permissions.toml")  # a higher version than that in force
    watched = watched_permissions(home)
    public = curve_keys(Keys(home / "one")).public

    for name in ("authority.pem", "permissions.toml"):
        (home / name).write_bytes((other / name).read_bytes())

    assert not watched.refresh()
    assert not isinstance(watched.holder(public), str)
    assert "authority.pem is another one than when this program began" in caplog.text
    assert watched_permissions(home) is watched  # nor by who begins in the same program
    assert not watched.offer((other / "permissions.toml").read_bytes())
    assert isinstance(WatchedPermissions(home).holder(public), str)  # a program that starts goes by it


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_keys_that_others_may_replace_are_refused(home: Path, mode: int) -> None:
    home.chmod(mode)
    for use in (
        lambda: read_permissions(home),
        lambda: WatchedPermissions(home),
        lambda: curve_keys(Keys(home / "one")),
        lambda: permissions.renew(home, "one"),
    ):
        with pytest.raises(UsageError, match=f"others may write to {home}, which decides whom to trust: chmod go-w"):
            use()
    home.chmod(0o755)
    read_permissions(home)
    (home / "authority.pem").chmod(0o664)
    with pytest.raises(UsageError, match=r"others may write to .*authority\.pem"):
        read_permissions(home)


def test_an_authority_that_has_expired_signs_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not as the authority signed it"):
        permissions.init(tmp_path / "old", days=-1)


def test_files_that_are_no_keys_are_named(home: Path) -> None:
    (home / "one.key").write_bytes(b"nonsense")
    with pytest.raises(UsageError, match=r"one\.key has no key for the log"):
        curve_keys(Keys(home / "one"))
    (home / "authority.pem").write_bytes(b"nonsense")
    with pytest.raises(UsageError, match=r"authority\.pem does not hold the certificate"):
        read_permissions(home)
    with pytest.raises(UsageError, match="an identity is DIRECTORY/NAME"):
        Keys("")


def test_secrets_are_not_shown(home: Path) -> None:
    found = curve_keys(Keys(home / "one"))

    assert repr(found) == f"CurveKeys(public={found.public!r})"
    assert isinstance(found, CurveKeys)


def elsewhere(home: Path) -> Path:
    """The directory of a member on another machine, as it is now."""
    there = home.parent / f"{home.name}-there"
    there.mkdir()
    for each in ("authority.pem", "permissions.toml", "one.key"):
        (there / each).write_bytes((home / each).read_bytes())
        (there / each).chmod((home / each).stat().st_mode)
    return there


def test_a_newer_file_that_is_handed_on_is_in_force_and_kept(home: Path) -> None:
    there = elsewhere(home)
    watched = WatchedPermissions(there)
    former = watched.raw
    permissions.revoke(home, "one")
    newer = (home / "permissions.toml").read_bytes()

    assert watched.offer(newer)

    assert watched.changes == 1
    assert watched.permissions.identities["one"].revoked is not None
    assert watched.raw == newer == (there / "permissions.toml").read_bytes()
    assert not watched.refresh(), "its own writing is news"
    assert not watched.offer(newer)
    assert not watched.offer(former)
    assert (there / "permissions.toml").stat().st_mode & 0o777 == 0o644
    assert sorted(each.name for each in there.iterdir()) == ["authority.pem", "one.key", "permissions.toml"]


def test_what_is_handed_on_is_not_believed_without_a_signature(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    watched = WatchedPermissions(elsewhere(home))
    before = watched.permissions
    permissions.revoke(home, "one")
    newer = (home / "permissions.toml").read_bytes()
    body = newer.splitlines(keepends=True)

    for wrong in (
        newer[:-9] + b"AAAAAAAA\n",
        newer.replace(b'"everything"', b'"produce"'),
        b"".join(body[:-1]),
        b"",
        b"[" * 5_000 + body[-1],
        newer + b"#" * (1 << 20),
    ):
        assert not watched.offer(wrong)
        assert not watched.offer(wrong), "and the same again"

    assert watched.permissions is before
    assert "TOML" not in caplog.text, "it was parsed before its signature was looked at"
    assert len(caplog.records) == 7, "each is told once, but what is too large"
    assert watched.offer(newer)


def test_where_nothing_may_be_written_it_is_kept_in_memory(home: Path) -> None:
    there = elsewhere(home)
    watched = WatchedPermissions(there)
    former = watched.raw
    permissions.revoke(home, "one")
    newer = (home / "permissions.toml").read_bytes()
    (there / "permissions.toml").unlink()
    (there / "permissions.toml").mkdir()  # root may write everywhere

    assert watched.offer(newer)
    assert watched.raw == newer

    (there / "permissions.toml").rmdir()
    (there / "permissions.toml").write_bytes(former)
    assert not watched.refresh()
    assert watched.permissions.version == 4, "an older one was taken"


def test_where_people_write_versions_nothing_is_written_over(home: Path) -> None:
    path = home / "permissions.toml"
    watched = WatchedPermissions(home)
    former = path.read_bytes()
    permissions.revoke(home, "one")
    newer = path.read_bytes()
    path.write_bytes(former + b"# to be signed soon\n")

    assert watched.offer(newer)

    assert path.read_bytes().endswith(b"# to be signed soon\n")
