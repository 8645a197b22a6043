"""The bounds of a schema, and of the comparison of two."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from chappe.defaults import SCHEMA_BYTES_MAX, SCHEMA_DEPTH_MAX, SCHEMA_STEPS_MAX
from chappe.errors import BadSchema

TEXT_MAX: Final = 300  # characters of a library's reason


def reason(error: object) -> str:
    """Return the text of an error of a library, in one line and bounded."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= TEXT_MAX else text[:TEXT_MAX] + "..."


def check_size(text: str) -> str:
    """Raise BadSchema for a text beyond ``SCHEMA_BYTES_MAX``; return it otherwise."""
    if len(text.encode("utf-8", "surrogatepass")) > SCHEMA_BYTES_MAX:
        raise BadSchema(f"a schema has {SCHEMA_BYTES_MAX:,} bytes at most: split it, or leave out descriptions")
    return text


def parse_json(text: str) -> Any:
    """Decode a schema that is JSON. Raises BadSchema for other text, and beyond the bounds of size and depth."""
    try:
        found = msgspec.json.decode(check_size(text))
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise BadSchema(f"a schema of this kind is JSON: {reason(error)}") from None
    level = [found]
    for _ in range(SCHEMA_DEPTH_MAX):
        level = [inner for each in level if isinstance(each, list | dict) for inner in _inside(each)]
        if not level:
            return found
    raise BadSchema(f"a schema is nested {SCHEMA_DEPTH_MAX} levels deep at most")


def _inside(each: list[Any] | dict[str, Any]) -> list[Any]:
    return list(each.values()) if isinstance(each, dict) else each


class Comparison:
    """The problems of one comparison, and its steps, of which there are ``SCHEMA_STEPS_MAX``."""

    def __init__(self) -> None:
        self._steps = 0

    def step(self) -> None:
        """Count a step. Raises BadSchema beyond the bound."""
        self._steps += 1
        if self._steps > SCHEMA_STEPS_MAX:
            raise BadSchema("these schemas are too large to compare: split them, or set the compatibility to NONE")
