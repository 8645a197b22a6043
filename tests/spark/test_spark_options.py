"""Options: what is accepted, and the sentences for what is not."""

from __future__ import annotations

import pytest

from chappe.data.topic import Filter
from chappe.errors import UsageError
from chappe.spark.options import Options

STORE = "tcp://127.0.0.1:5558"


def test_the_usual_options() -> None:
    parsed = Options.parse({"stores": f"{STORE}, tcp://h:1", "SUBSCRIBE": "a, b", "startingOffsets": "earliest"})
    assert parsed.stores == (STORE, "tcp://h:1")
    assert parsed.filters == (Filter("a"), Filter("b"))
    assert parsed.starting == "earliest"
    assert parsed.fail_on_data_loss
    assert parsed.tower is None


def test_without_stores_the_tower_of_this_machine_is_asked() -> None:
    assert Options.parse({"subscribePattern": "a.*"}).tower == "127.0.0.1:5556"


def test_offsets_as_json_are_sorted() -> None:
    parsed = Options.parse({"subscribe": "t", "startingOffsets": '{"t": {"b": 5, "a": -1}}'})
    assert repr(parsed.starting) == "{'t': {'a': -1, 'b': 5}}"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "say what to read with `subscribe`"),
        ({"subscribe": "a", "subscribePattern": "b*"}, "not both"),
        ({"subscribe": " , "}, "names no topic"),
        ({"subscribe": "a*"}, "for a prefix use `subscribePattern`"),
        ({"subscribePattern": "a.+"}, r"a prefix with \* at its end"),
        ({"subscribe": "a", "stores": "localhost:1"}, "tcp://host:port"),
        ({"subscribe": "a", "stores": STORE, "tower": "h"}, "not both"),
        ({"subscribe": "a", "maxOffsetsPerTrigger": "1"}, "did you mean `maxRecordsPerTrigger`?"),
        ({"subscribe": "a", "startingOfsets": "1"}, "did you mean `startingOffsets`?"),
        ({"subscribe": "a", "zzz": "1"}, "unknown option `zzz` of format chappe: there are stores, tower"),
        ({"subscribe": "a", "startingOffsets": "first"}, '`startingOffsets` is "earliest", "latest" or JSON'),
        ({"subscribe": "a", "startingOffsets": "[1]"}, "or JSON"),
        ({"subscribe": "a", "startingOffsets": '{"a": {"p": -3}}'}, "or JSON"),
        ({"subscribe": "a", "startingOffsets": '{"a": {"p": 1.5}}'}, "or JSON"),
        ({"subscribe": "a", "startingOffsets": '{"b": {"p": 1}}'}, "'b', which is not subscribed to"),
        ({"subscribe": "a", "endingOffsets": "earliest"}, "nothing would be read"),
        ({"subscribe": "a", "maxRecordsPerTrigger": "0"}, "a number of at least 1"),
        ({"subscribe": "a", "minPartitions": "many"}, "a number of at least 1"),
        ({"subscribe": "a", "failOnDataLoss": "yes"}, "true or false"),
    ],
)
def test_mistakes_are_named(options: dict[str, str], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        Options.parse(options)
