"""What all tests share."""

from __future__ import annotations

import signal

from hypothesis import settings

settings.register_profile("chappe", deadline=None)  # a busy machine is no bug
settings.load_profile("chappe")

# A shell starts background jobs with Ctrl-C ignored, and so would be all that the tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)
