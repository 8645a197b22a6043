"""``chappe topics``: a list of topics without a subcommand; with one, a topic is shown or changed at all stores."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import typer
from typer import Argument, Option
from typer.core import TyperGroup

from chappe.api.log.lines import iso_time
from chappe.cli import completing, options
from chappe.cli.console import hear_warnings, say, show_json, warn
from chappe.cli.listing import print_listing
from chappe.cli.topics import live_producers, looking, topics
from chappe.cli.units import exact_bytes, human_age, human_bytes, parse_age, parse_bytes, parse_moment
from chappe.cli.watching import watchable
from chappe.data.markup import many
from chappe.errors import ChappeError, UsageError
from chappe.log.storage import Retention

if TYPE_CHECKING:
    from chappe.reading.admin import TopicAdmin, TopicChanged

LIST: Final = "list"
HELP: Final = ("-h", "--help")


class _ListByDefault(TyperGroup):
    """Takes arguments that name no subcommand for those of ``list``."""

    def spelled_out(self, args: list[str]) -> list[str]:
        """Return the arguments with the subcommand that they mean."""
        return args if args and (args[0] in self.commands or args[0] in HELP) else [LIST, *args]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, self.spelled_out(args))


app = typer.Typer(
    cls=_ListByDefault,
    name="topics",
    help="List topics; or show, create, set, trim and delete them.\n\n"
    "Without a command, or with names of topics instead of one, it lists.",
)
app.command(LIST)(topics)


Topic: TypeAlias = Annotated[
    str, Argument(metavar="TOPIC", help="Name of the topic.", autocompletion=completing.TOPICS)
]
Age: TypeAlias = Annotated[str | None, Option("--age", metavar="AGE", help="Keep records so long, such as 7d.")]
Bytes: TypeAlias = Annotated[str | None, Option("--bytes", metavar="SIZE", help="Keep so much, such as 10GB.")]
Records: TypeAlias = Annotated[int | None, Option("--records", metavar="NUMBER", help="Keep so many records.", min=1)]
Yes: TypeAlias = Annotated[bool, Option("--yes", help="Do not ask.")]


@app.command()
@watchable
@options.with_groups
def show(topic: Topic, reach: options.Reach, as_json: options.Json = False) -> None:
    """Show a topic: what is kept of it and where, who writes it, and its settings."""
    with _admin(reach) as (admin, call):
        found = admin.describe(topic)
    facts: dict[str, Any] = asdict(found)
    for name in ("oldest", "newest", "changed"):
        facts[name] = None if facts[name] is None else iso_time(facts[name])
    writes = ", ".join(sorted(set(found.producers.values()))) or "nobody that answers"
    rows = [
        ("partitions", f"{found.partitions:,}"),
        ("records", f"{found.records:,}"),
        ("size of one copy", human_bytes(found.bytes)),
        ("oldest", _second(facts["oldest"])),
        ("newest", _second(facts["newest"])),
        ("written by", writes),
        *((f"kept at {call(store)}", _kept(each)) for store, each in found.retention.items()),
        *((f"setting --{name}", value) for name, value in _as_options(found.settings)),
        *([("settings changed", _second(facts["changed"]))] if found.changed else []),
    ]
    print_listing(as_json, facts, ("topic", topic), rows)


@app.command()
@watchable
@options.with_groups
def config(
    reach: options.Reach,
    names: Annotated[
        list[str] | None, Argument(metavar="TOPIC", help="Topics; all by default.", autocompletion=completing.TOPICS)
    ] = None,
    as_json: options.Json = False,
) -> None:
    """List the settings of topics that all stores agree on, and topics that were deleted or trimmed lately."""
    with _admin(reach) as (admin, call):
        catalogue = admin.catalogue()
    facts: list[dict[str, Any]] = [
        {
            "topic": topic,
            "settings": entry.settings,
            "deleted": entry.deleted,
            "changed": iso_time(entry.stamp) if entry.stamp else None,
            "store": entry.origin or None,
            "trimmed_before": iso_time(entry.before) if entry.before else None,
        }
        for topic, entry in sorted(catalogue.items())
        if not names or topic in names
    ]
    if not facts and not as_json:
        say("no topic has settings of its own: every store keeps what its own configuration says")
        return
    rows = [
        (
            each["topic"],
            "deleted" if each["deleted"] else ", ".join(map(" ".join, _as_options(each["settings"]))),
            _second(each["changed"]),
            call(each["store"]) if each["store"] else "",
            _second(each["trimmed_before"]),
        )
        for each in facts
    ]
    print_listing(as_json, {"topics": facts}, ("topic", "settings", "changed", "at store", "trimmed before"), rows)


@app.command()
@options.with_groups
def create(
    topic: Topic,
    reach: options.Reach,
    age: Age = None,
    size: Bytes = None,
    records: Records = None,
    as_json: options.Json = False,
) -> None:
    """Make a topic known before its first record, and say how much of it is kept."""
    retention = _retention(age, size, records)
    with _admin(reach) as (admin, _):
        _tell(admin.create(options.written_topic(topic), retention=retention), "created", as_json)


@app.command("set")
@options.with_groups
def set_(
    topic: Topic,
    reach: options.Reach,
    age: Age = None,
    size: Bytes = None,
    records: Records = None,
    unset: Annotated[bool, Option("--unset", help="Keep what each store is configured to keep.")] = False,
    as_json: options.Json = False,
) -> None:
    """Set how much all stores keep of a topic, in place of what they are configured to keep."""
    retention = _retention(age, size, records)
    if (retention is None) != unset:
        raise UsageError("give --age, --bytes or --records, or else --unset")
    with _admin(reach) as (admin, _):
        _tell(admin.set(topic, retention=retention), "set", as_json)


@app.command()
@options.with_groups
def delete(topic: Topic, reach: options.Reach, yes: Yes = False, as_json: options.Json = False) -> None:
    """Forget all records and settings of a topic, at all stores; one that is away follows when it comes back."""
    with _admin(reach) as (admin, _):
        _confirm(admin, topic, "all records and settings", yes)
        _tell(admin.delete(topic), "deleted", as_json)


@app.command()
@options.with_groups
def trim(
    topic: Topic,
    reach: options.Reach,
    before: Annotated[str, Option("--before", metavar="TIME|AGE", help="Forget what is older, such as 7d.")],
    yes: Yes = False,
    as_json: options.Json = False,
) -> None:
    """Forget the oldest records of a topic, at all stores; one that is away follows when it comes back."""
    moment = parse_moment(before, "--before")
    with _admin(reach) as (admin, _):
        _confirm(admin, topic, f"the records from before {moment.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z", yes)
        _tell(admin.trim(topic, before=moment), "trimmed", as_json)


@contextmanager
def _admin(reach: options.Reach) -> Iterator[tuple[TopicAdmin, Any]]:
    """Open the topics at the stores, with a function that names stores for people."""
    from chappe.reading.admin import TopicAdmin

    hear_warnings(reach.tower)
    with looking(reach, []) as (held, view):
        known = held.clients
        yield TopicAdmin(view, partial(live_producers, reach)), lambda at: held.call(at) if at in known else at[:8]


def _confirm(admin: TopicAdmin, topic: str, what: str, yes: bool) -> None:
    """Ask whether records are to be lost. Raises UsageError where nobody can be asked, UnknownTopic."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"{what} of {topic} would be lost for ever: give --yes")
    found = admin.describe(topic)
    kept = f"{many(found.records, 'record')} ({human_bytes(found.bytes)} in each copy)"
    say(f"{topic} has {kept} at {many(len(found.stores), 'store')}; {what} will be lost for ever")
    if input("go on? [y/N] ").strip().lower() not in ("y", "yes"):
        raise ChappeError("nothing was changed")


def _tell(done: TopicChanged, what: str, as_json: bool) -> None:
    if as_json:
        show_json(asdict(done))
    else:
        lost = f", {many(done.records, 'record')} forgotten" if done.records else ""
        say(f"topic {done.topic} is {what} at {many(len(done.stores), 'store')}{lost}")
        for endpoint in done.away:
            warn(f"the store at {endpoint} does not answer: it takes this before it serves again")
    if done.refused:
        raise ChappeError("; ".join(done.refused.values()))


def _retention(age: str | None, size: str | None, records: int | None) -> Retention | None:
    found = Retention(None if age is None else parse_age(age), None if size is None else parse_bytes(size), records)
    return None if found == Retention() else found


def _as_options(settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each setting as the option that sets it."""
    options_of: dict[str, tuple[str, Callable[[Any], str]]] = {
        "retention_s": ("age", human_age),
        "retention_bytes": ("bytes", exact_bytes),
        "retention_records": ("records", str),
    }
    for setting, value in settings.items():
        name, write = options_of.get(setting, (setting, str))  # a newer store may know others
        yield name, write(value)


def _kept(retention: Retention | None) -> str:
    if retention is None:
        return "it does not tell"
    said = [
        f"the last {human_age(retention.age_s)}" if retention.age_s is not None else "",
        f"{exact_bytes(retention.bytes)} at most" if retention.bytes is not None else "",
        f"{many(retention.records, 'record')} at most" if retention.records is not None else "",
    ]
    return ", ".join(filter(None, said)) or "everything, for ever"


def _second(at: object) -> str:
    return "" if at is None else f"{str(at)[:19]}Z"
