"""Pipelines of this user on this machine: what each writes about itself once a second, as Prometheus gets it."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from chappe.observing.snapshot import (
    ObservedMember,
    ObservedPart,
    ObservedPipeline,
    ObservedQuery,
    readable,
)
from chappe.spark.pipeline.states import Failure, PipelineState, States

PIPELINES_MAX: Final = 200


class PipelineSource:
    name = "pipelines"
    mend = "Make the directory of chappe's state readable; `chappe pipeline list` tells more"

    def __init__(self, states: States | None = None) -> None:
        self._states = states or States()

    def look(self) -> ObservedPart:
        running = self._states.running()
        found = [pipeline_of(each) for each in running[:PIPELINES_MAX]]
        alive = {each.name for each in running}
        ended = [each for each in self._states.failures() if each.name not in alive]
        members = tuple(
            ObservedMember(
                f"pipeline {each.name}", "pipeline", each.name, f"process {each.pid}", each.stage,
                facts=(("file", each.file), ("since", each.since), ("queries", str(len(each.queries)))),
            )
            for each in found
        )  # fmt: skip
        left_out = len(running) - len(found)
        notes = (f"{left_out:,} pipelines are left out",) if left_out > 0 else ()
        failed = [_ended(each) for each in ended]
        return ObservedPart(members=members, pipelines=(*found, *failed), notes=notes)

    def close(self) -> None: ...


def pipeline_of(state: PipelineState) -> ObservedPipeline:
    return ObservedPipeline(
        name=readable(state.name),
        stage=readable(state.stage),
        pid=state.pid,
        since=state.began,
        updated=state.updated,
        file=readable(state.file),
        page=_page(state.page),
        log=readable(state.log),
        queries=tuple(map(_readable, state.queries)),
    )


def _readable(query: ObservedQuery) -> ObservedQuery:
    lag = tuple(replace(each, topic=readable(each.topic)) for each in query.lag)
    return replace(query, name=readable(query.name), lag=lag)


def _ended(failure: Failure) -> ObservedPipeline:
    return ObservedPipeline(
        name=readable(failure.name),
        stage="failed",
        pid=0,
        since="",
        updated=readable(failure.at),
        file=readable(failure.file),
        log=readable(failure.log),
        error=readable(failure.error),
        error_at=readable(failure.at),
    )


def _page(given: str) -> str:
    """Return Spark's own page, if that is an address of a page: what is written in a file becomes a link."""
    return given if given.startswith(("http://", "https://")) else ""
