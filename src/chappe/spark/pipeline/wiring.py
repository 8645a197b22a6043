"""The options of source and sink that a pipeline's file means, checked by source and sink themselves."""

from __future__ import annotations

from collections.abc import Iterator

from chappe.errors import UsageError
from chappe.reading.pattern import escaped
from chappe.spark.options import Options
from chappe.spark.pipeline.model import Input, Output, Pipeline, Place, Problem
from chappe.spark.sink_options import SinkOptions


def source_options(given: Input, towers: str) -> dict[str, str]:
    """Options of ``format("chappe")`` for an input; ``towers`` is asked where the file names no stores."""
    pattern = f"{escaped(given.prefix or '')}.*"
    what = {"subscribe": ",".join(given.topics)} if given.topics else {"subscribePattern": pattern}
    return {**_place(given.place, towers), **what, **given.starting, **given.options}


def sink_options(given: Output, towers: str) -> dict[str, str]:
    """Options of ``format("chappe")`` for an output to a topic or table."""
    topic = {"topic": given.topic} if given.topic else {}
    return {**_place(given.place, towers), **topic, **given.options}


def option_problems(pipeline: Pipeline, towers: str) -> Iterator[Problem]:
    """Options that source or sink refuse."""
    for each in pipeline.inputs:
        try:
            Options.parse(source_options(each, towers))
        except UsageError as error:
            yield pipeline.problem(("inputs", each.name), f"input {each.name}: {error}")
    for query in pipeline.queries:
        if query.output.kind in ("topic", "table"):
            try:
                SinkOptions.parse(sink_options(query.output, towers))
            except UsageError as error:
                yield pipeline.problem((*query.at, "output"), f"output of {query.name}: {error}")


def _place(place: Place, towers: str) -> dict[str, str]:
    if place.stores:
        return {"stores": ",".join(place.stores)}
    return {"towers": ",".join(place.towers) or towers}
