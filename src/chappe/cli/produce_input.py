"""The records that ``chappe produce`` is given: as arguments, in a file, or on standard input."""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated

from typer import Argument, Option

from chappe.cli import options
from chappe.cli.console import say
from chappe.cli.formats import SPLITTERS, FullRecord, Item
from chappe.cli.record_format import unescaped
from chappe.errors import UsageError

CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class ProduceInput:
    """Where records are and how they are told from each other."""

    messages: Annotated[
        list[str] | None,
        Argument(metavar="MESSAGE", help="Records to write; without any, those of --file or standard input."),
    ] = None
    file: Annotated[str, Option(metavar="FILE|-", help="Records to write; - is standard input.")] = "-"
    form: Annotated[
        options.InputFormat,
        Option(
            "--format",
            envvar="CHAPPE_PRODUCE_FORMAT",
            help="lines; json: lines that must be JSON; length: each record after its length in 4 bytes, big endian; "
            "records: as `consume --output json` prints them.",
        ),
    ] = "lines"
    key_separator: Annotated[
        str | None,
        Option(
            metavar="TEXT", help=r"With lines: what stands before the first TEXT is the record's key; such as '\t'."
        ),
    ] = None

    @property
    def given(self) -> list[str]:
        """The messages; - alone is standard input, as elsewhere."""
        return [] if self.messages is None or self.messages == ["-"] else self.messages

    def check(self) -> None:
        """Raise UsageError for what does not go together."""
        if self.given and self.file != "-":
            raise UsageError("give messages or --file, not both")
        if self.given and self.form == "length":
            raise UsageError("--format length is for files and standard input: a message has its length")
        if self.key_separator is None:
            return
        if self.form != "lines":
            raise UsageError(f"--key-separator is for lines, not for --format {self.form}")
        if not unescaped(self.key_separator):
            raise UsageError("--key-separator is empty: give what stands between key and value, such as :")

    @contextmanager
    def chunks(self) -> Iterator[tuple[Iterable[bytes], int]]:
        """Yield the input in pieces, and its size, 0: unknown. Raises UsageError for a file that cannot be read."""
        if self.given:
            if len(self.given) == 1 and os.path.isfile(self.given[0]):
                say(f"{self.given[0]!a} is written as a message; --file writes what is in the file of that name")
            lines = [os.fsencode(each) + b"\n" for each in self.given]
            yield lines, sum(map(len, lines))
            return
        source = sys.stdin.fileno() if self.file == "-" else _open(self.file)
        try:
            yield _read(source), 0 if self.file == "-" else os.fstat(source).st_size
        finally:
            if self.file != "-":
                os.close(source)

    def records(self, chunks: Iterable[bytes]) -> Iterator[Sequence[Item]]:
        """Split the input. Raises BadInput and RecordTooLarge."""
        if self.given and self.form == "lines":  # whatever is in them
            found: Iterable[Sequence[Item]] = ([chunk[:-1]] for chunk in chunks)
        else:
            found = SPLITTERS[self.form](chunks)
        if self.key_separator is None:
            yield from found
            return
        separator = os.fsencode(unescaped(self.key_separator))
        for lines in found:
            yield [_keyed(each, separator) for each in lines if isinstance(each, bytes)]


def _keyed(line: bytes, separator: bytes) -> Item:
    key, found, value = line.partition(separator)
    return FullRecord(value, key, has_key=True) if found else line


def _read(source: int) -> Iterator[bytes]:
    while chunk := os.read(source, CHUNK_BYTES):
        yield chunk


def _open(file: str) -> int:
    try:
        source = os.open(file, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        if stat.S_ISDIR(os.fstat(source).st_mode):
            os.close(source)
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), file)
        return source
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from error
