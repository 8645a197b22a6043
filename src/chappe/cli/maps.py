"""``chappe map``: a shared map, as one of its clients; ``maps_files.py`` has the rest of its commands."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import typer
from typer import Argument, Option

from chappe.api.log.lines import json_value
from chappe.cli import options, values
from chappe.cli.console import Bar, hear_warnings, say, show_json
from chappe.cli.following import Changes, Seconds, UntilInterrupted, print_changes
from chappe.cli.formats import readable
from chappe.cli.listing import print_lines
from chappe.cli.maps_serve import MODEL, NAME, serve, witness
from chappe.cli.units import human_bytes, parse_age
from chappe.cli.watching import watchable
from chappe.data import terminal
from chappe.data.markup import many
from chappe.defaults import MAP_PORT, MAP_SUBTREE_BYTES_MAX, TOWER_HOST
from chappe.errors import NoMaster, NoSuchKey, StoreError, UsageError

if TYPE_CHECKING:
    from chappe import MapChange, SharedMap

    Row: TypeAlias = tuple[bytes, bytes, dict[str, str]]  # key, value, properties

HERE: Final = f"{TOWER_HOST}:{MAP_PORT}"
CONNECT_S: Final = 10.0
STEP_S: Final = 0.25  # between two looks at how much has come of a snapshot
KEY_WIDTH: Final = 60  # of the column of a table; longer keys move their values

app = typer.Typer(
    name="map", help="Read and write a map that many programs share through a server; or serve one.",
    no_args_is_help=True,
)  # fmt: skip
app.command("serve")(serve)
app.command("witness")(witness)

Key: TypeAlias = Annotated[str, Argument(metavar="KEY", help="The key, by convention a path such as /a/b.")]
Subtrees: TypeAlias = Annotated[
    list[str] | None, Option("--subtree", metavar="PREFIX", help="Only keys that begin so; several times.")
]


@dataclass(frozen=True, slots=True)
class Client:
    """The options that say where the map is, and how long to wait for its servers."""

    servers: Annotated[
        str,
        Option(
            envvar="CHAPPE_MAP_SERVERS",
            metavar="ADDRESSES",
            help="Where the map is served: HOST[:PORT], of several servers separated by commas.",
        ),
    ] = HERE
    timeout: Annotated[
        float, Option(min=0.1, metavar="SECONDS", help="How long a server is waited for, and its answer to a write.")
    ] = CONNECT_S
    model: MODEL = None
    name: NAME = ""
    acting: options.Acting = None

    def __post_init__(self) -> None:
        options.be(self.acting)

    @contextmanager
    def of(self, subtrees: Sequence[str] | None = None, *, quiet: bool = True) -> Iterator[SharedMap[bytes]]:
        """Open the map, or its ``subtrees``; show the progress unless ``quiet``. Raises NoMaster."""
        from chappe import SharedMap

        hear_warnings(self.servers)
        servers = [each.strip() for each in self.servers.split(",")]
        if "" in servers:
            raise UsageError(f"{self.servers!a} is not HOST[:PORT], or several of them separated by commas")
        model: Any = self.model
        with SharedMap(*servers, subtree=subtrees or "", model=model, timeout=0, name=self.name) as shared:
            self._take(shared, len(servers), quiet)
            yield shared

    def _take(self, shared: SharedMap[bytes], servers: int, quiet: bool) -> None:
        """Wait ``timeout`` for a server, and for a snapshot as long as it makes progress."""
        end = time.monotonic() + self.timeout
        arrived = 0
        with Bar("waiting for a server", quiet=quiet) as bar:
            while True:
                try:
                    shared.wait_ready(min(STEP_S, max(0.0, end - time.monotonic())))
                    return
                except NoMaster:
                    if (more := shared.member.core.arriving) != arrived:
                        arrived = more
                        end = time.monotonic() + self.timeout
                        bar.update(f"{arrived:,} keys have come", arrived, None)
                    elif len(shared.member.core.others) == servers:
                        raise  # each has another map: the error says which
                    elif time.monotonic() >= end:
                        text = f"no map server answers at {self.servers}; start one with: chappe map serve"
                        raise NoMaster((shared.member.passive or text) + shared.member.refusal) from None


@app.command("get", cls=values.Command)
@watchable
@options.with_groups
def get(
    where: Client,
    key: Annotated[str | None, Argument(metavar="[KEY]", help="The key; without one all are listed.")] = None,
    subtrees: Subtrees = None,
    as_json: options.Json = False,
) -> None:
    """Print the value under a key, or a table of all keys and values."""
    if key is None:
        with where.of(subtrees) as shared:
            found = rows(shared)
        print_lines(map(as_line, found)) if as_json else _print_table(found)
        return
    if subtrees:
        raise UsageError("give a key or --subtree, not both")
    check_key(key)
    with where.of([_around(key)]) as shared:
        entry = shared.member.find(key)
        if entry is None:
            raise _no_such_key(key)
        row = shared.member.raw(entry)
    if as_json:
        print_lines([as_line(row)])
    else:  # as it is for a program; what would move the cursor is escaped for people
        print_lines([(readable(row[1]).encode() if sys.stdout.isatty() else row[1]) + b"\n"])


@app.command("set", cls=values.Command)
@options.with_groups
def set_(
    key: Key,
    value: Annotated[str, Argument(metavar="VALUE", help="The value: text as it stands, but not an empty one.")],
    where: Client,
    ttl: Annotated[
        str | None, Option(metavar="AGE", help="The server deletes it after this long, such as 90s or 2h.")
    ] = None,
    unique: Annotated[bool, Option("--unique", help="Fail if the key already has a value.")] = False,
    as_json: options.Json = False,
) -> None:
    """Set the value under a key; done when the server has done it."""
    from chappe.api.kv.map_values import MapCodec, encode_ttl

    ttl_s = None if ttl is None else parse_age(ttl)
    raw = _raw(value)
    check_key(key)
    MapCodec[bytes](bytes).encode(raw)
    encode_ttl(ttl_s)
    with where.of([_around(key)]) as shared:
        if not unique:
            shared.set(key, raw, ttl=ttl_s, timeout=where.timeout)
        elif not shared.compare_and_set(key, None, raw, ttl=ttl_s, timeout=where.timeout):
            raise StoreError(f"there is a value under {key!a} already")
    if as_json:
        show_json({"key": json_value(_raw(key))})


@app.command("delete", cls=values.Command)
@options.with_groups
def delete(key: Key, where: Client, as_json: options.Json = False) -> None:
    """Remove a key; done when the server has done it."""
    check_key(key)
    with where.of([_around(key)]) as shared:
        if key not in shared:
            raise _no_such_key(key)
        shared.delete(key, timeout=where.timeout)
    if as_json:
        show_json({"key": json_value(_raw(key))})


@app.command("watch", cls=values.Command)
@options.with_groups
def watch(
    where: Client,
    key: Annotated[str | None, Argument(metavar="[KEY]", help="Only this key; without one all of them.")] = None,
    subtrees: Subtrees = None,
    count: Changes = None,
    seconds: Seconds = None,
    as_json: options.Json = False,
) -> None:
    """Print what is inserted, updated and erased, from now on; Ctrl-C ends it."""
    if key is not None and subtrees:
        raise UsageError("give a key or --subtree, not both")
    if key is not None:
        check_key(key)
    subtree = subtrees if key is None else [_around(key)]
    with UntilInterrupted(count, seconds), where.of(subtree) as shared, shared.watch(key=key) as watching:
        say(f"watching the map at {where.servers}, {many(len(shared), 'key')}")
        print_changes(watching, _change_as_json if as_json else _change_as_text, count, seconds)


def check_key(key: str) -> None:
    """Raise UsageError for an invalid key, before any server is asked."""
    from chappe.api.kv.map_values import encode_key

    encode_key(key)


def _around(key: str) -> str:
    """Return the narrowest subtree that contains a key."""
    return _raw(key)[:MAP_SUBTREE_BYTES_MAX].decode("utf-8", "surrogateescape")


def rows(shared: SharedMap[bytes]) -> Iterator[Row]:
    """Return all current entries. They are replaced, never changed: references are enough."""
    return map(shared.member.raw, shared.member.entries())


def as_line(row: Row) -> bytes:
    """Return an entry as a line of JSON, the input of `chappe map load`."""
    key, value, properties = row
    facts = {"key": json_value(key), "value": json_value(value)} | ({"properties": properties} if properties else {})
    return _json(facts)


def _json(facts: dict[str, Any]) -> bytes:
    import msgspec

    return terminal.json_line(msgspec.json.encode(facts)) + b"\n"


def _raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _change_as_text(change: MapChange[bytes]) -> bytes:
    shows = "" if change.value is None else f" -> {readable(change.value)}"
    return f"{change.kind} {readable(_raw(change.key))}{shows}\n".encode()


def _change_as_json(change: MapChange[bytes]) -> bytes:
    facts = {"event": change.kind, "key": json_value(_raw(change.key))}
    facts |= {} if change.value is None else {"value": json_value(change.value)}
    return _json(facts | ({} if change.before is None else {"before": json_value(change.before)}))


def _no_such_key(key: str) -> NoSuchKey:
    return NoSuchKey(f"nothing is in the map under {key!a}")


def _print_table(found: Iterable[Row]) -> None:
    """Print rows sorted by key, cut only where the terminal ends."""
    from rich.cells import cell_len, set_cell_size

    from chappe.cli.screen import People

    console = People()
    shown = [(readable(key), value) for key, value, _ in sorted(found)]
    width = min(KEY_WIDTH, max([3, *(cell_len(key) for key, _ in shown)]))
    most = console.width - 1 if console.is_terminal else None

    def line(key: str, size: str, value: str) -> bytes:
        row = f"{set_cell_size(key, max(width, cell_len(key)))}  {size:>9}  {value}"
        return (row if most is None else set_cell_size(row, most)).rstrip().encode() + b"\n"

    print_lines([line("key", "size", "value")] if shown else ())
    print_lines(line(key, human_bytes(len(value)), readable(value)) for key, value in shown)
