"""An authority of one's own, and the certificates and keys of programs.

Keys of certificates are ECDSA on P-256, those of ZeroMQ's sockets X25519; files are PEM, and both private keys stand
in one. A private key is readable only for its owner, and is never overwritten. ``api.permissions`` has the rules for
them.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Final
from uuid import UUID

from chappe.errors import ChappeError, UsageError
from chappe.permissions.text import check_name
from chappe.security import ID_PREFIX, Keys, authority_file, authority_key_file, certificate_file, key_file
from chappe.storage.key_files import NEEDS, curve_keys, read_private

try:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    from chappe.sealing.primitives import point_of
except ImportError:
    raise ChappeError(NEEDS) from None

AUTHORITY_DAYS: Final = 3650
CERTIFICATE_DAYS: Final = 397  # what browsers take at most; endpoints would take any
CLOCK_SKEW: Final = timedelta(hours=1)  # certificates begin so much earlier: not all clocks agree
EARLIEST_END: Final = datetime(1950, 1, 1, tzinfo=UTC) + CLOCK_SKEW  # bound of X.509


def make_authority(directory: str | Path, *, days: float = AUTHORITY_DAYS) -> Path:
    """Make an authority in ``directory``; return the file of its certificate, which every endpoint needs.

    Raises:
        UsageError: There is one already, or no certificate can be valid for that long.
    """
    home = Path(directory)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"chappe authority {os.urandom(4).hex()}")])
    usage = _usage("key_cert_sign", "crl_sign")
    made = (
        _certificate(name, name, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    _write_keys(authority_key_file(home), [key], None)
    _write(authority_file(home), made.public_bytes(serialization.Encoding.PEM), 0o644)
    return authority_file(home)


def make_certificate(
    directory: str | Path,
    name: str,
    *,
    hosts: Sequence[str] = ("localhost", "127.0.0.1"),
    id: str | UUID | None = None,
    days: float = CERTIFICATE_DAYS,
    passphrase: str | None = None,
) -> Path:
    """Make the certificate and the keys of a program with the authority in ``directory``.

    Returns the file of the certificate.

    Args:
        directory: Where ``make_authority`` put the authority.
        name: The name of the files, and the certificate's common name: letters, digits, dots, dashes, underscores, in
            at most 64 bytes.
        hosts: Names and addresses by which others dial it.
        id: The endpoint id that it names; an endpoint that uses it then has this id and no other may. None for a
            certificate that several endpoints share, or an original has; it may be used with any id that none names.
        days: Its validity in days; negative makes an expired one.
        passphrase: Encrypts the key.

    Raises:
        UsageError: The name is taken, the name or a host is not valid, there is no authority, or no certificate can
            be valid for that long.
    """
    home = Path(directory)
    check_name(name, "a certificate")
    key = ec.generate_private_key(ec.SECP256R1())
    names: list[x509.GeneralName] = [_host(each) for each in hosts]
    if id is not None:
        names.append(x509.UniformResourceIdentifier(ID_PREFIX + str(id)))
    if not names:
        raise UsageError("a certificate needs a host or an endpoint id: --host HOST, or no --no-id")
    made = _signed(home, name, key.public_key(), x509.SubjectAlternativeName(names), days)
    _write_keys(key_file(home, name), [key, X25519PrivateKey.generate()], passphrase)
    _write(certificate_file(home, name), made, 0o644)
    return certificate_file(home, name)


def renew_certificate(directory: str | Path, name: str, *, days: float = CERTIFICATE_DAYS) -> Path:
    """Replace a certificate by one with the same key, hosts and endpoint id; return its file.

    Raises:
        UsageError: There is none, or none that this module made.
    """
    path = certificate_file(Path(directory), check_name(name, "a certificate"))
    try:
        former = x509.load_pem_x509_certificate(path.read_bytes())
        names = former.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (FileNotFoundError, ValueError, x509.ExtensionNotFound):
        raise UsageError(f"{path} is no certificate that can be renewed: `chappe keys add` makes one") from None
    key = former.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise UsageError(f"{path} is no certificate that can be renewed: `chappe keys add` makes one")
    replace(path, _signed(Path(directory), name, key, names, days))
    return path


def certificate_end(directory: str | Path, name: str) -> datetime:
    made = x509.load_pem_x509_certificate(certificate_file(Path(directory), name).read_bytes())
    return made.not_valid_after_utc


def certificate_point(directory: str | Path, name: str) -> bytes:
    """Return the public key of a certificate, in the form of permissions."""
    made = x509.load_pem_x509_certificate(certificate_file(Path(directory), name).read_bytes())
    key = made.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise UsageError(f"{certificate_file(Path(directory), name)} is no certificate that `chappe keys add` made")
    return point_of(key)


def curve_public(directory: str | Path, name: str, passphrase: str | None = None) -> bytes:
    """Return the public key of an identity's ZeroMQ sockets."""
    return curve_keys(Keys(Path(directory) / name, passphrase)).public


def load_authority(home: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """Return the authority's certificate and private key. Raises UsageError."""
    path = authority_key_file(home)
    try:
        certificate = x509.load_pem_x509_certificate(authority_file(home).read_bytes())
        key: PrivateKeyTypes = serialization.load_pem_private_key(read_private(path), None)
    except FileNotFoundError as error:
        raise UsageError(f"{error.filename} does not exist: make an authority first with `chappe keys init`") from None
    except (ValueError, TypeError):
        raise UsageError(f"{path} is no private key that `chappe keys init` made") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise UsageError(f"{path} is no private key that `chappe keys init` made")
    return certificate, key


def _signed(
    home: Path, name: str, key: ec.EllipticCurvePublicKey, names: x509.SubjectAlternativeName, days: float
) -> bytes:
    authority, authority_key = load_authority(home)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    purposes = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    return (
        _certificate(subject, authority.subject, key, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage("digital_signature"), critical=True)
        .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        .add_extension(names, critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
        .public_bytes(serialization.Encoding.PEM)
    )


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: float
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    try:
        end = now + timedelta(days=days)
        if end < EARLIEST_END:
            raise OverflowError
    except (OverflowError, ValueError):
        raise UsageError(
            f"no certificate can be valid for {days:g} days: it has to end between 1950 and 9999"
        ) from None
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(now, end) - CLOCK_SKEW)
        .not_valid_after(end)
    )


def _usage(*wanted: str) -> x509.KeyUsage:
    return x509.KeyUsage(**{each: each in wanted for each in inspect.signature(x509.KeyUsage).parameters})


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(text))
    except ValueError:
        pass
    if not text or len(text) > 253 or not text.isascii() or not all(c.isalnum() or c in ".-*" for c in text):
        raise UsageError(f"{text!r} is not a host: a name such as sensor.example.org, or an address")
    return x509.DNSName(text)


def _write_keys(
    path: Path, keys: Sequence[ec.EllipticCurvePrivateKey | X25519PrivateKey], passphrase: str | None
) -> None:
    encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if passphrase is not None:
        encryption = serialization.BestAvailableEncryption(passphrase.encode())
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
    _write(path, b"".join(each.private_bytes(*form) for each in keys), 0o600)


def replace(path: Path, raw: bytes) -> None:
    """Replace a file that everybody may read, in one step."""
    passing = path.with_name(f".{path.name}.new")
    passing.unlink(missing_ok=True)
    _write(passing, raw, 0o644)
    passing.replace(path)


def _write(path: Path, raw: bytes, mode: int) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError:
        raise UsageError(f"{path} exists already: choose another name, or remove it") from None
    with os.fdopen(descriptor, "wb") as file:
        file.write(raw)
        file.flush()
        os.fsync(file.fileno())
