"""A log, and a world, of a test's own."""

from __future__ import annotations

from chappe.testing.plugin import chappe_log as chappe_log
from chappe.testing.plugin import chappe_world as chappe_world
