"""``chappe kv``: a data store of the mesh, as one of its clones; ``serve`` is its master."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import typer
from typer import Argument, Option

from chappe.api.log.lines import iso_time
from chappe.cli import completing, mesh, options, values
from chappe.cli.console import hear_warnings, tell, warn
from chappe.cli.files import written
from chappe.cli.following import Changes, Seconds
from chappe.cli.kv_serve import serve
from chappe.cli.kv_watch import StoreNotices, follow
from chappe.cli.listing import print_lines
from chappe.cli.units import parse_age
from chappe.cli.watching import watchable
from chappe.data import terminal
from chappe.data.markup import many
from chappe.data.order import same
from chappe.errors import ChappeError, InvalidData, NoSuchKey, StoreError, UsageError

if TYPE_CHECKING:
    from chappe import DataStore, DataStoreEntry, DataStoreRevision
    from chappe.data.values import Value

ATTACH_S: Final = 10.0
CHUNK: Final = 4096  # entries loaded at once
_WIDE: Final = 10_000  # characters, where no terminal says how wide it is

app = typer.Typer(
    name="kv", help="Read and write a data store of the mesh, as a clone of it; or serve one.", no_args_is_help=True
)

app.command("serve")(serve)

Store: TypeAlias = Annotated[
    str, Argument(metavar="STORE", help="Name of the store.", autocompletion=completing.names_of("stores"))
]
Key: TypeAlias = Annotated[str, Argument(metavar="KEY", help=values.HELP)]
Prefix: TypeAlias = Annotated[str | None, Argument(metavar="PREFIX", help="Only keys that are strings and begin so.")]
Revision: TypeAlias = Annotated[
    bool, Option("--revision", help="Print the revision too, and when it expires; with --json as further fields.")
]
IfRevision: TypeAlias = Annotated[
    int | None,
    Option(min=1, metavar="N", help="Fail if the key was changed since this revision, as get --revision prints it."),
]
Timeout: TypeAlias = Annotated[
    float, Option(min=0.1, metavar="SECONDS", help="How long the store's master is waited for.")
]


@dataclass(frozen=True)
class Clone(mesh.Trust, mesh.Queues):
    """The options that say where the store is, and how long to wait for its master."""

    peers: mesh.Peers = None
    timeout: Timeout = ATTACH_S

    @contextmanager
    def of(self, name: str, *, follow: mesh.DialOptions | None = None) -> Iterator[DataStore]:
        """Attach a clone. ``follow`` reports changes of peers and master, and redials lost peers.

        Raises NoMaster if no master answers within ``timeout``.
        """
        hear_warnings()
        security = self.security()
        dialled = mesh.addresses(security, self.peers or [mesh.HERE])
        with self.endpoint(security, forwarding=False) as endpoint:
            mesh.dial(endpoint, dialled)
            if follow is not None:
                endpoint.statuses(callback=StoreNotices())
                follow.keep(endpoint, dialled)
            with endpoint.attach_clone(name, timeout=self.timeout) as store:
                yield store


@app.command("get", cls=values.Command)
@options.with_groups
def get(
    store: Store,
    key: Key,
    where: Clone,
    revision: Revision = False,
    as_text: values.Text = False,
    as_json: options.Json = False,
) -> None:
    """Print the value under a key."""
    wanted = values.read_argument(key, as_text=as_text)
    with where.of(store) as clone:
        entries = clone.snapshot()
        found = [each.typed.value for each in entries if same(each.typed.key, wanted)]
        entry = clone.entry(wanted) if revision and found else None
    if not found:
        raise _no_such_key(store, key, wanted, [each.typed.key for each in entries])
    value = found[0] if entry is None else entry.typed.value
    if as_json:
        text = values.typed(value)
        print_lines([_json_line(f'{{"value":{text}{_json_facts(entry)}}}' if entry is not None else text)])
        return
    facts = [] if entry is None else [f"{each}\n".encode() for each in _facts(entry)]
    print_lines([values.line_of(value, as_text=as_text), *facts])


@app.command("put", cls=values.Command)
@options.with_groups
def put(
    store: Store,
    key: Key,
    value: Annotated[str, Argument(metavar="VALUE", help=values.HELP)],
    where: Clone,
    unique: Annotated[bool, Option("--unique", help="Fail if the key already has a value.")] = False,
    if_revision: IfRevision = None,
    expiry: Annotated[str | None, Option(metavar="AGE", help="Remove it after this long, such as 90s or 2h.")] = None,
    as_text: values.Text = False,
    as_json: options.Json = False,
) -> None:
    """Set the value under a key; done when the master has done it."""
    if unique and if_revision is not None:
        raise UsageError("give --unique for a key that has no value or --if-revision for one that has, not both")
    name, given = (values.read_argument(each, as_text=as_text) for each in (key, value))
    expiry_s = None if expiry is None else parse_age(expiry)
    with where.of(store) as clone:
        if if_revision is not None:
            clone.put_if(name, given, if_revision, expiry_s=expiry_s, timeout=where.timeout)
        elif not unique:
            clone.put(name, given, expiry_s=expiry_s, timeout=where.timeout)
        elif not clone.put_unique(name, given, expiry_s=expiry_s, timeout=where.timeout):
            raise StoreError(f"there is a value under {key} in store {store} already")
    if as_json:
        print(f'{{"store":{json.dumps(store)},"key":{values.typed(name)}}}')


@app.command("erase", cls=values.Command)
@options.with_groups
def erase(store: Store, key: Key, where: Clone, if_revision: IfRevision = None, as_text: values.Text = False) -> None:
    """Remove a key; done when the master has done it."""
    wanted = values.read_argument(key, as_text=as_text)
    with where.of(store) as clone:
        if not clone.exists(wanted):
            raise _no_such_key(store, key, wanted, [each.typed.key for each in clone.snapshot()])
        if if_revision is None:
            clone.erase(wanted, timeout=where.timeout)
        else:
            clone.erase_if(wanted, if_revision, timeout=where.timeout)


@app.command("history", cls=values.Command)
@watchable
@options.with_groups
def history(store: Store, key: Key, where: Clone, as_text: values.Text = False, as_json: options.Json = False) -> None:
    """Print the latest changes of a key, the oldest first, as many as its master keeps (serve --history)."""
    wanted = values.read_argument(key, as_text=as_text)
    with where.of(store) as clone:
        found = clone.history(wanted, timeout=where.timeout)
        there = [] if found else [each.typed.key for each in clone.snapshot()]
    if not found:
        raise _no_such_key(store, key, wanted, there)
    if as_json:
        print_lines(map(_change_as_json, found))
        return
    from chappe.cli.screen import Fitting, wide_console

    rows = [
        (
            str(each.revision),
            "" if each.at_ns is None else iso_time(each.at_ns // 1000),
            each.operation,
            values.shown(each.typed.value, as_text=as_text) if each.operation == "put" else "",
            "" if each.publisher is None else str(each.publisher),
        )
        for each in found
    ]
    wide_console(_WIDE).print(
        Fitting(("revision", "time", "operation", "value", "by"), rows, ("time", "operation", "value", "by"), ("by",))
    )


@app.command("list", cls=values.Command)
@watchable
@options.with_groups
def list_(
    store: Store,
    where: Clone,
    prefix: Prefix = None,
    revision: Revision = False,
    as_text: values.Text = False,
    as_json: options.Json = False,
) -> None:
    """Print all keys and their values, or those whose keys begin so."""
    render = values.entry_as_json if as_json else partial(values.entry_as_text, as_text=as_text)
    with where.of(store) as clone:
        entries = [each for each in clone.snapshot() if values.of_prefix(each.typed.key, prefix)]
        if revision:
            entries = [found for each in entries if (found := clone.entry(each.typed.key)) is not None]
    if not revision:
        print_lines(render(each.typed.key, each.typed.value) for each in entries)
        return
    lines = ((render(each.typed.key, each.typed.value), each) for each in entries)
    if as_json:
        print_lines(
            _json_line(f"{line[:-2].decode('utf-8', 'surrogateescape')}{_json_facts(each)}}}") for line, each in lines
        )
    else:
        print_lines(line[:-1] + f"  ({', '.join(_facts(each))})\n".encode() for line, each in lines)


@app.command("watch", cls=values.Command)
@options.with_groups
def watch(
    store: Store,
    where: Clone,
    dialling: mesh.DialOptions,
    prefix: Prefix = None,
    key: Annotated[str | None, Option(metavar="KEY", help="Only this key.")] = None,
    count: Changes = None,
    seconds: Seconds = None,
    as_text: values.Text = False,
    as_json: options.Json = False,
) -> None:
    """Print what is inserted, updated, erased and expires."""
    if prefix is not None and key is not None:
        raise UsageError("give a prefix or --key, not both")
    wanted = {} if key is None else {"key": values.read_argument(key, as_text=as_text)}
    wanted |= {} if prefix is None else {"prefix": prefix}
    with where.of(store, follow=dialling) as clone:
        follow(clone, wanted, count, seconds, as_json, as_text)


@app.command("dump")
@options.with_groups
def dump(
    store: Store,
    where: Clone,
    file: Annotated[str, Argument(metavar="FILE|-", help="Where to; standard output by default.")] = "-",
    as_json: options.Json = False,
) -> None:
    """Write a store's entries as JSON, one a line, as `chappe kv load` reads them."""
    with where.of(store) as clone:
        entries = [each.typed for each in clone.snapshot()]
    with written(file) as out:
        out.writelines(values.entry_as_json(each.key, each.value) for each in entries)
    tell(
        as_json and file != "-",
        {"store": store, "dumped": len(entries)},
        f"dumped {many(len(entries), 'entry', 'entries')}",
    )


@app.command("load")
@options.with_groups
def load(
    store: Store,
    where: Clone,
    file: Annotated[str, Argument(metavar="FILE|-", help="Where from; standard input by default.")] = "-",
    as_json: options.Json = False,
) -> None:
    """Set what `chappe kv dump` has written; other keys stay."""
    source = sys.stdin.buffer if file == "-" else open(file, "rb")  # noqa: SIM115  # closed below
    done = 0
    problem: ChappeError | None = None
    with source, where.of(store) as clone:
        try:
            for chunk in _chunks(source):
                clone.put_many(chunk)
                done += len(chunk)
        except ChappeError as error:
            problem = error
    tell(as_json, {"store": store, "loaded": done}, f"loaded {many(done, 'entry', 'entries')}")
    if problem is not None:
        warn(f"{problem}; what came before it is loaded")
        raise typer.Exit(1)


def _facts(entry: DataStoreEntry) -> list[str]:
    expires = [] if entry.expires_ns is None else [f"expires {iso_time(entry.expires_ns // 1000)}"]
    return [f"revision {entry.revision}", *expires]


def _json_facts(entry: DataStoreEntry) -> str:
    return f',"revision":{entry.revision},"expires_ns":{json.dumps(entry.expires_ns)}'


def _change_as_json(change: DataStoreRevision) -> bytes:
    parts = [f'"revision":{change.revision}', f'"operation":"{change.operation}"']
    if change.operation == "put":
        parts.append(f'"value":{values.typed(change.typed.value)}')
    publisher = None if change.publisher is None else str(change.publisher)
    parts += [f'"at_ns":{json.dumps(change.at_ns)}', f'"publisher":{json.dumps(publisher)}']
    return _json_line(f"{{{','.join(parts)}}}")


def _json_line(text: str) -> bytes:
    return terminal.json_line(f"{text}\n".encode("utf-8", "surrogateescape"))


def _chunks(lines: Iterable[bytes]) -> Iterator[list[tuple[object, object]]]:
    """Yield entries, many at a time. Raises UsageError for a malformed line, after the entries before it."""
    chunk: list[tuple[object, object]] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            chunk.append(values.read_entry(line))
        except InvalidData as problem:
            yield chunk
            raise UsageError(f"line {number}: {problem}") from None
        if len(chunk) == CHUNK:
            yield chunk
            chunk = []
    yield chunk


def _no_such_key(store: str, key: str, wanted: object, there: list[Value]) -> NoSuchKey:
    """Return the error, with a hint if a key of another type has the same text."""
    from chappe.data.text import to_text

    meant = next((each for each in there if to_text(each) == to_text(wanted)), None)
    other = "" if meant is None else f"; under {values.shown(meant)} there is something"
    return NoSuchKey(f"nothing is stored under {key} in store {store}{other}")
