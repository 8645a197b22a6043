"""The form of ``chappe.toml``, as far as it concerns everybody: settings for all, and the sections that there are."""

from __future__ import annotations

from typing import Any

import msgspec

from chappe.system.toml import Section


class Common(Section, frozen=True):
    """Settings outside any section: they count for all commands, the library and Spark."""

    tower: str | None = None
    listen: str | None = None
    forwarders: str | None = None
    identity: str | None = None
    audit: str | None = None


class Everything(Common, frozen=True):
    """The whole file. A section belongs to the command line, which checks it."""

    store: dict[str, Any] = msgspec.field(default_factory=dict)
    forward: dict[str, Any] = msgspec.field(default_factory=dict)
    map: dict[str, Any] = msgspec.field(default_factory=dict)
    produce: dict[str, Any] = msgspec.field(default_factory=dict)
    consume: dict[str, Any] = msgspec.field(default_factory=dict)
    demo: dict[str, Any] = msgspec.field(default_factory=dict)
    retention: dict[str, Any] = msgspec.field(default_factory=dict)
