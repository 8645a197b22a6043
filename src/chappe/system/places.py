"""The user's directories for data, state and caches of chappe.

A user with neither HOME nor a passwd entry, as in many containers, has none: asking for one raises a one-sentence
error, and everything else works.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from chappe.errors import UsageError


def users(kind: Literal["data", "state", "cache"]) -> Path:
    """Return the user's directory of this kind. Raises UsageError for a user without a home directory."""
    import platformdirs  # imported late: it costs milliseconds of every start

    find = {
        "data": platformdirs.user_data_path,
        "state": platformdirs.user_state_path,
        "cache": platformdirs.user_cache_path,
    }
    try:
        return find[kind]("chappe")
    except RuntimeError:
        raise UsageError(
            f"this user has no home directory to keep files in: set HOME or XDG_{kind.upper()}_HOME to a directory"
        ) from None
