"""Addresses of members, and directories of those that last."""

from __future__ import annotations

import logging
import re
import uuid
from pathlib import Path
from typing import Final

from chappe.errors import UsageError
from chappe.log.events import DamageHealed, ForwarderFound, PermissionsChanged, ScrubEnded, TowerFound, WritesResumed
from chappe.system import machine

logger = logging.getLogger("chappe.log")

IDENTITY: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")  # of state that lasts


def new_address() -> str:
    """Return a random UUID as 32 upper-case hexadecimal digits, as Dafka's programs make them."""
    return uuid.uuid4().hex.upper()


def state_directory(kind: str, identity: str, directory: str | Path | None) -> Path:
    """Return the directory of an identity's state, in ``directory`` or the user's data directory.

    Raises:
        UsageError: The identity is not a name of letters, digits, dot, dash and underscore.
    """
    if not isinstance(identity, str) or not IDENTITY.fullmatch(identity):
        raise UsageError(f"the identity {identity!r} is not a name of letters, digits, '.', '-' and '_'")
    base = Path(directory) if directory is not None else machine.current().data_path()
    return base / kind / identity


def log_event(event: object) -> None:
    """Log a core's report: good news as information, the rest as warnings."""
    good = isinstance(event, (DamageHealed, ForwarderFound, PermissionsChanged, ScrubEnded, TowerFound, WritesResumed))
    logger.log(logging.INFO if good else logging.WARNING, "%s", event)
