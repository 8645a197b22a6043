"""Labels: names of members for people to read. They tell members apart and prove nothing.

A label is short printable text, so that nothing that shows one can be made to act on it or to run over.
"""

from __future__ import annotations

from typing import Final

from chappe.data.given import as_text
from chappe.errors import UsageError

LABEL_MAX: Final = 64  # characters
_PROGRAM_MAX: Final = 32  # of a default label; the host has what is left


def is_label(text: str) -> bool:
    """True if the text can be a label: others may have sent anything."""
    return 0 < len(text) <= LABEL_MAX and text.isprintable() and not text.isspace()


def check_label(given: object) -> str:
    """Return a label that a user gave. Raises UsageError."""
    text = as_text(given, "a name")
    if not is_label(text):
        raise UsageError(f"a name is 1 to {LABEL_MAX} printable characters, not {text[: 2 * LABEL_MAX]!a}")
    return text


def default_label(program: str, host: str) -> str:
    """Make the label of a member to which its user gave none: ``program@host``, within the bounds."""
    name = _printable(program or "python")[:_PROGRAM_MAX]
    return f"{name}@{_printable(host or 'localhost')}"[:LABEL_MAX]


def _printable(text: str) -> str:
    return "".join(each if each.isprintable() else "?" for each in text)
