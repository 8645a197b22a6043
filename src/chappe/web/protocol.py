"""The frames of the JSON protocol that Zeek's users know, at ``/v1/messages/json``; all are text.

The client's first frame is an array of topic prefixes, and the server's answer
``{"type":"ack","endpoint":ID,"version":V}``. Then both send data messages; ``chappe.data.json`` says how they look.
What the server cannot use it answers with ``{"type":"error","code":CODE,"context":TEXT}``; the connection stays.

Source: ``protocols/broker.md`` section 3.6. Departures: what goes to the client is legal JSON that loses nothing; the
original wrote NaN, milliseconds and six decimals. A value that legal JSON cannot express (NaN, bytes that are no text)
is replaced by an error with the code ``serialization_failed``.
"""

from __future__ import annotations

import json
from typing import Final

from chappe.data.json import dumps_message
from chappe.data.values import Value
from chappe.errors import InvalidData, UnsupportedValue

PATH: Final = "/v1/messages/json"
DESERIALIZATION_FAILED: Final = "deserialization_failed"
SERIALIZATION_FAILED: Final = "serialization_failed"
INVALID_DATA: Final = "invalid_data"


def read_filter(text: str) -> list[str]:
    """The topic prefixes of a client's first frame; raises InvalidData."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise InvalidData('the first frame is an array of topic prefixes, such as ["/zeek/"]')
    try:
        "".join(found).encode()
    except UnicodeEncodeError:
        raise InvalidData("a topic prefix holds half of a surrogate pair") from None
    return found


def write_ack(endpoint_id: str, version: str) -> str:
    """The answer to the first frame."""
    return json.dumps({"type": "ack", "endpoint": endpoint_id, "version": version}, separators=(",", ":"))


def write_error(code: str, context: str) -> str:
    """The answer to what cannot be used."""
    return json.dumps({"type": "error", "code": code, "context": context}, separators=(",", ":"))


def write_message(topic: str, value: Value) -> str:
    """A data message, or the error that stands for one that cannot be written."""
    try:
        return dumps_message(topic, value, legal=True)
    except UnsupportedValue as problem:
        return write_error(SERIALIZATION_FAILED, f"a message to {topic!a} is left out: {problem}")
