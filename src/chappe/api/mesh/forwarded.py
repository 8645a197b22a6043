"""Messages on their way through an endpoint, in the form for ``on_forward``."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable
from inspect import iscoroutinefunction
from typing import TypeAlias

from chappe.api.mesh.arguments import encode_value
from chappe.api.mesh.received import Received
from chappe.defaults import DROPS_REPORT_S
from chappe.errors import Sealed, UsageError
from chappe.mesh.messages import Message
from chappe.runtime.turns import Turns
from chappe.sealing.events import is_sealed
from chappe.system import time

logger = logging.getLogger("chappe.mesh")


class Forwarded(Received):
    """A message on its way from one peer to another, decoded on the first use of ``value`` or ``data``."""

    __slots__ = ("_of",)

    def __init__(self, message: Message, of: Message | None = None) -> None:
        super().__init__(message)
        self._of = of or message

    def with_value(self, value: object) -> Forwarded:
        """Return the message with another value, to be forwarded in place of this one.

        Raises:
            UnsupportedValue: The value cannot be converted.
            Sealed: The topic is sealed: only its publishers have the keys.
        """
        self.check_opened()
        came = self._of
        payload = encode_value(value)
        message = Message(came.topic, payload, came.kind, came.sender, came.receiver, origin=came.origin)
        return Forwarded(message, came)

    @property
    def sealed(self) -> bool:
        """True if the message is sealed: it passes unopened and has no value here."""
        return is_sealed(self.message.payload)

    def check_opened(self) -> None:
        """Raise Sealed if the message is sealed."""
        if self.sealed:
            raise Sealed(f"topic {self.topic!r} is sealed: its messages pass, or are held back, as they are")

    def of(self, message: Message) -> bool:
        """Return True if this view is of ``message``."""
        return self._of is message

    def __repr__(self) -> str:
        return f"Forwarded({self.topic!r}, {len(self.payload)} bytes)"


OnForward: TypeAlias = Callable[[Forwarded], Forwarded | None]


def check_on_forward(function: OnForward | None, forwarding: bool) -> None:
    """Raise UsageError for a function that cannot be called with forwarded messages."""
    if function is None:
        return
    if not callable(function) or iscoroutinefunction(function):
        raise UsageError(f"on_forward is a function, and no coroutine function, not {function!r}")
    if not forwarding:
        raise UsageError("on_forward is for endpoints that forward: leave out forwarding=False")


class Forwarding:
    """Shows messages to the function of a user; called with the lock held, in the middle of other work."""

    def __init__(self, function: OnForward, turns: Turns) -> None:
        self._function = function
        self._turns = turns
        self._logged_at = -math.inf

    def __call__(self, message: Message) -> bytes | None:
        """Return the payload to forward, None to hold it back. Raises the function's errors, and for a wrong result."""
        shown = Forwarded(message)
        self._turns.calling = threading.get_ident()
        try:
            found = self._function(shown)
            if found is shown:
                return message.payload
            if found is None:
                return None
            if not isinstance(found, Forwarded) or not found.of(message):
                raise UsageError(
                    f"on_forward returned {found!r:.100}: return the message, message.with_value(...), or None to "
                    "hold it back"
                )
            return found.payload
        except Exception:
            now = time.monotonic()
            if now >= self._logged_at + DROPS_REPORT_S:
                self._logged_at = now
                logger.exception("on_forward failed; a message to %r is held back", shown.topic)
            raise
        finally:
            self._turns.calling = 0
