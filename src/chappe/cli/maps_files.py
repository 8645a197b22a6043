"""``chappe map dump`` and ``chappe map load``: a shared map as lines of JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Annotated, Final

import msgspec
from typer import Argument

from chappe.cli import options
from chappe.cli.console import Bar, tell, warn
from chappe.cli.files import readable_twice, written
from chappe.cli.formats import Base64, bytes_of
from chappe.cli.maps import Client, Subtrees, app, as_line, rows
from chappe.data.markup import many
from chappe.defaults import MAP_BODY_BYTES_MAX, MAP_KEY_BYTES_MAX, MAP_PROPERTIES_BYTES_MAX
from chappe.errors import ChappeError, UsageError

if TYPE_CHECKING:
    from chappe import SharedMap

# entries under way at once, and bytes of them; all of these are confirmed within the timeout
CHUNK: Final = 4096
CHUNK_BYTES: Final = 4 << 20
SHOW: Final = 1024  # lines between two updates of a bar
# JSON writes a byte with six characters at most
LINE_MAX: Final = 6 * (MAP_BODY_BYTES_MAX + MAP_KEY_BYTES_MAX + MAP_PROPERTIES_BYTES_MAX) + 4096


class Line(msgspec.Struct, forbid_unknown_fields=True):
    key: str | Base64
    value: str | Base64
    properties: dict[str, str] = {}


@app.command("dump")
@options.with_groups
def dump(
    where: Client,
    file: Annotated[str, Argument(metavar="FILE|-", help="Where to; standard output by default.")] = "-",
    subtrees: Subtrees = None,
    as_json: options.Json = False,
) -> None:
    """Write a map's entries as JSON, one a line, as `chappe map load` reads them; a file whole or not at all."""
    quiet = as_json or file == "-"
    with where.of(subtrees, quiet=quiet) as shared, written(file) as out:
        total = len(shared)
        with Bar("writing", quiet=quiet) as bar:
            done = 0
            for done, row in enumerate(rows(shared), 1):
                out.write(as_line(row))
                if done % SHOW == 0:
                    bar.update(f"{done:,} of {many(total, 'key')}", done, total)
    tell(as_json and file != "-", {"dumped": done}, f"dumped {many(done, 'key')}")


@app.command("load")
@options.with_groups
def load(
    where: Client,
    file: Annotated[str, Argument(metavar="FILE|-", help="Where from; standard input by default.")] = "-",
    as_json: options.Json = False,
) -> None:
    """Set what `chappe map dump` has written; other keys stay. Nothing is set if a line is wrong."""
    with readable_twice(file) as source:
        begin = source.tell()
        with Bar("checking", quiet=as_json) as bar:
            total = 0
            for _ in _entries(source):
                total += 1
                if total % SHOW == 0:
                    bar.update(f"checked {total:,} lines", total, None)
        source.seek(begin)
        done = 0
        with where.of(quiet=as_json) as shared, Bar("setting", quiet=as_json) as bar:
            try:
                for done in _set(shared, source, where.timeout):
                    bar.update(f"{done:,} of {total:,} keys are set", done, total)
            except (ChappeError, KeyboardInterrupt):
                warn(f"{done:,} of {total:,} keys are known to be set; the same command again sets all of them")
                raise
    tell(as_json, {"loaded": done}, f"loaded {many(done, 'key')}")


def _set(shared: SharedMap[bytes], source: IO[bytes], timeout: float) -> Iterator[int]:
    """Set all entries; yield the number that is confirmed, again and again."""
    from chappe.api.faces import run  # brings asyncio, which the help does without

    done = size = 0
    chunk = []
    for key, value, properties in _entries(source):
        chunk.append(shared.member.step({key: value}, None, None, properties))
        size += len(value)
        if len(chunk) == CHUNK or size >= CHUNK_BYTES:
            run(shared.member.writing_many(chunk, timeout), shared.member.driver.turns.wait)
            done += len(chunk)
            size = 0
            chunk = []
            yield done
    run(shared.member.writing_many(chunk, timeout), shared.member.driver.turns.wait)
    yield done + len(chunk)


def _entries(source: IO[bytes]) -> Iterator[tuple[str, bytes, dict[str, str]]]:
    """Read and check every line. Raises UsageError for the first bad one."""
    from chappe.api.kv.map_values import MapCodec, encode_key, encode_properties

    decode = msgspec.json.Decoder(Line).decode
    check = MapCodec[bytes](bytes).encode
    number = 0
    while line := source.readline(LINE_MAX + 1):
        number += 1
        if not line.strip():
            continue
        try:
            if len(line) > LINE_MAX:
                raise UsageError(f"it is longer than {LINE_MAX:,} bytes")
            found = decode(line)
            key = (bytes_of(found.key) or b"").decode("utf-8", "surrogateescape")
            value = bytes_of(found.value) or b""
            encode_key(key)
            encode_properties(found.properties)
            check(value)
        except (ChappeError, msgspec.MsgspecError, UnicodeError, RecursionError) as problem:
            raise UsageError(f"line {number} is not an entry as `chappe map dump` writes it: {problem}") from None
        yield key, value, found.properties
