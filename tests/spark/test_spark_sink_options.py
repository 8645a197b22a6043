"""What a write accepts of options, and the sentences for what it does not."""

from __future__ import annotations

import pytest

from chappe.errors import UsageError
from chappe.spark.options import SinkOptions

STORE = "tcp://127.0.0.1:5558"


def test_the_usual_options() -> None:
    parsed = SinkOptions.parse(
        {"stores": STORE, "TOPIC": "t", "orderBy": "a, b", "checkpointLocation": "/c", "queryName": "q"}
    )
    assert (parsed.stores, parsed.towers, parsed.topic, parsed.min_acks) == ((STORE,), None, "t", 1)
    assert (parsed.order, parsed.write_id) == (("a", "b"), None)
    assert SinkOptions.parse({}).towers == "127.0.0.1:5556"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"stores": STORE, "towers": "h"}, "not both"),
        ({"topics": "a"}, "did you mean `topic`?"),
        ({"subscribe": "a"}, "that is for reading; did you mean `topic`?"),
        ({"minAck": "2"}, "did you mean `minAcks`?"),
        ({"kafka.bootstrap.servers": "h:1"}, "did you mean `towers` or `stores`?"),
        ({"path": "/x"}, "without a path"),
        ({"topic": ""}, "`topic`: a topic needs a name"),
        ({"topic": "t" * 256}, "`topic`: topic is 256 bytes long"),
        ({"minAcks": "0"}, "`minAcks` is a whole number of at least 1"),
        ({"minAcks": "2", "stores": STORE}, "`minAcks` is 2, and `stores` names only 1"),
        ({"writeId": ""}, "`writeId` is a name of 1 to 200 bytes"),
        ({"writeBatch": "1"}, "`writeBatch` numbers the writes of a `writeId`"),
        ({"writeId": "a", "writeBatch": "-1"}, "`writeBatch` is a number of at least 0"),
        ({"orderBy": "a,,b"}, "`orderBy` names columns"),
        ({"fetchTimeout": "soon"}, "`fetchTimeout` is a number of seconds"),
    ],
)
def test_wrong_options_are_named(options: dict[str, str], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        SinkOptions.parse(options)
