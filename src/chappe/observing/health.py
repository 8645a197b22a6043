"""Problems and their remedies, in sentences, found in the looks of sources. Pure.

Sources report problems that only they can know, such as a store that does not answer; here are those of the picture.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from chappe.observing.snapshot import HealthProblem, ObservedLink, ObservedPart, ObservedPipeline, ObservedTopic

LAG_MAX: Final = 100_000  # records; a reader that is further behind than this is a problem
PIPELINE_LAG_S: Final = 60.0
STALE_S: Final = 10.0  # a clone that has not been up to date for so long is a problem
HELD_BACK_MAX: Final = 1_000  # messages that wait for one peer
TELLS_MAX: Final = 20  # problems of one kind; further ones are one sentence


def problems_of(parts: Sequence[ObservedPart], topics: Iterable[ObservedTopic]) -> list[HealthProblem]:
    """Find the problems of the whole picture; ``topics`` are the ones that changed last."""
    found: list[HealthProblem] = []
    found += _few(_lagging(topics), "readers are far behind", "look at the topics by lag")
    names = {each.id: f"{each.kind} {each.name}" for part in parts for each in part.members}
    found += _few(
        _held_back((each for part in parts for each in part.links), names), "links are full", "look at the map"
    )
    found += _few(_pipelines(each for part in parts for each in part.pipelines), "queries lag", "look at pipelines")
    found += _few(_failed(each for part in parts for each in part.pipelines), "pipelines failed", "look at pipelines")
    found += _few(_stale(parts), "clones are stale", "look at data stores")
    found += _few(_masterless(parts), "data stores have no master", "look at data stores")
    members = [each for part in parts for each in part.members]
    tower = next((each for each in members if each.kind == "tower" and each.level == "good"), None)
    if tower is not None and not any(each.kind == "store" for each in members):
        found.append(
            HealthProblem(
                "no store",
                "warning",
                "The tower knows no store: records are passed on live, and nobody keeps them.",
                f"Start one: chappe store DIRECTORY{f' --tower {tower.address}' if tower.address else ''}",
            )
        )
    return found


def _few(found: Iterable[HealthProblem], many: str, look: str) -> list[HealthProblem]:
    listed = list(found)
    if len(listed) <= TELLS_MAX:
        return listed
    more = len(listed) - TELLS_MAX
    return [
        *listed[:TELLS_MAX],
        HealthProblem(f"more: {many}", "warning", f"{more:,} more {many}.", f"To see all, {look}."),
    ]


def _lagging(topics: Iterable[ObservedTopic]) -> Iterable[HealthProblem]:
    for topic in topics:
        for reader in topic.readers:
            if reader.lag >= LAG_MAX:
                yield HealthProblem(
                    f"lag {topic.name} {reader.name}",
                    "warning",
                    f"{reader.kind.capitalize()} {reader.name} is {reader.lag:,} records behind in topic {topic.name}.",
                    "Start more workers for it, or find out what keeps it: it reads, commits or works too slowly.",
                )


def _held_back(links: Iterable[ObservedLink], names: Mapping[str, str]) -> Iterable[HealthProblem]:
    for link in links:
        for (one, other), waiting in ((link.ends, link.waiting), (link.ends[::-1], link.waiting_back)):
            if waiting >= HELD_BACK_MAX:
                yield HealthProblem(
                    f"full {one} {other}",
                    "warning",
                    f"{waiting:,} messages wait at {names.get(one, one[:8])} for {names.get(other, other[:8])}.",
                    "The one that takes them is too slow: have it subscribe to less, or give it more of a processor.",
                )


def _pipelines(pipelines: Iterable[ObservedPipeline]) -> Iterable[HealthProblem]:
    for pipeline in pipelines:
        for query in pipeline.queries:
            if query.lag_s is not None and query.lag_s >= PIPELINE_LAG_S:
                yield HealthProblem(
                    f"pipeline {pipeline.name} {query.name}",
                    "warning",
                    f"Query {query.name} of pipeline {pipeline.name} is {query.lag_s:.0f} s behind.",
                    "It takes in more than it gets done: give Spark more cores, or lighten the query.",
                )


def _stale(parts: Sequence[ObservedPart]) -> Iterable[HealthProblem]:
    for part in parts:
        for each in part.keepings:
            for copy, age_s in zip(each.copies, each.ages, strict=False):
                if age_s is not None and age_s >= STALE_S:
                    yield HealthProblem(
                        f"stale {each.name} {copy}",
                        "warning",
                        f"The clone of data store {each.name} at {copy[:8]} is not up to date for {age_s:.0f} s.",
                        "Look whether its master runs and can be reached from there; what is read there is old.",
                    )


def _failed(pipelines: Iterable[ObservedPipeline]) -> Iterable[HealthProblem]:
    for pipeline in pipelines:
        if pipeline.error:
            yield HealthProblem(
                f"failed {pipeline.name}",
                "failed",
                f"Pipeline {pipeline.name} ended with an error: {pipeline.error}",
                f"Mend that and start it again: chappe pipeline run {shlex.quote(pipeline.file)}",
            )


def _serve(name: str) -> str:
    return f"chappe kv serve {shlex.quote(name)}, with the options that it had"


def _masterless(parts: Sequence[ObservedPart]) -> Iterable[HealthProblem]:
    for part in parts:
        for each in part.keepings:
            if each.kind == "data store" and each.copies and not each.masters:
                yield HealthProblem(
                    f"masterless {each.name}",
                    "failed",
                    f"Data store {each.name} has clones and no master in reach: it can be read, not written.",
                    f"Start its master again: {each.mend or _serve(each.name)}; or link the endpoint that has it.",
                )
