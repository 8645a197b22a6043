"""What tells a query that begins anew from one that goes on: where its checkpoint lies, and its name.

Spark gives a query its id with its checkpoint, so with a checkpoint that was deleted it is another query, and would
write all its rows once more. Stores therefore remember for each place of a checkpoint and each name of a query, by
topic, which query wrote last: as sinks of their own, whose run is the id of that query, at every store. A new query of
the same place or name is refused if the other has written anything, until the user names it in ``writeAgain``.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from chappe.errors import ChappeError, Fenced, TimedOut, UsageError
from chappe.spark.home import Home, Sink, Stores, ask_all, client_of, settle

logger = logging.getLogger(__name__)

_REMOTE = re.compile(r"(?!file:)[A-Za-z][A-Za-z0-9+.-]+:")  # a place that all machines mean alike


@dataclass(frozen=True, slots=True)
class Origin:
    """Something by which a query is known again, though its checkpoint is gone."""

    name: str  # of the sink that remembers it
    text: str  # what it is, as a part of a sentence

    @classmethod
    def of(cls, kind: str, what: str, topic: str | None) -> Origin:
        """Of one query in one topic, or in those that its rows name."""
        digest = hashlib.sha256("\0".join((kind, what, topic or "")).encode("utf-8", "replace")).hexdigest()
        return cls(f"origin {digest}", f"{kind} {what}")


def origins_of(options: Mapping[str, str], topic: str | None) -> tuple[Origin, ...]:
    """Those of the query that Spark gave these options."""
    given = {name.lower(): value for name, value in options.items()}
    found = []
    place = given.get("checkpointlocation")
    if place:
        if not _REMOTE.match(place):
            path = "/" + place[5:].lstrip("/") if place.startswith("file:") else os.path.abspath(place)
            place = f"{platform.node()}:{os.path.normpath(path)}"
        found.append(Origin.of("checkpoint", place.rstrip("/"), topic))
    if given.get("queryname"):
        found.append(Origin.of("name", given["queryname"], topic))
    return tuple(found)


def begin(stores: Stores, sink: Sink, batch: int, origins: Sequence[Origin], again: str | None) -> Home:
    """As ``settle``, for a streaming query; the rows of the query ``again`` may be written once more.

    Raises:
        UsageError: The query began anew, and what it had written is there; or its checkpoint is older than that.
    """
    home = settle(
        stores,
        sink,
        batch,
        on_first=partial(_refuse_repetition, sink=sink, origins=origins, again=again),
        on_settled=partial(_remember, sink=sink, origins=origins),
    )
    if batch < home.committed:  # Spark repeats the last batch at most
        raise UsageError(
            f"this query is at batch {batch}, and has committed batch {home.committed} already: its checkpoint is an "
            "older copy; bring back the newest, or begin with a new one"
        )
    return home


def _refuse_repetition(stores: Stores, *, sink: Sink, origins: Sequence[Origin], again: str | None) -> None:
    for origin in origins:
        before = {answer.run for answer in ask_all(stores.endpoints, origin.name).values()}
        for query in sorted(before - {"", sink.name, again}):
            batches = _batches(stores, query)
            if batches:
                raise UsageError(
                    f"a query of the same {origin.text} has written {batches} here, and this one begins anew, as if "
                    f"its checkpoint were gone: bring it back, or set `writeAgain` to {query} to write all rows again"
                )


def _batches(stores: Stores, query: str) -> str:
    """What a query has committed, as a part of a sentence; empty for nothing."""
    answers = ask_all(stores.endpoints, query).values()
    count = 1 + max((answer.batch for answer in answers), default=-1)
    if count:
        return f"{count} batches" if count > 1 else "a batch"
    known = {answer.store_id for answer in answers}
    away = {answer.home for answer in answers if answer.home and answer.home not in known}
    return f"to the store {away.pop()}, which is not there," if away else ""


def _remember(stores: Stores, *, sink: Sink, origins: Sequence[Origin]) -> None:
    """At every store that answers, before anything is written; the others hear of it with the next run."""
    for origin in origins:
        answers = ask_all(stores.endpoints, origin.name)
        if not answers:
            raise TimedOut(f"no store answers at {stores}; start one or correct the address")
        for endpoint, answer in answers.items():
            if answer.run == sink.name:
                continue
            try:
                client_of(endpoint).attach_sink(origin.name, sink.name, answer.store_id, True)
            except Fenced:  # a checkpoint that was brought back; the other query stays remembered
                continue
            except ChappeError as error:
                logger.warning("%s", error)
