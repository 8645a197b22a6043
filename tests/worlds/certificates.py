"""Certificates in a world: what TLS makes known of both ends of a connection, without its cryptography and its chance.

``PlainContext`` stands in for ``ssl.SSLContext``: an end says its certificate in plain text, and what comes afterwards
is as it was sent. A certificate is a few lines: of which authority it is, the identity, a digest of its key, and names.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from tests.worlds.sealing import AUTHORITY, pem_of

from chappe.security import ID_PREFIX, authority_file, certificate_file, key_file

HOST: Final = "127.0.0.1"  # that all certificates name
HEAD_BYTES: Final = 5  # of a record, as TLS has it
SAID: Final = b"\x16\x03\x03"  # what it begins with in a handshake ...
ALERT: Final = b"\x15\x03\x03"  # ... and what one begins with that says why there is none
_HELLO: Final = b"hello"
_UNKNOWN: Final = 20  # the number by which OpenSSL says that an issuer is unknown
_WRONG_HOST: Final = 64


def write_identity(directory: Path, name: str, ids: Iterable[UUID] = (), authority: str = AUTHORITY) -> None:
    """Make the files of an identity, as ``chappe keys add`` does; ``permissions.toml`` is not among them."""
    directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    authority_file(directory).write_text(authority)
    secret = key_file(directory, name)
    secret.touch(0o600)
    secret.write_bytes(pem_of(name))
    certificate = [authority, name, _digest(secret), HOST, *[ID_PREFIX + str(each) for each in ids]]
    certificate_file(directory, name).write_text("\n".join(certificate))


def _digest(key: str | Path) -> str:
    return sha256(Path(key).read_bytes()).hexdigest()


class PlainContext:
    """What ``transports.tls`` uses of ``ssl.SSLContext``."""

    minimum_version: Any = None
    verify_mode = ssl.CERT_NONE
    check_hostname = False
    num_tickets = 2

    def __init__(self, protocol: int) -> None:
        self.authority = ""
        self.certificate: list[str] = []

    def load_verify_locations(self, cafile: Path | None = None, capath: Path | None = None, cadata: str = "") -> None:
        self.authority = cadata if cafile is None else cafile.read_text()

    def load_cert_chain(self, certificate: Path, key: Path, passphrase: Any) -> None:
        lines = Path(certificate).read_text().split("\n")
        if lines[2] != _digest(key):
            raise _refused(ssl.SSLError(1, "wrong key"), reason="KEY_VALUES_MISMATCH")
        self.certificate = lines

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | None = None,
    ) -> _Session:
        return _Session(self, incoming, outgoing, not server_side, server_hostname)


class _Session:
    """What ``transports.tls`` and ``tcp`` use of ``ssl.SSLObject``."""

    def __init__(
        self, context: PlainContext, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, dials: bool, host: str | None
    ) -> None:
        self._context = context
        self._host = host if context.check_hostname else None
        self._incoming, self._outgoing = incoming, outgoing
        self._dials = self._greets = dials
        self._rest = b""
        self._peer: list[str] = []
        self._reads = False

    def do_handshake(self) -> None:
        if self._greets:
            self._greets = False
            self._say(SAID, _HELLO)
        while not self._peer:
            kind, said = self._hear()
            if kind == ALERT:
                raise _refused(ssl.SSLError(1, "alert"), reason=said.decode())
            if said == _HELLO:
                self._say(SAID, "\n".join(self._context.certificate).encode())
                continue
            lines = said.decode().split("\n")
            self._check(lines)
            self._peer = lines
            if self._dials:
                self._say(SAID, "\n".join(self._context.certificate).encode())

    def _check(self, lines: list[str]) -> None:
        code, wrong = 0, ""
        if lines[0] != self._context.authority:
            code, wrong = _UNKNOWN, "unable to get local issuer certificate"
        elif self._host not in (None, *lines[3:]):
            code, wrong = _WRONG_HOST, f"IP address mismatch, certificate is not valid for '{self._host}'."
        if wrong:
            self._say(ALERT, b"TLSV1_ALERT_UNKNOWN_CA" if code == _UNKNOWN else b"SSLV3_ALERT_BAD_CERTIFICATE")
            raise _refused(ssl.SSLCertVerificationError(1, wrong), verify_code=code, verify_message=wrong)

    def _say(self, kind: bytes, what: bytes) -> None:
        self._outgoing.write(kind + len(what).to_bytes(2) + what)

    def _hear(self) -> tuple[bytes, bytes]:
        data = self._rest = self._rest + self._incoming.read()
        end = HEAD_BYTES + int.from_bytes(data[3:HEAD_BYTES])
        if len(data) < max(HEAD_BYTES, end):
            raise ssl.SSLWantReadError
        self._rest = data[end:]
        return data[:3], data[HEAD_BYTES:end]

    def read(self, size: int) -> bytes:
        data, self._rest = self._rest + self._incoming.read(), b""
        if not data:
            raise ssl.SSLWantReadError
        if data.startswith(ALERT) and not self._reads:  # who accepts judges last
            raise _refused(ssl.SSLError(1, "alert"), reason=data[HEAD_BYTES:].decode())
        self._reads = True
        return data

    def write(self, data: bytes) -> None:
        self._outgoing.write(data)

    def getpeercert(self, binary_form: bool = False) -> Any:
        if binary_form:
            return self._peer[2].encode()
        names = [("IP Address" if each == HOST else "URI", each) for each in self._peer[3:]]
        return {"subject": ((("commonName", self._peer[1]),),), "subjectAltName": tuple(names)}


def _refused(error: ssl.SSLError, **what: Any) -> ssl.SSLError:
    vars(error).update(what)
    return error
