"""For tests of programs that use chappe: everything in one process, on a clock that takes no time.

``World`` is where a test lives, ``Log`` a tower and a store in it. pytest has both as the fixtures ``chappe_world`` and
``chappe_log`` as soon as chappe is installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chappe.testing.scheduler import NothingHappens
    from chappe.testing.world import Log, World

__all__ = ["Log", "NothingHappens", "World"]


def __getattr__(name: str) -> object:
    """Import it when it is first used: pytest loads this package in every run."""
    if name not in __all__:
        raise AttributeError(f"module 'chappe.testing' has no attribute {name!r}")
    from chappe.testing import scheduler, world

    return getattr(scheduler if name == "NothingHappens" else world, name)
