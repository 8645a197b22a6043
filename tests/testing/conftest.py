"""The fixtures, also where chappe was not installed as users do it."""

from chappe.testing.plugin import chappe_log as chappe_log
from chappe.testing.plugin import chappe_world as chappe_world
