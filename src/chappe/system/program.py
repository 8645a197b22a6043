"""Default names of members: ``program@host``."""

from __future__ import annotations

import os
import socket
import sys

from chappe.data.label import check_label, default_label

_program = ""  # as the command line calls itself
_label = ""  # as its user calls all members of this process


def is_command(program: str) -> None:
    """Call this program so, rather than by the file that runs."""
    global _program
    _program = program


def call_members(label: str | None) -> None:
    """Give all members of this process that have no name of their own this one, if it is one. Raises UsageError."""
    global _label
    if label is not None:
        _label = check_label(label)


def label(given: object = None) -> str:
    """Return the name of a member: what its user gave, or else the default. Raises UsageError."""
    if given is not None:
        return check_label(given)
    return _label or default_label(_program or _running(), socket.gethostname())


def _running() -> str:
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is not None:
        return str(spec.name).removesuffix(".__main__")
    name = os.path.basename(sys.argv[0]) if sys.argv else ""
    return "python" if name in ("", "-c", "-") else name
