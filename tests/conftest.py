"""What all tests share."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("chappe", deadline=None)  # a busy machine is no bug
settings.load_profile("chappe")
