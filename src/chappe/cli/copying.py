"""``chappe copy``: topics of one site kept at another one too."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final

import typer
from typer import Argument, Option

from chappe.cli import completing, options
from chappe.cli.console import Bar, answers, exit_code, hear_warnings, left_text, rate_of, show_json, tell, warn
from chappe.cli.serving import Metrics, notify, serve_run
from chappe.data.markup import are, many
from chappe.errors import TimedOut, UsageError
from chappe.observing.numbers import Family, of_member
from chappe.system import program

if TYPE_CHECKING:
    from chappe.bridges.copying import CopyProgress

REPORT_S: Final = 5.0  # between two lines of JSON


@dataclass(frozen=True, slots=True)
class CopyTarget:
    """The options that say where the copy goes."""

    PANEL: ClassVar = "Target"
    to_tower: Annotated[
        str | None, Option(metavar="ADDRESS", help="The tower of the other site: HOST[:PORT[:SECOND-PORT]].")
    ] = None
    to_forwarders: Annotated[
        str | None, Option(metavar="ADDRESSES", help="Its forwarders instead: HOST[:PORT], separated by commas.")
    ] = None
    to_as: Annotated[
        str | None, Option(metavar="DIRECTORY/NAME", help="The identity to be there; that of --as if not given.")
    ] = None
    to: Annotated[
        str | None, Option("--to", metavar="TOPIC", help="Another name for one topic, which may stay at this site.")
    ] = None
    min_acks: Annotated[int, Option(min=1, max=100, metavar="N", help="Stores there that must have each record.")] = 1

    def place(self, reach: options.Reach) -> dict[str, Any]:
        """Return the arguments of producers of the target. Raises UsageError."""
        if self.to_tower is not None and self.to_forwarders is not None:
            raise UsageError("give only one of --to-tower and --to-forwarders")
        place = reach.arguments
        if self.to_as is not None:
            place["security"] = options.keys_of(self.to_as)
        if self.to_tower is None and self.to_forwarders is None:
            if self.to is None:
                raise UsageError("say where to: --to-tower or --to-forwarders of another site, or --to TOPIC here")
            return place
        return place | {"tower": self.to_tower, "forwarders": self.to_forwarders}


@options.with_groups
def copy(
    reach: options.Reach,
    target: CopyTarget,
    topics: Annotated[
        list[str], Argument(metavar="TOPIC", help="Topics; `name*` is a prefix.", autocompletion=completing.TOPICS)
    ],
    follow: Annotated[bool, Option("--follow", help="Go on with what comes, until Ctrl-C.")] = False,
    metrics: Metrics = None,
    name: options.Name = None,
    as_json: options.Json = False,
) -> None:
    """Copy topics to another site, each record exactly once.

    Partitions, offsets, keys, headers and timestamps are the same there. The same command again goes on.
    """
    from chappe.bridges.copying import TopicCopy

    program.call_members(name)
    to = None if target.to is None else options.written_topic(target.to)
    place = target.place(reach)
    hear_warnings(place["tower"] or reach.tower)  # of the source no member is there
    for each in (reach.arguments, place):
        if not each["forwarders"] and not answers(each["tower"]):
            raise TimedOut(f"no tower answers at {each['tower']}; start one with: chappe up")
    stop: KeyboardInterrupt | None = None
    with ExitStack() as ending:
        bar = ending.enter_context(Bar("looking at both sites", quiet=as_json))
        made = TopicCopy(topics, reach.arguments, place, to=to, min_acks=target.min_acks)
        ending.enter_context(made)
        url = serve_run(
            metrics, reach.arguments["security"], ending, lambda: _numbers(",".join(topics), made.progress), str
        )
        if url is not None:
            tell(as_json, {"event": "metrics", "url": url}, f"metrics at {url}")
        notify("READY=1")
        made.show = _CopyBar(bar, follow=follow, as_json=as_json).show
        try:
            made.run(follow=follow)
        except KeyboardInterrupt as interrupt:
            stop = interrupt
    done = made.progress
    rate = rate_of(done.sent, done.seconds)
    text = f"copied {many(done.sent, 'record')} in {done.seconds:.1f} s ({rate:,.0f} records/s), {done.stored:,} stored"
    tell(as_json, {"event": "done"} | _facts(done), text)
    if done.gone:
        warn(f"{are(done.gone, 'record')} missing in the copy: the source had let go of them before they were copied")
    if stop is not None and not follow:
        warn("interrupted: the same command goes on from there")
        raise typer.Exit(exit_code(stop))
    if done.gone:
        raise typer.Exit(1)


class _CopyBar:
    def __init__(self, bar: Bar, *, follow: bool, as_json: bool) -> None:
        self._bar = bar
        self._follow = follow
        self._as_json = as_json
        self._report_at = time.monotonic() + REPORT_S

    def show(self, now: CopyProgress) -> None:
        if self._as_json:
            if time.monotonic() >= self._report_at:
                self._report_at += REPORT_S
                show_json({"event": "progress"} | _facts(now))
            return
        rate = rate_of(now.sent, now.seconds)
        text = f"{now.sent:,} copied, {now.stored:,} stored, {rate:,.0f} records/s"
        if self._follow:
            self._bar.update(f"{text}, following", now.sent, None)
        else:
            left = (now.total - now.sent) / rate if rate else None
            self._bar.update(f"{text}{left_text(left)}", now.sent, now.total)


def _numbers(topics: str, now: CopyProgress) -> Iterator[Family]:
    counts = {
        "chappe_copy_records": now.stored,
        "chappe_copy_missing_records": now.gone,
        "chappe_copy_waiting_records": max(0, now.total - now.stored),
    }
    return of_member("copy", topics, counts.items())


def _facts(progress: CopyProgress) -> dict[str, object]:
    return asdict(progress) | {"seconds": round(progress.seconds, 3)}
