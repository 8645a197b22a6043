"""Identities and their permissions, made and changed where the authority's key is.

A directory of keys has ``authority.pem`` and ``authority.key``, ``NAME.pem`` and ``NAME.key`` for each identity, and
``permissions.toml``. A call changes only its own subject in that file, and keeps people's text; it is signed anew.
"""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final
from uuid import UUID, uuid4

from chappe.api.keys import (
    AUTHORITY_DAYS,
    CERTIFICATE_DAYS,
    certificate_end,
    certificate_point,
    curve_public,
    load_authority,
    make_authority,
    make_certificate,
    renew_certificate,
    replace,
)
from chappe.api.sealing import Keepers
from chappe.data.terminal import line
from chappe.errors import ConfigError, UsageError
from chappe.permissions import text as texts
from chappe.permissions.rules import Group, Identity, Permissions
from chappe.sealing.epochs import GroupKeys
from chappe.security import authority_key_file, certificate_file, key_file, permissions_file
from chappe.storage.key_files import authority_check, read_permissions

ADMINISTRATOR: Final = "administrator"
HERE: Final = ("localhost", "127.0.0.1", "::1")
_RULES: Final = """\
# Who may do what in this network of chappe. Change the rules as you like, then sign them:
#     chappe permissions sign {path}
# Everything about keys is written by `chappe keys`.

version = 1
issued = {issued}
expires = {expires}

# The first rule that fits decides, so the most special stands first; what no rule fits is denied.
# allow or deny: verbs, or "everything". To whom: roles, or names; names = ["*"] is everybody.
# topics: "orders", or "orders/*" for all that begin so, or "*" for all.
# The verbs: produce, consume, store, introduce (run a tower), administer;
# publish, subscribe, forward, attach-master, attach-clone, write.

[[rules]]
allow = ["everything"]
roles = ["administrator"]
topics = ["*"]

[[rules]]
allow = ["introduce", "store", "produce", "consume", "publish", "subscribe", "forward", "attach-master", "attach-clone"]
roles = ["server"]
topics = ["*"]

[[rules]]
allow = ["produce", "publish", "attach-clone", "write"]
roles = ["producer"]
topics = ["*"]

[[rules]]
allow = ["consume", "subscribe", "attach-clone"]
roles = ["consumer"]
topics = ["*"]

[[rules]]
allow = ["produce", "consume", "publish", "subscribe", "forward", "attach-master", "attach-clone", "write"]
roles = ["member"]
topics = ["*"]
"""
ROLES: Final = (ADMINISTRATOR, "server", "producer", "consumer", "member")  # which the first file has rules for


def init(
    directory: str | Path,
    name: str = "admin",
    role: str = ADMINISTRATOR,
    *,
    hosts: Sequence[str] = HERE,
    days: float = AUTHORITY_DAYS,
) -> Identity:
    """Make an authority, a file of permissions with a rule for each role, and a first identity.

    Raises:
        UsageError: There is an authority already, or a name, role, host or number of days is not valid.
    """
    home = Path(directory)
    texts.check_name(name)
    texts.check_name(role, "a role")
    path = permissions_file(home)
    if path.exists():
        raise UsageError(f"{path} exists already: choose another directory, or remove it")
    make_authority(home, days=days)
    certificate, _ = load_authority(home)
    begin, end = (texts.moment(each) for each in (_now(), certificate.not_valid_after_utc))
    _write(home, _RULES.format(path=line(str(path)), issued=begin, expires=end), 1)
    return add(home, name, role, hosts=hosts)


def add(
    directory: str | Path,
    name: str,
    role: str,
    *,
    hosts: Sequence[str] = HERE,
    endpoint: str | UUID | None = "new",
    days: float = CERTIFICATE_DAYS,
    passphrase: str | None = None,
) -> Identity:
    """Make the keys of a program, and write it into the permissions.

    Args:
        role: The role that rules name. One without rules is refused.
        endpoint: The endpoint id of its certificate; ``new`` for a random one, None for a certificate that
            several programs share, or an original has.

    Raises:
        UsageError: The name is taken, there is no authority or no such role, or an argument is not valid.
    """
    home = Path(directory)
    texts.check_name(name)
    texts.check_name(role, "a role")
    with _changed(home) as change:
        found, _ = change.before
        if name in found.identities:
            raise UsageError(f"{name} exists already, and names are not used again: choose another")
        roles = {each for rule in found.rules for each in rule.roles}
        if role not in roles and not any("*" in rule.names or name in rule.names for rule in found.rules):
            raise UsageError(f"no rule names the role {role!a}: there are {', '.join(sorted(roles))}")
        uuid = uuid4() if endpoint == "new" else None if endpoint is None else UUID(str(endpoint))
        make_certificate(home, name, hosts=hosts, id=uuid, days=days, passphrase=passphrase)
        public, point = curve_public(home, name, passphrase), certificate_point(home, name)
        made = Identity(name, role, public, uuid, certificate_end(home, name), signs=point, hosts=tuple(hosts))
        try:
            change(lambda text: texts.with_identity(text, made))
        except BaseException:
            for each in (certificate_file(home, name), key_file(home, name)):
                with suppress(OSError):
                    each.unlink()
            raise
    return made


def renew(directory: str | Path, name: str, *, days: float = CERTIFICATE_DAYS) -> Identity:
    """Extend the life of an identity: another certificate with the same keys, hosts and endpoint id.

    Raises:
        UsageError: There is no such identity, or it was revoked.
    """
    home = Path(directory)
    with _changed(home) as change:
        former = _identity(change.before[0], name)
        if former.revoked is not None:
            raise UsageError(f"{name} was revoked: make another identity with `chappe keys add`")
        renew_certificate(home, name, days=days)
        end, point = certificate_end(home, name), certificate_point(home, name)

        def edit(text: str) -> str:
            return texts.with_line(texts.with_line(text, name, "expires", end), name, "signs", point)

        return _identity(change(edit), name)


def revoke(directory: str | Path, name: str) -> Identity:
    """Revoke an identity: members refuse it as soon as they have the file. Its name stays taken.

    Raises:
        UsageError: There is no such identity, or it was revoked already.
    """
    with _changed(Path(directory)) as change:
        if _identity(change.before[0], name).revoked is not None:
            raise UsageError(f"{name} was revoked already")
        return _identity(change(lambda text: texts.with_line(text, name, "revoked", _now())), name)


def seal(
    directory: str | Path, group: str, topics: Sequence[str], *, roles: Sequence[str] = (), names: Sequence[str] = ()
) -> GroupKeys:
    """Seal topics for a group; topics and members can be changed in the file later.

    Raises:
        UsageError: There is such a group already, or no role and no name is given.
        ConfigError: An argument is not valid.
    """
    home = Path(directory)
    texts.check_name(group, "a group")
    if not topics or not (roles or names):
        raise UsageError("a group has topics, and roles or names: --topic 'patients/*' --role doctor")
    made = Group(group, tuple(topics), frozenset(roles), frozenset(names))
    with _changed(home) as change:
        if any(each.name == group for each in change.before[0].sealed):
            raise UsageError(f"there is a group {group} already: change it in {permissions_file(home)}, and sign that")
        found = Keepers(home, change(lambda text: texts.with_group(text, made))).read(group)
    assert found is not None
    return found


def rotate(directory: str | Path, group: str, *, older_than: timedelta | None = None) -> GroupKeys | None:
    """Begin a fresh epoch of a group; None if the newest is not older. Raises UsageError: there is no such group."""
    with _changed(Path(directory)) as change:
        return Keepers(Path(directory), change.before[0]).rotate(group, older_than)


def give(directory: str | Path, name: str, group: str, since: int) -> GroupKeys:
    """Let a member of a group read records sealed before it joined, since an epoch.

    Raises UsageError: There is no such group, member or epoch.
    """
    with _changed(Path(directory)) as change:
        return Keepers(Path(directory), change.before[0]).give(group, name, since)


def read(directory: str | Path) -> Permissions:
    """Return the permissions of a directory, if the authority has signed them.

    Raises:
        UsageError: There is no file.
        ConfigError: It is not signed, too large or malformed.
    """
    return read_permissions(Path(directory))


def sign(path: str | Path) -> Permissions:
    """Sign a changed file of permissions, as the next version.

    Rules that deny nothing, or not to all whom they name, are signed: ``idle_denials`` of the result
    has them.

    Raises:
        ConfigError: It is malformed, or has ``roles = ["*"]``, which matches nobody; the text names the line.
        UsageError: The authority's key is not beside it.
    """
    file = Path(path)
    with _locked(file.parent):
        body, _ = texts.split(_read(file))
        try:
            found = texts.parse(body)
            texts.check_meant(found)
            return _write(file.parent, body.decode(), found.version + 1, file)
        except ConfigError as error:
            raise ConfigError(f"{file}: {error}") from None


class _Change:
    def __init__(self, home: Path) -> None:
        self._home = home
        raw = _read(permissions_file(home))
        try:
            certificate, _ = load_authority(home)
            self.before = (texts.verified(raw, _check_of(certificate)), texts.split(raw)[0].decode())
        except ConfigError as error:
            raise ConfigError(f"{permissions_file(home)}: {error}") from None

    def __call__(self, edit: Callable[[str], str]) -> Permissions:
        found, text = self.before
        return _write(self._home, edit(text), found.version + 1)


@contextmanager
def _changed(home: Path) -> Iterator[_Change]:
    with _locked(home):
        yield _Change(home)


@contextmanager
def _locked(home: Path) -> Iterator[None]:
    """Lock out concurrent changes of the file, of which one would be lost."""
    try:
        file = authority_key_file(home).open("rb")
    except FileNotFoundError as error:
        raise UsageError(f"{error.filename} does not exist: make an authority first with `chappe keys init`") from None
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _write(home: Path, text: str, version: int, path: Path | None = None) -> Permissions:
    """Sign a text as this version, after it was parsed."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    certificate, key = load_authority(home)
    text = texts.reissued(text, version, _now())
    found = texts.parse(text.encode())
    raw = texts.signed(text.encode(), lambda what: key.sign(what, ec.ECDSA(hashes.SHA256())))
    texts.verified(raw, _check_of(certificate))
    if found.sealed:  # first: who has the permissions and no keys waits
        Keepers(home, found).follow()
    replace(path or permissions_file(home), raw)
    return found


def _check_of(certificate: object) -> texts.Check:
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization

    assert isinstance(certificate, x509.Certificate)
    return authority_check(certificate.public_bytes(serialization.Encoding.PEM))


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(texts.FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist: `chappe keys init` makes it") from None


def _identity(found: Permissions, name: str) -> Identity:
    if name not in found.identities:
        known = ", ".join(sorted(found.identities)[:20]) or "none"
        raise UsageError(f"there is no identity {name[:100]!a}: there are {known}")
    return found.identities[name]


def _now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)
