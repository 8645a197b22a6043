"""How an endpoint is set up, as the original bindings have it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from chappe.errors import UsageError
from chappe.security import Security, Tls

_FILES: Final = ("openssl_certificate", "openssl_key")


@dataclass(slots=True)
class BrokerOptions:
    """Switches. ``ignore_broker_conf`` and ``use_real_time`` are kept and change nothing: no file is read here."""

    disable_ssl: bool = False
    disable_forwarding: bool = False
    ignore_broker_conf: bool = False
    use_real_time: bool = True


class Configuration:
    """Options, and the files of TLS: with any of them set, both sides need a certificate.

    ``max_threads`` is kept and changes nothing.
    """

    def __init__(self, options: BrokerOptions | None = None) -> None:
        self.options = BrokerOptions() if options is None else options
        self.openssl_cafile = ""
        self.openssl_capath = ""
        self.openssl_certificate = ""
        self.openssl_key = ""
        self.openssl_passphrase = ""
        self.max_threads = 0

    def security(self) -> Security:
        """The same in chappe's terms: plain, anonymous TLS as the original's default, or with certificates.

        Raises:
            UsageError: Some of the files are missing that belong together.
        """
        if self.options.disable_ssl:
            return "plain"
        authority = self.openssl_cafile or self.openssl_capath
        if not (authority or self.openssl_certificate or self.openssl_key or self.openssl_passphrase):
            return "anonymous"
        missing = [name for name in _FILES if not getattr(self, name)]
        if missing or not authority:
            names = ", ".join(missing or ["openssl_cafile or openssl_capath"])
            raise UsageError(f"TLS with certificates needs {names} too")
        return Tls(
            self.openssl_certificate,
            self.openssl_key,
            authority,
            self.openssl_passphrase or None,
            check="authority",
        )
