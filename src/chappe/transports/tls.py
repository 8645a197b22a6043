"""TLS as ``chappe.security`` describes it, and one sentence for each way in which it fails.

Source: ``protocols/broker.md`` section 1.7 for what an unconfigured original speaks. Departures: TLS 1.3 only where
there are certificates, and the host or the endpoint id is checked; the original checks the authority alone.
"""

from __future__ import annotations

import ssl
from collections import OrderedDict
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, TypeVar
from uuid import UUID

from chappe.defaults import BINDINGS_MAX
from chappe.errors import UsageError
from chappe.security import ID_PREFIX, Security, Tls
from chappe.storage.key_files import authority_in_use, check_private

ANONYMOUS_CIPHER: Final = "AECDH-AES256-SHA@SECLEVEL=0"
ANONYMOUS_CURVE: Final = "secp384r1"
KEY_BYTES: Final = 16  # of what tells one key from others
_LOOPS_MAX: Final = 20  # exchanges of a handshake with oneself; TLS 1.3 needs three

_INTEGER: Final = 0x02  # tags of DER
_SEQUENCE: Final = 0x30
_VERSION: Final = 0xA0

_EXPIRED: Final = 10
_NOT_YET_VALID: Final = 9
_WRONG_HOST: Final = (62, 64)  # of a name, of an address
_MEND_EXPIRED: Final = "make a new one with `chappe keys renew`"
_OUR_FAULT: Final = "the peer refused our certificate"

# What OpenSSL calls it, and what it means here.
_SENTENCES: Final = {
    "TLSV1_ALERT_UNKNOWN_CA": f"{_OUR_FAULT}: it trusts another authority",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": f"{_OUR_FAULT}: it has expired; {_MEND_EXPIRED}",
    "SSLV3_ALERT_BAD_CERTIFICATE": f"{_OUR_FAULT}: it is not made for this host or has expired",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": f"{_OUR_FAULT}: it is not made for this host",
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE": f"{_OUR_FAULT}: it is not made for this use",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "the peer wants a certificate and got none: give both ends security=Tls(...)",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the peer sent no certificate: give both ends security=Tls(...)",
}
_NOTHING_IN_COMMON: Final = (
    "the peer's TLS and ours have nothing in common: give both ends the same security (certificates, or 'anonymous')"
)
_NOTHING: Final = {
    "NO_SHARED_CIPHER",
    "SSLV3_ALERT_HANDSHAKE_FAILURE",
    "TLSV1_ALERT_PROTOCOL_VERSION",
    "TLSV1_ALERT_INSUFFICIENT_SECURITY",
    "UNSUPPORTED_PROTOCOL",
    "NO_PROTOCOLS_AVAILABLE",
    "WRONG_VERSION_NUMBER",
    "NO_SUITABLE_SIGNATURE_ALGORITHM",
}


@dataclass(frozen=True)
class Contexts:
    """The contexts that the connections of one endpoint share.

    Attributes:
        dialling: For connections that we open.
        accepting: For those that we accept.
        check: The ``check`` of ``Tls``; ``authority`` without certificates.
    """

    dialling: ssl.SSLContext
    accepting: ssl.SSLContext
    check: str

    @cached_property
    def ids(self) -> frozenset[bytes]:
        """The endpoint ids that our own certificate names. A handshake with ourselves tells, and whether our own
        authority takes our certificate. Raises UsageError: it does not.
        """
        if self.check == "authority" and not self.accepting.verify_mode:
            return frozenset()
        wires = [ssl.MemoryBIO() for _ in range(2)]
        here = self.dialling.check_hostname
        self.dialling.check_hostname = False  # we know our own host
        try:
            dialler = self.dialling.wrap_bio(wires[0], wires[1])
        finally:
            self.dialling.check_hostname = here
        acceptor = self.accepting.wrap_bio(wires[1], wires[0], server_side=True)
        for _ in range(_LOOPS_MAX):
            done = True
            for end in (dialler, acceptor):
                try:
                    end.do_handshake()
                except ssl.SSLWantReadError:
                    done = False
                except ssl.SSLError as error:
                    raise UsageError(f"our own certificate cannot be used: {explain(error)}") from None
            if done:
                break
        return named_ids(dialler)

    def wrap(self, host: str | None) -> TlsWire:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        if host is None:
            return TlsWire(self.accepting.wrap_bio(incoming, outgoing, server_side=True), incoming, outgoing)
        return TlsWire(self.dialling.wrap_bio(incoming, outgoing, server_hostname=host), incoming, outgoing)


@dataclass(frozen=True, slots=True)
class TlsWire:
    """TLS of one connection, between the bytes of its socket and those of its frames."""

    tls: ssl.SSLObject
    incoming: ssl.MemoryBIO
    outgoing: ssl.MemoryBIO


def contexts(security: Security) -> Contexts | None:
    """Return the contexts for ``security``; None for plain connections. Raises UsageError: a file is missing or wrong;
    the text says which and what to do.
    """
    if isinstance(security, Tls):
        found = Contexts(_authenticated(security, True), _authenticated(security, False), security.check)
        named = found.ids
        if security.check == "id" and not named:
            raise UsageError(
                f"{security.certificate} names no endpoint id, which check='id' asks of all: make one with "
                "`chappe keys add NAME --role ROLE`"
            )
        return found
    if security == "anonymous":
        return Contexts(_anonymous(True), _anonymous(False), "authority")
    return None


def _authenticated(security: Tls, dialling: bool) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT if dialling else ssl.PROTOCOL_TLS_SERVER)
    made.minimum_version = ssl.TLSVersion.TLSv1_3
    made.check_hostname = dialling and security.check == "host"
    made.verify_mode = ssl.CERT_REQUIRED
    if not dialling:
        made.num_tickets = 0  # connections are not resumed
    _load_authority(made, Path(security.authority))
    _load_own(made, security)
    return made


def _load_authority(made: ssl.SSLContext, authority: Path) -> None:
    in_use = authority_in_use(authority)
    try:
        if in_use is not None:
            made.load_verify_locations(cadata=in_use.decode("ascii", "ignore"))  # what is beside PEM may be any text
        elif authority.is_dir():
            made.load_verify_locations(capath=authority)
        else:
            made.load_verify_locations(cafile=authority)
    except FileNotFoundError:
        raise UsageError(f"{authority} does not exist: `chappe keys init` makes one") from None
    except (OSError, ssl.SSLError):
        raise UsageError(f"{authority} does not hold the certificate of an authority in PEM form") from None


def _load_own(made: ssl.SSLContext, security: Tls) -> None:
    def passphrase() -> str:
        if security.passphrase is None:  # OpenSSL would ask at the terminal
            raise UsageError(f"{security.key} is encrypted: give its passphrase")
        return security.passphrase

    for file in (security.certificate, security.key):
        if not Path(file).is_file():
            raise UsageError(f"{file} does not exist: `chappe keys add NAME` makes a certificate and its key")
    check_private(Path(security.key))
    try:
        made.load_cert_chain(security.certificate, security.key, passphrase)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise UsageError(f"{security.key} is not the key of {security.certificate}") from None
        wrong = f"{security.certificate} and {security.key} are not a certificate and its key in PEM form"
        if security.passphrase is not None:  # OpenSSL does not tell these apart
            wrong = f"the passphrase is not that of {security.key}, or {wrong}"
        raise UsageError(wrong) from None
    except PermissionError:
        raise UsageError(f"{security.key} cannot be read by this user") from None


def _anonymous(dialling: bool) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT if dialling else ssl.PROTOCOL_TLS_SERVER)
    made.check_hostname = False
    made.verify_mode = ssl.CERT_NONE
    made.minimum_version = made.maximum_version = ssl.TLSVersion.TLSv1_2
    try:
        made.set_ciphers(ANONYMOUS_CIPHER)
        made.set_ecdh_curve(ANONYMOUS_CURVE)
    except ssl.SSLError:
        raise UsageError(
            f"the TLS library of this Python ({ssl.OPENSSL_VERSION}) has no anonymous TLS: use certificates"
        ) from None
    return made


def named_ids(tls: ssl.SSLObject) -> frozenset[bytes]:
    found: dict[str, Any] = tls.getpeercert() or {}
    names = [name for kind, name in found.get("subjectAltName", ()) if kind == "URI" and name.startswith(ID_PREFIX)]
    ids = set()
    for name in names:
        try:
            ids.add(UUID(name.removeprefix(ID_PREFIX)).bytes)
        except ValueError:
            pass  # somebody else's use of such names
    return frozenset(ids)


def named_identity(tls: ssl.SSLObject | ssl.SSLSocket) -> str:
    """The identity that the peer's certificate names: its only common name; empty without one."""
    found: dict[str, Any] = tls.getpeercert() or {}
    names = [value for part in found.get("subject", ()) for kind, value in part if kind == "commonName"]
    return names[0] if len(names) == 1 else ""


def key_of(tls: ssl.SSLObject) -> bytes | None:
    """Return a digest of the peer certificate's key, which its renewal may keep; None without one."""
    raw = tls.getpeercert(binary_form=True)
    if raw is None:
        return None
    try:
        public = _public_key(raw)
    except (IndexError, ValueError):  # DER that OpenSSL takes and we do not
        public = raw
    return sha256(public).digest()[:KEY_BYTES]


def _public_key(certificate: bytes) -> bytes:
    """The SubjectPublicKeyInfo of a certificate in DER (RFC 5280, 4.1)."""
    at, _ = _element(certificate, 0, _SEQUENCE)  # Certificate
    at, _ = _element(certificate, at, _SEQUENCE)  # TBSCertificate
    if certificate[at] == _VERSION:
        _, at = _element(certificate, at, _VERSION)
    for tag in (_INTEGER, _SEQUENCE, _SEQUENCE, _SEQUENCE, _SEQUENCE):  # serial, algorithm, issuer, validity, subject
        _, at = _element(certificate, at, tag)
    _, end = _element(certificate, at, _SEQUENCE)
    return certificate[at:end]


def _element(der: bytes, at: int, tag: int) -> tuple[int, int]:
    """Return where the contents of the element at ``at`` begin and end."""
    if der[at] != tag:
        raise ValueError(f"there is {der[at]} and not {tag}")
    length, at = der[at + 1], at + 2
    if length > 0x80:
        more = length & 0x7F
        length, at = int.from_bytes(der[at : at + more]), at + more
    elif length == 0x80:
        raise ValueError("the length is not told")
    if at + length > len(der):
        raise ValueError("it is cut off")
    return at, at + length


def explain(error: ssl.SSLError) -> str:
    """Return the cause of a failure of TLS, and what to do, in one sentence without its end."""
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code == _EXPIRED:
            return f"the certificate has expired: {_MEND_EXPIRED}"
        if error.verify_code == _NOT_YET_VALID:
            return "the certificate is not valid yet: compare the clocks of both machines"
        if error.verify_code in _WRONG_HOST:
            return f"{error.verify_message.rstrip('.')}: dial a host that it names, or make one that names this host"
        return f"the certificate is not of our authority ({error.verify_message})"
    reason = error.reason or ""
    if reason in _NOTHING:
        return _NOTHING_IN_COMMON
    return _SENTENCES.get(reason, f"TLS failed ({reason.lower().replace('_', ' ') or 'no reason given'})")


Value = TypeVar("Value")

NOT_NAMED: Final = "the peer states another endpoint id than its certificate names"
NAMED_ELSEWHERE: Final = "the peer states an endpoint id that another certificate names"
CLAIMED: Final = (
    "the peer states an endpoint id that is used with another certificate: give each its own id, or certificates that"
    " name one (`chappe keys add`)"
)


class Bindings:
    """The endpoint ids that each certificate may use, as far as one endpoint has seen.

    ``mesh.link_states`` has what others saw.

    A certificate that names ids may use these and no others, and no other certificate may use them: a peer that claimed
    one of them without being named gives way. Certificates that name none, as originals have them, may use any other
    id; the key that is the first to peer with it keeps it, as long as it is remembered.

    Args:
        own: The ids that our own certificate names, or else the id that we use.
    """

    def __init__(self, own: frozenset[bytes]) -> None:
        self._own = own
        self._named: OrderedDict[bytes, None] = OrderedDict()  # ids; the one used last comes last
        self._claimed: OrderedDict[bytes, bytes] = OrderedDict()  # id: the key that used it

    def refusal(self, stated: bytes, named: frozenset[bytes], key: bytes | None) -> str | None:
        """Return why a peer may not use the id that it states; None if it may.

        Args:
            named: The ids that its certificate names, which are remembered.
            key: Of the certificate; None where there are none.
        """
        if key is None:
            return None
        if named:
            if stated not in named:
                return NOT_NAMED
            self._claimed.pop(stated, None)
            _remember(self._named, stated, None)
            return None
        if stated in self._named or stated in self._own:
            return NAMED_ELSEWHERE
        return None if self._claimed.get(stated, key) == key else CLAIMED

    def peered(self, stated: bytes, key: bytes) -> None:
        _remember(self._claimed, stated, key)


def _remember(table: OrderedDict[bytes, Value], key: bytes, value: Value) -> None:
    table[key] = value
    table.move_to_end(key)
    if len(table) > BINDINGS_MAX:
        table.popitem(last=False)
