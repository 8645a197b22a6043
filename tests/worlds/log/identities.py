"""Worlds of the log whose members have identities, each that of its host: the files of keys outlive programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.worlds.keyed import KeyDirectories, replaced
from tests.worlds.log.ends import Ends
from tests.worlds.log.scenario import Log
from tests.worlds.stage import Replaced

from chappe import Keys
from chappe.errors import NotPermitted, Sealed, UsageError


class KeyedLog(Log):
    """Producers, consumers, stores and towers; originals and queries have no identity, so there are none."""

    original_stores = sinks = sealing = 0.0
    cannot = (NotPermitted, UsageError, Sealed)

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.directories = KeyDirectories(self.stage.scratch / "keys", self.files)
        self.trims.there = False
        # Who is refused may take what he is shown for all there is; by then his program is told.
        self.checkers = [each for each in self.checkers if not isinstance(each, Ends)]

    def _replaced(self, *arguments: Any) -> list[Replaced]:
        return [*super()._replaced(*arguments), *replaced()]

    def files(self) -> Mapping[str, bytes]:
        """Return the newest files of the authority, by name."""
        raise NotImplementedError

    def security(self, host: str) -> Keys:
        return self.directories.keys(host)

    @property
    def tower_address(self) -> str:
        return ",".join(f"{each.name}@{each.address}" for each in self.towers)
