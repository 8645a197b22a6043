"""An endpoint that goes by an identity's permissions."""

from __future__ import annotations

from chappe.errors import UsageError
from chappe.runtime.mesh_rules import RulesWatch
from chappe.security import Keys, permissions_file
from chappe.storage.key_files import watched_permissions


def watch_rules(keys: Keys) -> RulesWatch:
    """What an endpoint with this identity goes by.

    Raises:
        UsageError: There are no permissions, or by them it may not take part itself.
        ConfigError: The authority has not signed them so, or they are malformed.
        ChappeError: The package cryptography is missing.
    """
    made = RulesWatch(watched_permissions(keys.directory))
    why = made.rules.refusal(keys.name)
    if why:
        raise UsageError(f"{keys.place} cannot be used: {why}, by {permissions_file(keys.directory)}")
    return made
