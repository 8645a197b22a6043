"""The typed values that Python has no type of its own for, and that hold no other values.

Each is immutable and hashable; ``chappe.data.convert`` has the table of all conversions. The numbers are subclasses of
``int`` and compare as Python's numbers do, so ``Count(1) == 1`` is true although a count and an integer are two
different values (``chappe.data.order.same`` tells them apart, as do ``Set`` and ``Table``), and the sum of two counts
is a plain integer. Times are nanoseconds and never pass through ``float``.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final, NamedTuple, Self

from chappe.errors import UnsupportedValue

COUNT_MAX: Final = (1 << 64) - 1
INTEGER_MIN: Final = -(1 << 63)
INTEGER_MAX: Final = (1 << 63) - 1
V4_PREFIX: Final = bytes(10) + b"\xff\xff"  # an IPv4 address is carried as ::ffff:a.b.c.d
V4_BITS: Final = 96  # the length of that prefix
ADDRESS_BYTES: Final = 16
PROTOCOLS: Final = ("unknown", "tcp", "udp", "icmp")  # by their numbers on the wire
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Count(int):
    """An unsigned integer of 64 bits; raises UnsupportedValue outside 0..2**64-1."""

    __slots__ = ()

    def __new__(cls, value: int = 0) -> Self:  # noqa: D102
        number = int(value)
        if not 0 <= number <= COUNT_MAX:
            raise UnsupportedValue(f"a count is 0 to 2**64-1, not {value}")
        return int.__new__(cls, number)

    def __repr__(self) -> str:
        return f"Count({int(self)})"

    def __str__(self) -> str:
        return int.__repr__(self)


class _Nanoseconds(int):
    __slots__ = ()

    def __new__(cls, ns: int = 0) -> Self:
        if isinstance(ns, float):
            raise UnsupportedValue(
                f"give whole nanoseconds, not {ns}: a float cannot hold today's time to the nanosecond"
            )
        number = int(ns)
        if not INTEGER_MIN <= number <= INTEGER_MAX:
            raise UnsupportedValue(f"{ns} nanoseconds are outside of 64 bits: 292 years at most")
        return int.__new__(cls, number)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({int(self)})"

    def __str__(self) -> str:
        return f"{int(self)}ns"


class Timespan(_Nanoseconds):
    """A duration in nanoseconds, 64 bits with sign (292 years); raises UnsupportedValue outside."""

    __slots__ = ()

    @classmethod
    def from_timedelta(cls, delta: timedelta) -> Self:
        """Convert without loss."""
        return cls(timedelta_ns(delta))

    def to_timedelta(self) -> timedelta:
        """Drops what is below a microsecond, towards minus infinity."""
        return timedelta(microseconds=int(self) // 1000)

    def __add__(self, other: object) -> Timespan:
        return Timespan(int(self) + int(other)) if type(other) is Timespan else NotImplemented

    def __sub__(self, other: object) -> Timespan:
        return Timespan(int(self) - int(other)) if type(other) is Timespan else NotImplemented

    def __mul__(self, factor: int) -> Timespan:
        return Timespan(int(self) * factor) if type(factor) is int else NotImplemented

    __rmul__ = __mul__

    def __neg__(self) -> Timespan:
        return Timespan(-int(self))

    def __abs__(self) -> Timespan:
        return Timespan(abs(int(self)))


class Timestamp(_Nanoseconds):
    """An instant, in nanoseconds since 1970-01-01 UTC, years 1677 to 2262; raises UnsupportedValue outside."""

    __slots__ = ()

    @classmethod
    def from_datetime(cls, moment: datetime) -> Self:
        """Exact; raises UnsupportedValue for a datetime without time zone, which names no instant."""
        if moment.utcoffset() is None:
            raise UnsupportedValue(f"{moment!r} has no time zone: add tzinfo=datetime.UTC or another")
        return cls(timedelta_ns(moment - EPOCH))

    def to_datetime(self) -> datetime:
        """In UTC; drops what is below a microsecond, towards the past."""
        return EPOCH + timedelta(microseconds=int(self) // 1000)

    def __add__(self, other: object) -> Timestamp:
        return Timestamp(int(self) + int(other)) if type(other) is Timespan else NotImplemented

    __radd__ = __add__

    def __sub__(self, other: object) -> Timestamp | Timespan:
        if type(other) is Timestamp:
            return Timespan(int(self) - int(other))
        return Timestamp(int(self) - int(other)) if type(other) is Timespan else NotImplemented


class EnumValue(str):
    """The name of an enum's value, such as ``Conn::LOG``; bytes that are not UTF-8 survive as ``surrogateescape``."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"EnumValue({str.__repr__(self)})"

    def __str__(self) -> str:
        return str.__str__(self)


class Address(bytes):
    """An IP address: the 16 bytes of IPv6, or of IPv4 mapped into it.

    Made from text, from an ``ipaddress`` object, or from 4 or 16 bytes; raises UnsupportedValue for anything else. It
    is a kind of ``bytes`` because that is created, hashed and compared fastest; ``ip`` makes the ``ipaddress`` object.
    """

    __slots__ = ()

    def __new__(cls, source: str | bytes | IPv4Address | IPv6Address = bytes(ADDRESS_BYTES)) -> Self:  # noqa: D102
        if isinstance(source, bytes):
            packed = bytes(source)
        else:
            packed = _ip(source).packed
        if len(packed) == 4:
            packed = V4_PREFIX + packed
        if len(packed) != ADDRESS_BYTES:
            raise UnsupportedValue(f"an address has 4 or 16 bytes, not {len(packed)}")
        return bytes.__new__(cls, packed)

    @property
    def packed(self) -> bytes:
        """The address as 16 bytes in network order."""
        return bytes(self)

    @property
    def is_v4(self) -> bool:
        """True for an IPv4 address."""
        return self.startswith(V4_PREFIX)

    @property
    def ip(self) -> IPv4Address | IPv6Address:
        """The same address for ``ipaddress``."""
        if self.startswith(V4_PREFIX):
            return IPv4Address(bytes(self[12:]))
        return IPv6Address(bytes(self))

    def __repr__(self) -> str:
        return f"Address('{self}')"

    def __str__(self) -> str:
        return str(self.ip)


class _SubnetFields(NamedTuple):
    network: Address
    length: int


class Subnet(_SubnetFields):
    """A network: its address, host bits cleared, and the length of its prefix (0..32 for IPv4, 0..128 for IPv6)."""

    __slots__ = ()

    def __new__(cls, network: Address | str | IPv4Address | IPv6Address, length: int) -> Self:  # noqa: D102
        address = network if type(network) is Address else Address(network)
        shift = V4_BITS if address.is_v4 else 0
        if not 0 <= length <= 128 - shift:
            raise UnsupportedValue(f"a prefix of {address} has 0 to {128 - shift} bits, not {length}")
        return tuple.__new__(cls, (mask(address, length + shift), int(length)))

    @classmethod
    def from_network(cls, network: IPv4Network | IPv6Network) -> Self:
        """Convert without loss."""
        return cls(Address(network.network_address), network.prefixlen)

    @property
    def wire_length(self) -> int:
        """The prefix length counted in the 128 bits of IPv6, as it travels."""
        return self.length + V4_BITS if self.network.is_v4 else self.length

    @property
    def ip_network(self) -> IPv4Network | IPv6Network:
        """The same network for ``ipaddress``."""
        ip = self.network.ip
        return IPv4Network((ip, self.length)) if isinstance(ip, IPv4Address) else IPv6Network((ip, self.length))

    def contains(self, address: Address) -> bool:
        """Return whether the address is in the subnet."""
        return mask(address, self.wire_length) == self.network

    def __repr__(self) -> str:
        return f"Subnet('{self.network}', {self.length})"

    def __str__(self) -> str:
        return f"{self.network}/{self.length}"


class _PortFields(NamedTuple):
    number: int
    protocol: str


class Port(_PortFields):
    """A port number, 0..65535, and one of the protocols ``tcp``, ``udp``, ``icmp`` and ``unknown``."""

    __slots__ = ()

    def __new__(cls, number: int, protocol: str = "tcp") -> Self:  # noqa: D102
        if not 0 <= number <= 65535:
            raise UnsupportedValue(f"a port is 0 to 65535, not {number}")
        if protocol not in PROTOCOLS:
            raise UnsupportedValue(f"a port's protocol is one of {', '.join(PROTOCOLS)}, not {protocol!r}")
        return tuple.__new__(cls, (int(number), protocol))

    def __repr__(self) -> str:
        return f"Port({self.number}, {self.protocol!r})"

    def __str__(self) -> str:
        return f"{self.number}/{'?' if self.protocol == 'unknown' else self.protocol}"


def mask(address: bytes, bits: int) -> Address:
    """The address with all but its first ``bits`` of 128 cleared."""
    kept = int.from_bytes(address, "big") >> (128 - bits) << (128 - bits)
    return Address(kept.to_bytes(ADDRESS_BYTES, "big"))


def timedelta_ns(delta: timedelta) -> int:
    """The exact nanoseconds of a timedelta."""
    below = int(getattr(delta, "nanoseconds", 0))  # of pandas' kind, below a microsecond
    return ((delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds) * 1_000 + below


def _ip(source: str | IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    try:
        ip = ip_address(source)
    except ValueError:
        raise UnsupportedValue(f"{source!r} is not an IP address") from None
    if isinstance(ip, IPv6Address) and ip.scope_id is not None:
        raise UnsupportedValue(f"{source!s} has a zone, which an address cannot carry")
    return ip
