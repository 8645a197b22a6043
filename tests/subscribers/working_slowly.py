"""A module that workers get done with importing when they are let."""

from __future__ import annotations

import os
import time

from tests.subscribers.working import LOOK_S, note, place

if "CHAPPE_WORKER" in os.environ:
    (place() / "at-import").touch()
    while not (place() / "go").exists():
        time.sleep(LOOK_S)

note_late = note
