"""Addresses of members, and where those that last are kept."""

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
    """A fresh address: a random UUID as 32 upper-case hexadecimal digits, as the original makes them."""
    return uuid.uuid4().hex.upper()


def state_directory(kind: str, identity: str, directory: str | Path | None) -> Path:
    """Where the state of ``identity`` is kept: in ``directory``, or the user's data directory.

    Raises:
        UsageError: The identity is not a name of letters, digits, dot, dash and underscore.
    """
    if not isinstance(identity, str) or not IDENTITY.fullmatch(identity):
        raise UsageError(f"the identity {identity!r} is not a name of letters, digits, '.', '-' and '_'")
    base = Path(directory) if directory is not None else machine.current().data_path()
    return base / kind / identity


def log_event(event: object) -> None:
    """Log what a core reports: good news as information, the rest as warnings."""
    good = isinstance(event, (DamageHealed, ForwarderFound, PermissionsChanged, ScrubEnded, TowerFound, WritesResumed))
    logger.log(logging.INFO if good else logging.WARNING, "%s", event)
