"""Files of keys, read: a private key that only its owner may read, and permissions that the authority has signed.

Secrets are handed to whoever needs them and stand in no text: not in errors, not in ``repr``, not in logs.
"""

from __future__ import annotations

import logging
import os
import stat
import threading
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Final, TypeAlias

from chappe.errors import ChappeError, ConfigError, UsageError
from chappe.permissions.rules import Identity, Permissions
from chappe.permissions.text import FILE_BYTES_MAX, Check, InForce
from chappe.security import Keys, authority_file, authority_key_file, key_file, permissions_file
from chappe.system import machine, time

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

logger = logging.getLogger(__name__)

KEY_FILE_BYTES_MAX: Final = 1 << 16
Stamp: TypeAlias = tuple[int, int, int]
PEM_END: Final = b"-----END "
NEEDS: Final = "keys need the packages cryptography and blake3: pip install 'chappe[tls]'"


@dataclass(frozen=True, slots=True)
class CurveKeys:
    public: bytes
    secret: bytes = field(repr=False)


def check_unchangeable(path: Path) -> None:
    """Raise UsageError if others may write to a file, or add files to a directory.

    Such users could substitute another authority or other keys. A directory with the sticky bit, such as ``/tmp``, is
    allowed: others cannot replace files there.
    """
    try:
        mode = path.stat().st_mode
    except OSError:
        return  # the reader reports it
    if mode & 0o022 and not (stat.S_ISDIR(mode) and mode & stat.S_ISVTX):
        raise UsageError(f"others may write to {path}, which decides whom to trust: chmod go-w {path}")


def check_private(path: Path) -> None:
    """Raise UsageError if others can read a file (a group may read root's, as for services) or replace it."""
    check_unchangeable(path.parent)
    try:
        found = path.stat()
    except OSError:
        return  # the reader reports it
    forbidden = 0o037 if found.st_uid == 0 and os.geteuid() != 0 else 0o077
    if stat.S_IMODE(found.st_mode) & forbidden:
        raise UsageError(f"{path} is a private key that others can read: chmod 600 {path}")


def read_private(path: Path) -> bytes:
    """Read a private file. Raises UsageError if others can read it, or we cannot."""
    check_private(path)
    return _read(path, KEY_FILE_BYTES_MAX, "`chappe keys add` makes keys")


def stamp_of(path: Path) -> Stamp | None:
    """Return a value that changes with the file; None if it does not exist."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def put_beside(path: Path, raw: bytes) -> None:
    """Replace a file that everybody may read by another, in one step; processes may do so at once."""
    with NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        passing = Path(file.name)
        try:
            os.fchmod(file.fileno(), 0o644)
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
            passing.replace(path)
        except BaseException:
            passing.unlink(missing_ok=True)
            raise


def read_permissions(directory: Path) -> Permissions:
    """The permissions in a directory of keys, if its authority has signed them. Raises as ``read_in_force``."""
    return read_in_force(directory).permissions


def read_in_force(directory: Path) -> InForce:
    """The permissions in a directory of keys, if its authority has signed them.

    Raises:
        UsageError: There are none.
        ConfigError: They are not signed so, too large or malformed.
        ChappeError: The package cryptography or blake3 is missing.
    """
    return _in_force(directory, _check_by(directory, _raw_authority(directory)))


def _raw_authority(directory: Path) -> bytes:
    authority = authority_file(directory)
    check_unchangeable(directory)
    check_unchangeable(authority)
    return _read(authority, KEY_FILE_BYTES_MAX, "`chappe keys init` makes one")


def _check_by(directory: Path, certificates: bytes) -> Check:
    try:
        return authority_check(certificates)
    except ValueError:
        raise UsageError(
            f"{authority_file(directory)} does not hold the certificate of an authority in PEM form"
        ) from None


def _read_raw(directory: Path) -> bytes:
    return _read(permissions_file(directory), FILE_BYTES_MAX + 1, "`chappe keys init` makes it")


def _in_force(directory: Path, check: Check) -> InForce:
    try:
        return InForce(_read_raw(directory), check)
    except ConfigError as error:
        raise ConfigError(f"{permissions_file(directory)}: {error}") from None


def authority_check(certificates: bytes) -> Check:
    """Return the check of signatures by any of some authorities; each counts as long as its certificate is valid.

    Raises:
        ValueError: These are not certificates in PEM form.
        ChappeError: The package cryptography or blake3 is missing.
    """
    try:
        import blake3  # noqa: F401  sealing needs it, which finds nobody to tell so
        from cryptography import x509
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError:
        raise ChappeError(NEEDS) from None
    found = x509.load_pem_x509_certificates(certificates)
    keys = [(each.public_key(), each.not_valid_before_utc, each.not_valid_after_utc) for each in found]

    def check(signature: bytes, text: bytes) -> bool:
        now = time.utc_now()
        for key, begin, end in keys:
            if not begin <= now < end or not isinstance(key, ec.EllipticCurvePublicKey):
                continue
            try:
                key.verify(signature, text, ec.ECDSA(hashes.SHA256()))
                return True
            except InvalidSignature:
                pass
        return False

    return check


def curve_keys(keys: Keys) -> CurveKeys:
    """The keys of an identity's ZeroMQ sockets: the second in its private file. Raises UsageError: there are none,
    others can read them, or the passphrase is wrong or missing.
    """
    path = key_file(keys.directory, keys.name)
    _, _, rest = read_private(path).partition(PEM_END)
    at = rest.find(b"-----BEGIN ")
    if at < 0:
        raise UsageError(f"{path} has no key for the log: make it anew with `chappe keys add`")
    secret = _load(rest[at:], keys.passphrase, path)
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    if not isinstance(secret, X25519PrivateKey):
        raise UsageError(f"{path} has no key for the log: make it anew with `chappe keys add`")
    return CurveKeys(secret.public_key().public_bytes_raw(), secret.private_bytes_raw())


def signing_key(keys: Keys) -> EllipticCurvePrivateKey:
    """The key of an identity's certificate: the first in its private file. Raises UsageError as ``curve_keys``."""
    path = key_file(keys.directory, keys.name)
    secret = _load(read_private(path), keys.passphrase, path)
    from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey

    if not isinstance(secret, EllipticCurvePrivateKey) or not isinstance(secret.curve, SECP256R1):
        raise UsageError(f"{path} has no key that signs records: make it anew with `chappe keys add`")
    return secret


def _load(pem: bytes, passphrase: str | None, path: Path) -> PrivateKeyTypes:
    try:
        from cryptography.hazmat.primitives import serialization
    except ImportError:
        raise ChappeError(NEEDS) from None
    encrypted = b"ENCRYPTED" in pem.partition(b"\n")[0]
    if encrypted and passphrase is None:
        raise UsageError(f"{path} is encrypted: give its passphrase")
    try:
        return serialization.load_pem_private_key(pem, passphrase.encode() if encrypted and passphrase else None)
    except (ValueError, TypeError):
        wrong = f"{path} holds no private key in PEM form"
        raise UsageError(f"the passphrase is not that of {path}, or {wrong}" if encrypted else wrong) from None


def _read(path: Path, bytes_max: int, hint: str) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(bytes_max)
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist: {hint}") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None


class WatchedPermissions:
    """The permissions in a directory, looked at again whenever their file has changed, and newer ones from others.

    The authority is read once; a replacement applies to programs that start later. Replacing both files
    does not affect a running program, nor the certificates that its later endpoints trust (``authority_in_use``).
    Versions only grow: a file that is older than the one in force, or not signed, changes nothing and is logged once.
    A newer one that somebody handed on is written into the directory, if we may write there and the authority's key is
    elsewhere: where that is, people write versions. Any thread may call.

    Attributes:
        changes: Rises whenever others are in force.
        authority: The certificates of the authority, in PEM form.
        check: Checks the authority's signatures.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._lock = threading.Lock()
        self._stamp = stamp_of(permissions_file(self.directory))
        self._authority = stamp_of(authority_file(directory))
        self.authority = _raw_authority(directory)
        self.check = _check_by(directory, self.authority)
        self._now = _in_force(directory, self.check)

    @property
    def permissions(self) -> Permissions:
        return self._now.permissions

    @property
    def raw(self) -> bytes:
        return self._now.raw

    @property
    def changes(self) -> int:
        return self._now.changes

    def refresh(self) -> bool:
        with self._lock:
            return self._refresh()

    def offer(self, raw: bytes) -> bool:
        """Take permissions that another member hands on, if signed and newer; return whether they are in force now."""
        with self._lock:
            try:
                if not self._now.offer(raw):
                    return False
            except ConfigError as error:
                logger.warning("permissions that another member handed on are not taken: %s", error)
                return False
            logger.info("version %d of the permissions is in force: it was handed on", self.permissions.version)
            self._keep(raw)
            return True

    def holder(self, public: bytes) -> Identity | str:
        """Return the identity that has this CURVE key now, or why none that may do anything has it."""
        return self.permissions.holder(public, time.utc_now())

    def _refresh(self) -> bool:
        stamp = stamp_of(permissions_file(self.directory))
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        path, former = permissions_file(self.directory), self.permissions.version
        try:
            found = self._now.replace(_read_raw(self.directory)).version
        except ConfigError as error:
            logger.warning("%s: %s%s; what was in force stays so", path, error, self._other_authority())
            return False
        except ChappeError as error:
            logger.warning("%s; what was in force stays so", error)
            return False
        if found < former:
            logger.warning("%s has version %d and version %d is in force: it stays so", path, found, former)
        return found >= former

    def _other_authority(self) -> str:
        path = authority_file(self.directory)
        if stamp_of(path) == self._authority:
            return ""
        return f". {path} is another one than when this program began, which counts for programs that start from now on"

    def _keep(self, raw: bytes) -> None:
        if authority_key_file(self.directory).exists() or stamp_of(permissions_file(self.directory)) != self._stamp:
            return
        try:
            put_beside(permissions_file(self.directory), raw)
        except OSError as error:
            logger.info("permissions that were handed on are kept in memory alone: %s", error.strerror)
            return
        self._stamp = stamp_of(permissions_file(self.directory))


_guard = threading.Lock()


def _watched() -> dict[Path, WatchedPermissions]:
    """Return those of this process: as many as there are directories of keys."""
    found: dict[Path, WatchedPermissions] = machine.current().once.setdefault(WatchedPermissions, {})
    return found


def authority_in_use(path: Path) -> bytes | None:
    """The content of an ``authority.pem`` when this process began to go by the permissions beside it, or None."""
    with _guard:
        found = _watched().get(path.parent.resolve())
    return found.authority if found is not None and path == authority_file(path.parent) else None


def watched_permissions(directory: Path) -> WatchedPermissions:
    """Return a directory's permissions in force, shared by all of the process. Raises as ``read_in_force``."""
    home = directory.resolve()
    with _guard:
        watched = _watched()
        found = watched.get(home)
        if found is None:
            found = watched[home] = WatchedPermissions(directory)
        else:
            _read_raw(directory)  # reports a missing file to the caller now
            check_unchangeable(directory)
            found.refresh()  # ... and may have been added a moment ago
        return found


def _forked() -> None:
    global _guard
    _guard = threading.Lock()  # another thread of the parent may have held it


os.register_at_fork(after_in_child=_forked)
