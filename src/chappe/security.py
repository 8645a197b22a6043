"""Security of connections: who may peer with an endpoint, and what eavesdroppers can read. No socket, no file.

=============== ===========================================================================================
``security``    connections
=============== ===========================================================================================
None            plain, and only on this machine: other addresses are refused until a choice is made
``"plain"``     plain everywhere: for networks where everybody may read, forge and join
``Tls(...)``    TLS 1.3, both sides with a certificate of the same authority; ``chappe keys`` makes them
``Keys(...)``   the same, with all files of an identity; only identities that its permissions allow take part
``"anonymous"`` TLS 1.2 without certificates, as an unconfigured original: keeps out passive listeners only
=============== ===========================================================================================
"""

from __future__ import annotations

from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Final, Literal, TypeAlias

from chappe.errors import UsageError

Check: TypeAlias = Literal["host", "id", "authority"]
IDENTITY: Final = "CHAPPE_IDENTITY"  # the variable that names who members of the log are
PASSPHRASE: Final = "CHAPPE_KEY_PASSPHRASE"
SECRETS: Final = (PASSPHRASE, "CHAPPE_DASHBOARD_TOKEN")  # variables withheld from users' programs
CHECKS: Final = ("host", "id", "authority")
ID_PREFIX: Final = "urn:uuid:"  # how a certificate names an endpoint id, among its alternative names


@dataclass(frozen=True, slots=True)
class Tls:
    """Mutual TLS 1.3.

    A certificate that names an endpoint id, as ``chappe keys add`` makes them, is bound to it: the endpoint that uses
    it has that id, a peer that states another one is refused whatever ``check`` is, and so is one that states this id
    and whose certificate does not name it. Certificates that name none, as those of originals, whose ids are random,
    may be used with any id that no certificate has named here; the first that uses it keeps it. Where all certificates
    name ids, nobody can have another's: ``check="id"`` asks for that.

    Args:
        certificate: PEM file of this endpoint's certificate.
        key: PEM file of its private key.
        authority: PEM file of the authority's certificate, or a directory of them as OpenSSL hashes it.
        passphrase: Of an encrypted key.
        check: What is asked of a peer beside a certificate of the authority. ``host``: that it names the host that was
            dialled (one that dials in need not name any). ``id``: that it names an endpoint id, wherever it runs.
            ``authority``: nothing more, as the original.
    """

    certificate: str | Path
    key: str | Path
    authority: str | Path
    passphrase: str | None = field(default=None, repr=False)
    check: Check = "host"

    def __post_init__(self) -> None:
        if self.check not in CHECKS:
            raise UsageError(f"check is 'host', 'id' or 'authority', not {self.check!r}")

    @classmethod
    def of(cls, directory: str | Path, name: str, *, passphrase: str | None = None, check: Check = "host") -> Tls:
        """The files that ``chappe keys add NAME --directory DIRECTORY`` made."""
        home = Path(directory)
        return cls(certificate_file(home, name), key_file(home, name), authority_file(home), passphrase, check)


@dataclass(frozen=True, slots=True)
class Keys:
    """An identity that ``chappe keys`` made: its certificate, its keys, and the permissions that it goes by.

    Args:
        place: ``DIRECTORY/NAME``: where ``authority.pem``, ``permissions.toml``, ``NAME.pem`` and ``NAME.key`` are.
        passphrase: Of an encrypted key; for members of the log None means what ``CHAPPE_KEY_PASSPHRASE`` says.
    """

    place: str | Path
    passphrase: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not self.name:
            raise UsageError(f"an identity is DIRECTORY/NAME, not {str(self.place)!r}")

    @property
    def directory(self) -> Path:
        """The directory of the identity's files."""
        return Path(self.place).parent

    @property
    def name(self) -> str:
        """The identity's name, with which its files begin."""
        return Path(self.place).name

    def tls(self, check: Check = "host") -> Tls:
        """Return the same for an endpoint of the mesh."""
        return Tls.of(self.directory, self.name, passphrase=self.passphrase, check=check)


Security: TypeAlias = Tls | Literal["plain", "anonymous"] | None
LogSecurity: TypeAlias = Keys | Literal["plain"] | None  # None: the identity that the environment names, if it does


class NothingChosen(UsageError):
    """Neither keys nor ``plain`` were chosen, and ``host`` is not this machine."""

    def __init__(self, host: str, advice: str) -> None:
        super().__init__(f"{host} is not this machine: {advice}")
        self.host = host


def check_security(security: Security | Keys) -> Security:
    """Return ``security`` as an endpoint uses it, or raise UsageError."""
    if isinstance(security, Keys):
        return security.tls()
    if security is None or isinstance(security, Tls) or security in ("plain", "anonymous"):
        return security
    raise UsageError(f"security is None, 'plain', 'anonymous', Tls(...) or Keys(...), not {security!r}")


def check_reach(security: Security, host: str) -> None:
    """Raise UsageError where nothing was chosen and ``host`` is not this machine."""
    if security is None and not is_loopback(host):
        raise NothingChosen(
            host,
            "give the endpoint security=Tls(...) (`chappe keys` makes the certificates), "
            "or security='plain' if everybody on the way may read and forge",
        )


def is_loopback(host: str) -> bool:
    """Return True if an address, or the name ``localhost``, is this machine itself."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def authority_file(directory: Path) -> Path:
    """Where ``chappe keys`` keeps the authority's certificate."""
    return directory / "authority.pem"


def authority_key_file(directory: Path) -> Path:
    """Where ``chappe keys`` keeps the authority's private key; it need not be where endpoints run."""
    return directory / "authority.key"


def certificate_file(directory: Path, name: str) -> Path:
    """Where ``chappe keys`` keeps the certificate of an endpoint."""
    return directory / f"{name}.pem"


def key_file(directory: Path, name: str) -> Path:
    """Where ``chappe keys`` keeps the private key of an endpoint."""
    return directory / f"{name}.key"


def permissions_file(directory: Path) -> Path:
    """Where ``chappe keys`` keeps who may do what."""
    return directory / "permissions.toml"


def sealed_file(directory: Path, group: str) -> Path:
    """Where ``chappe keys`` keeps the keys of topics that are sealed for a group, wrapped for its members."""
    return directory / f"sealed-{group}.keys"
