"""The receiving end of a channel, as masters have one for each writing clone, and clones one for their master."""

from __future__ import annotations

import math

from chappe.channel import ChannelConsumer
from chappe.kv.commands import Action
from chappe.limits import KvLimits


def new_input(limits: KvLimits, now: float) -> ChannelConsumer[Action]:
    """One that has not begun; its owner asks for the handshake himself."""
    return ChannelConsumer(now=now, search_max_s=math.inf, ack_events=limits.ack_events, nack_max=limits.nack_max)
