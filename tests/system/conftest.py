"""What runs cores waits for no disk in its tests either."""

from __future__ import annotations

from tests.storage.conftest import _disks_are_quick, _storages_are_closed  # noqa: F401  (fixtures)
