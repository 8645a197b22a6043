"""The types of the original bindings that hold one value each; every one wraps a value of ``chappe.data``."""

from __future__ import annotations

import functools
import time
from enum import Enum as _Enum
from typing import Any, ClassVar, Final, Generic, Self, TypeVar

from chappe.data import scalars
from chappe.data.scalars import ADDRESS_BYTES, COUNT_MAX, PROTOCOLS, V4_BITS

NS: Final = 1_000_000_000
V = TypeVar("V")


@functools.total_ordering
class _Wrapper(Generic[V]):
    """Compares with its own kind only, and hashes as what it holds."""

    __slots__ = ("_held",)
    _held: V

    @classmethod
    def _of(cls, held: V) -> Self:
        made = cls.__new__(cls)
        made._held = held
        return made

    def __eq__(self, other: object) -> bool:
        return self._held == other._held if type(other) is type(self) else NotImplemented

    def __lt__(self, other: Self) -> bool:
        held: Any = self._held
        return bool(held < other._held) if type(other) is type(self) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._held)

    def __str__(self) -> str:
        return str(self._held)

    def __repr__(self) -> str:
        return str(self)


class Address(_Wrapper[scalars.Address]):
    """An IP address, from its bytes and the family: 4 or 6."""

    __slots__ = ()

    def __init__(self, packed: bytes | None = None, family: int = 6) -> None:
        if packed is None:
            self._held = scalars.Address(bytes(ADDRESS_BYTES))
            return
        size = {4: 4, 6: 16}.get(family)
        if not isinstance(packed, bytes) or size is None or len(packed) != size:
            raise TypeError("an address is made of 4 bytes and the family 4, or of 16 bytes and the family 6")
        self._held = scalars.Address(packed)

    def mask(self, top_bits: int) -> bool:
        """Clear all but the first bits, counted in 128; False if there are not so many."""
        if not 0 <= top_bits <= 128:
            return False
        self._held = scalars.mask(self._held, top_bits)
        return True

    def is_v4(self) -> bool:
        return self._held.is_v4

    def is_v6(self) -> bool:
        return not self._held.is_v4

    def bytes(self) -> bytes:
        return self._held.packed


class Count(_Wrapper[scalars.Count]):
    """An unsigned integer of 64 bits. Raises OverflowError outside."""

    __slots__ = ()

    def __init__(self, value: int) -> None:
        if not isinstance(value, int):
            raise TypeError(f"a count is made of an int, not of a {type(value).__name__}")
        if not 0 <= value <= COUNT_MAX:
            raise OverflowError(f"a count is 0 to 2**64-1, not {value}")
        self._held = scalars.Count(value)

    @property
    def value(self) -> int:
        return int(self._held)

    def __hash__(self) -> int:
        return hash(int(self._held))

    def __repr__(self) -> str:
        return f"Count({self._held})"


class Enum(_Wrapper[scalars.EnumValue]):
    __slots__ = ()

    def __init__(self, name: str) -> None:
        self._held = scalars.EnumValue(name)

    @property
    def name(self) -> str:
        return str(self._held)


class Port(_Wrapper[scalars.Port]):
    __slots__ = ()

    class Protocol(_Enum):
        """The protocol of a port."""

        Unknown = 0
        TCP = 1
        UDP = 2
        ICMP = 3

        def __int__(self) -> int:
            return self.value

    Unknown: ClassVar = Protocol.Unknown
    TCP: ClassVar = Protocol.TCP
    UDP: ClassVar = Protocol.UDP
    ICMP: ClassVar = Protocol.ICMP

    def __init__(self, number: int | None = None, protocol: Protocol | None = None) -> None:
        if number is None and protocol is None:
            number, protocol = 0, Port.Protocol.Unknown
        if not isinstance(number, int) or not isinstance(protocol, Port.Protocol) or not 0 <= number <= 65535:
            raise TypeError("a port is made of a number up to 65535 and a protocol such as Port.TCP")
        self._held = scalars.Port(number, PROTOCOLS[protocol.value])

    def number(self) -> int:
        return self._held.number

    def get_type(self) -> Protocol:
        return Port.Protocol(PROTOCOLS.index(self._held.protocol))

    def __lt__(self, other: Self) -> bool:
        if type(other) is not Port:
            return NotImplemented
        mine, others = self._held, other._held
        return (mine.number, PROTOCOLS.index(mine.protocol)) < (others.number, PROTOCOLS.index(others.protocol))


class Subnet(_Wrapper[scalars.Subnet]):
    __slots__ = ()

    def __init__(self, address: Address | None = None, length: int = 0) -> None:
        network = Address() if address is None else address
        bits = 128 - V4_BITS if network.is_v4() else 128
        if not isinstance(length, int) or not 0 <= length <= bits:
            raise TypeError(f"the prefix of {network} has 0 to {bits} bits, not {length}")
        self._held = scalars.Subnet(network._held, length)

    def contains(self, address: Address) -> bool:
        return self._held.contains(address._held)

    def network(self) -> Address:
        return Address._of(self._held.network)

    def length(self) -> int:
        return self._held.length


class Timespan(_Wrapper[scalars.Timespan]):
    """A duration, from nanoseconds as int, or from seconds as float."""

    __slots__ = ()

    def __init__(self, value: float = 0) -> None:
        self._held = scalars.Timespan(_float_ns(value) if isinstance(value, float) else value)

    def count(self) -> int:
        return int(self._held)

    def __add__(self, other: Timespan) -> Timespan:
        return Timespan(self.count() + other.count()) if type(other) is Timespan else NotImplemented

    def __sub__(self, other: Timespan) -> Timespan:
        return Timespan(self.count() - other.count()) if type(other) is Timespan else NotImplemented

    def __mul__(self, factor: int) -> Timespan:
        return Timespan(self.count() * factor) if type(factor) is int else NotImplemented

    __rmul__ = __mul__

    def __truediv__(self, divisor: int) -> Timespan:
        return Timespan(_quotient(self.count(), divisor)) if type(divisor) is int else NotImplemented

    def __mod__(self, other: Timespan | int) -> Timespan:
        divisor = other.count() if isinstance(other, Timespan) else other
        return Timespan(self.count() - _quotient(self.count(), divisor) * divisor)


class Timestamp(_Wrapper[scalars.Timestamp]):
    """An instant, from a timespan since 1970 UTC, or from seconds."""

    __slots__ = ()

    def __init__(self, since_epoch: Timespan | float = 0.0) -> None:
        ns = since_epoch.count() if isinstance(since_epoch, Timespan) else _float_ns(float(since_epoch))
        self._held = scalars.Timestamp(ns)

    def time_since_epoch(self) -> Timespan:
        return Timespan(int(self._held))

    def __str__(self) -> str:
        return int.__repr__(self._held)


KINDS: Final = (Address, Count, Enum, Port, Subnet, Timespan, Timestamp)


def now() -> Timestamp:
    return Timestamp(Timespan(time.time_ns()))


def _float_ns(seconds: float) -> int:
    return int(seconds * NS)


def _quotient(dividend: int, divisor: int) -> int:
    """Divide towards zero, like C++."""
    quotient = abs(dividend) // abs(divisor)
    return quotient if (dividend < 0) == (divisor < 0) else -quotient
