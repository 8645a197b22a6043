"""The contract of every protocol core: inputs in, actions out, in the order to be done.

A core is a plain class without socket, file, thread, clock or random source. It is told what happened by
``handle_...`` methods (the world), plain verbs (the application) and ``handle_timeout`` (the clock; it says by
``next_timeout`` when it wants that call), and answers with a list of actions. A driver carries them out in
order and finishes each before the next: what must be on disk stands in the list before the message that relies
on it. ``now`` is monotonic seconds; wall-clock time is passed as ``wall_us``, microseconds since 1970 UTC.

Each feature defines its own actions beside its cores (``log/actions.py``); the two here are everybody's.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Report:
    """Tell the application; ``event`` is one of the feature's event classes."""

    event: object


@dataclass(frozen=True, slots=True)
class Halt:
    """Stop this member: going on would do harm. ``reason`` is one sentence for people."""

    reason: str
