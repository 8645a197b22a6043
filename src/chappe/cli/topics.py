"""``chappe topics``: the contents of all stores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

from typer import Argument, Option

from chappe.api.log.lines import iso_time
from chappe.cli import completing, options
from chappe.cli.console import answers, hear_warnings, show, show_json, warn
from chappe.cli.listing import print_table
from chappe.cli.units import human_bytes, parse_moment
from chappe.cli.watching import watchable
from chappe.data.topic import Filter, similar
from chappe.errors import ChappeError, TimedOut, UnknownTopic, UsageError
from chappe.observing.snapshot import called

if TYPE_CHECKING:
    from chappe.reading.offsets import Key, KnownPartition
    from chappe.reading.view import StoresView
    from chappe.transports.queries import StoreClient

DISCOVER_S: Final = 2.0
HURRY_S: Final = 1.0  # for optional facts


class Holdings(NamedTuple):
    """The partitions of all stores that answered, taken together."""

    known: Mapping[Key, KnownPartition]
    stores: Mapping[str, str]  # their ids, by the endpoints that ``known`` names
    clients: Mapping[str, StoreClient]  # with what each store tells of itself, by its id
    let_go: Mapping[
        Key, Mapping[str, int]
    ]  # the number of records that a store, by its endpoint, has and another let go

    def call(self, store: str) -> str:
        """Return people's name for a store, with the beginning of its id."""
        return called(self.clients[store].name, store)


def look(reach: options.Reach, filters: Sequence[Filter]) -> Holdings:
    """Ask every store for its share of the topics that ``filters`` select; none selects all.

    Raises:
        TimedOut: No store could be found, or none answered.
    """
    with looking(reach, filters) as (held, _):
        return held


@contextmanager
def looking(reach: options.Reach, filters: Sequence[Filter]) -> Iterator[tuple[Holdings, StoresView]]:
    """Do the same, and keep the stores open for more questions while the context lasts."""
    from chappe.api.log.discovery import discover
    from chappe.reading.selection import Selection
    from chappe.reading.view import StoresView

    stores = {each.endpoint: each.store_id for each in discover(**reach.arguments, timeout=DISCOVER_S)}
    if not stores:
        if reach.forwarders:
            raise TimedOut(f"no forwarder answers at {reach.forwarders}; start one with: {reach.command}")
        if not answers(reach.tower):
            raise TimedOut(f"no tower answers at {reach.tower}; start one with: chappe up")
        raise TimedOut(f"{reach.named} knows no store; start one with: {reach.command}")
    with closing(StoresView(Selection(tuple(filters) or (Filter("", prefix=True),)), list(stores))) as view:
        try:
            view.refresh()
        except TimedOut:
            raise TimedOut(f"none of the {len(stores)} stores that {reach.named} knows answered") from None
        clients = {endpoint: client for endpoint in stores if (client := view.client(endpoint)) is not None}
        ids = {endpoint: stores[endpoint] for endpoint in clients}
        yield Holdings(view.known, ids, {ids[at]: client for at, client in clients.items()}, view.let_go()), view


def check_known(held: Holdings, filters: Sequence[Filter], reach: options.Reach) -> None:
    """Raise UnknownTopic for a topic that no store has; the error suggests similar names."""
    for each in filters:
        if not each.prefix and not any(topic == each.name for topic, _ in held.known):
            names = sorted({topic for topic, _ in look(reach, []).known})
            who = "the store does not have a topic"
            if len(held.stores) != 1:
                who = f"none of {len(held.stores)} stores has a topic"
            raise UnknownTopic(f"{who} {each.name!r}{_instead(each.name, names)}")


def none_matches(patterns: Sequence[Filter], reach: options.Reach) -> str | None:
    """Return a sentence for the case that topics exist and none is selected; None if there are no topics."""
    names = sorted({topic for topic, _ in look(reach, []).known})
    if not names:
        return None
    shown = " or ".join(repr(str(each)) for each in patterns)
    there = "the only topic does not match" if len(names) == 1 else f"none of the {len(names):,} topics matches"
    return f"{there} {shown}{_instead(patterns[0].name, names)}"


def _instead(name: str, names: Sequence[str]) -> str:
    near = similar(name, names)
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else "; `chappe topics` lists all"


def new_beside(topic: str, partition: str, reach: options.Reach) -> list[str]:
    """Ask one store for topics of nearly the name of ``topic``, if only ``partition`` has written to it.

    Errors give an empty answer: they are reported elsewhere.
    """
    from chappe.api.log.discovery import discover
    from chappe.transports.queries import StoreClient

    with suppress(ChappeError, OSError):
        for store in discover(**reach.arguments, timeout=HURRY_S, settle_s=0.0)[:1]:
            with closing(StoreClient(store.endpoint, HURRY_S)) as client:
                infos, _ = client.heads()
            if all(info.topic != topic or info.partition == partition for info in infos):
                return similar(topic, [info.topic for info in infos])
    return []


@watchable
@options.with_groups
def topics(
    reach: options.Reach,
    names: Annotated[
        list[str] | None,
        Argument(metavar="TOPIC", help="Topics; `name*` is a prefix.", autocompletion=completing.TOPICS),
    ] = None,
    partitions: Annotated[bool, Option("--partitions", help="One line for each partition.")] = False,
    plot: Annotated[bool, Option("--plot", help="Draw when records came, and how large topics are.")] = False,
    since: Annotated[
        str | None, Option(metavar="TIME|AGE", help="With --plot: from then until now, instead of all times.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """List topics: partitions, records, heads, sizes, times, and the stores that hold them."""
    if plot and as_json:
        raise UsageError("give only one of --plot and --json")
    if since is not None and not plot:
        raise UsageError("--since is for --plot")
    begin = None if since is None else parse_moment(since, "--since")
    hear_warnings(reach.tower)
    filters = [Filter.parse(name) for name in names or ()]
    if plot:
        from chappe.cli.topics_plot import draw

        with looking(reach, filters) as (held, view):
            check_known(held, filters, reach)
            if held.known:
                draw(view, partitions, begin)
            else:
                _say_none(filters, reach)
        return
    with looking(reach, filters) as (held, view):
        created = _heed_catalogue(held, view, filters)
    check_known(held, [each for each in filters if each.name not in created], reach)
    groups = groupby(sorted(held.known), None if partitions else itemgetter(0))
    producers = live_producers(reach) if partitions and held.known else {}
    rows = [_facts(list(group), held, producers, partitions) for _, group in groups]
    rows += [] if partitions else [_empty(topic) for topic in sorted(created)]
    rows.sort(key=itemgetter("topic"))
    if not rows:
        _say_none(filters, reach, quiet=as_json)
    elif as_json:
        for row in rows:
            show_json(row)
    else:
        _print_table(rows, held, partitions)
        for store, client in sorted(held.clients.items()):
            when = f"at {iso_time(client.scrubbed_us)[:19]}Z" if client.scrubbed_us else "not yet"
            show(f"store {held.call(store)} last had all it keeps read and checked: {when}")
        for row in rows:
            for store, count in row["deleted_elsewhere"].items():
                what = f"{count:,} record{'' if count == 1 else 's'} of topic {row['topic']}"
                gets = "a store that joins empty gets them"
                show(f"store {held.call(store)} has {what} that another store has let go; {gets}")
        for store, client in sorted(held.clients.items()):
            for who, verb, count in client.refusals:
                times = f"{count:,} time{'' if count == 1 else 's'}"
                show(f"store {held.call(store)} has refused since its start: {who} may not {verb}, {times}")


def _heed_catalogue(held: Holdings, view: StoresView, filters: Sequence[Filter]) -> set[str]:
    """Leave out deleted topics of which nothing is kept; return those that were created and have no partition."""
    from chappe.reading.admin import TopicAdmin

    there: set[str] = set()
    with suppress(ChappeError):  # of stores that are too old to have a catalogue
        there = set(TopicAdmin(view).topics())
        for key in [key for key in held.known if key[0] not in there]:
            view.known.pop(key, None)
    known = {topic for topic, _ in held.known}
    return {each for each in there - known if not filters or any(wanted.matches(each) for wanted in filters)}


def _empty(topic: str) -> dict[str, Any]:
    nothing = {"partitions": 0, "records": 0, "head": -1, "bytes": 0, "oldest": None, "newest": None}
    return {"topic": topic, **nothing, "stores": [], "names": {}, "deleted_elsewhere": {}}


def _say_none(filters: Sequence[Filter], reach: options.Reach, *, quiet: bool = False) -> None:
    others = none_matches(filters, reach) if filters else None
    if others is not None:
        warn(others)
    elif not quiet:
        print("no topics yet; make one with: echo hello | chappe produce greetings")


def live_producers(reach: options.Reach) -> dict[str, str]:
    """Return names of the producers that are there, by partition, as far as they answer."""
    from chappe.api.log.looking import LogWatch

    with suppress(ChappeError, OSError), closing(LogWatch(**reach.arguments)) as watch:
        return watch.names(HURRY_S)
    return {}


def _facts(keys: Sequence[Key], held: Holdings, producers: Mapping[str, str], by_partition: bool) -> dict[str, Any]:
    from chappe.reading.topics import TopicSummary

    topic, partition = keys[0]
    found = TopicSummary.of(topic, [held.known[key] for key in keys])
    elsewhere: Counter[str] = Counter()
    for key in keys:
        elsewhere.update({held.stores[each]: count for each, count in held.let_go.get(key, {}).items()})
    stores = sorted({held.stores[each] for each in found.stores})
    return {
        "topic": topic,
        **({"partition": partition, "producer": producers.get(partition)} if by_partition else {}),
        **({} if by_partition else {"partitions": found.partitions}),
        "records": found.records,
        "head": found.head,
        "bytes": found.bytes,
        "oldest": None if found.oldest is None else iso_time(found.oldest),
        "newest": None if found.newest is None else iso_time(found.newest),
        "stores": stores,
        "names": {each: name for each in stores if (name := held.clients[each].name)},
        "deleted_elsewhere": dict(sorted(elsewhere.items())),
    }


def _print_table(rows: Sequence[dict[str, Any]], held: Holdings, by_partition: bool) -> None:
    named = any(row.get("producer") for row in rows)
    kind = "partition" if by_partition else "partitions"
    heads = ("topic", kind, *(["producer"] if named else []), "records", "head", "size", "oldest", "newest", "stores")
    cells = [
        (
            row["topic"],
            row["partition"] if by_partition else f"{row['partitions']:,}",
            *([row["producer"] or ""] if named else []),
            f"{row['records']:,}",
            f"{row['head']:,}",
            human_bytes(row["bytes"]),
            *("" if row[name] is None else row[name][:19] + "Z" for name in ("oldest", "newest")),
            ", ".join(sorted(map(held.call, row["stores"]))),
        )
        for row in rows
    ]
    print_table(
        heads,
        cells,
        right=("partitions", "records", "head", "size"),
        ids=("partition",) if by_partition else (),
        spare=("oldest", "size", "head"),
    )
