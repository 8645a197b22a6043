"""The schema of ``chappe.toml`` as far as all programs share it: common settings, and names of sections."""

from __future__ import annotations

from typing import Any

import msgspec

from chappe.system.toml import TomlSection


class Common(TomlSection, frozen=True):
    """Settings outside of sections: they apply to commands, the library and Spark."""

    tower: str | None = None
    listen: str | None = None
    forwarders: str | None = None
    identity: str | None = None
    audit: str | None = None


class Everything(Common, frozen=True):
    """The whole file. The command line checks its sections."""

    store: dict[str, Any] = msgspec.field(default_factory=dict)
    forward: dict[str, Any] = msgspec.field(default_factory=dict)
    map: dict[str, Any] = msgspec.field(default_factory=dict)
    produce: dict[str, Any] = msgspec.field(default_factory=dict)
    consume: dict[str, Any] = msgspec.field(default_factory=dict)
    demo: dict[str, Any] = msgspec.field(default_factory=dict)
    log: dict[str, Any] = msgspec.field(default_factory=dict)
    mesh: dict[str, Any] = msgspec.field(default_factory=dict)
    node: dict[str, Any] = msgspec.field(default_factory=dict)
    subscribe: dict[str, Any] = msgspec.field(default_factory=dict)
    retention: dict[str, Any] = msgspec.field(default_factory=dict)
