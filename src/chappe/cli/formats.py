"""How ``chappe produce`` splits its input into records: lines, JSON lines, or length-prefixed.

A splitter is fed chunks of any size and returns the records that are complete. It holds at most one
incomplete record, so memory is bounded by the largest record.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from chappe.defaults import RECORD_BYTES_MAX
from chappe.errors import RecordTooLarge, UsageError

_LENGTH: Final = struct.Struct(">I")


class BadInput(UsageError):
    """The input is not in the format it should be in; ``records`` are those before the bad one."""

    def __init__(self, text: str, records: list[bytes]) -> None:
        super().__init__(text)
        self.records = records


class Splitter(Protocol):
    """Bytes in, records out."""

    def feed(self, chunk: bytes) -> list[bytes]:
        """The records that ``chunk`` completes; raises BadInput or RecordTooLarge."""

    def end(self) -> list[bytes]:
        """What is left when the input has ended; raises BadInput."""


class Lines:
    """One record for each line, without its newline; a last line without newline counts too."""

    def __init__(self) -> None:
        self._rest = b""
        self._lines = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that the chunk ends; raises RecordTooLarge."""
        lines = (self._rest + chunk).split(b"\n")
        self._rest = lines.pop()
        self._lines += len(lines)
        if len(self._rest) > RECORD_BYTES_MAX:
            raise RecordTooLarge(
                f"line {self._lines + 1} is longer than {RECORD_BYTES_MAX} bytes, the most that a record can hold"
            )
        return lines

    def end(self) -> list[bytes]:
        """The line without newline, if there is one."""
        rest, self._rest = self._rest, b""
        return [rest] if rest else []


class JsonLines:
    """One record for each line, which must be JSON and is kept as it is; blank lines are skipped."""

    def __init__(self) -> None:
        self._lines = Lines()
        self._line = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that the chunk ends; raises BadInput or RecordTooLarge."""
        return self._checked(self._lines.feed(chunk))

    def end(self) -> list[bytes]:
        """The line without newline, if there is one; raises BadInput."""
        return self._checked(self._lines.end())

    def _checked(self, lines: list[bytes]) -> list[bytes]:
        records: list[bytes] = []
        for line in lines:
            self._line += 1
            if not line.strip():
                continue
            try:
                msgspec.json.decode(line, type=msgspec.Raw)
            except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
                raise BadInput(f"line {self._line} of the input is not JSON: {error}", records) from error
            records.append(line)
        return records


class LengthPrefixed:
    """Records of any bytes, each after its length as four bytes, big endian."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._records = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """The records that the chunk completes; raises BadInput."""
        self._rest += chunk
        records: list[bytes] = []
        at = 0
        while at + _LENGTH.size <= len(self._rest):
            (size,) = _LENGTH.unpack_from(self._rest, at)
            if size > RECORD_BYTES_MAX:
                raise BadInput(
                    f"record {self._records + 1} of the input claims {size} bytes, at most {RECORD_BYTES_MAX} "
                    "are possible; is the input length-prefixed?",
                    records,
                )
            end = at + _LENGTH.size + size
            if end > len(self._rest):
                break
            records.append(bytes(self._rest[at + _LENGTH.size : end]))
            self._records += 1
            at = end
        del self._rest[:at]
        return records

    def end(self) -> list[bytes]:
        """Nothing; raises BadInput if the input is cut off."""
        if self._rest:
            raise BadInput(f"the input ends in the middle of record {self._records + 1}", [])
        return []


SPLITTERS: Final[dict[str, Callable[[], Splitter]]] = {"lines": Lines, "json": JsonLines, "length": LengthPrefixed}
