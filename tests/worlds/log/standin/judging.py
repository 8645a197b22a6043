"""Who comes to a host with rules is judged, as ``runtime.log_ports`` and ``transports.zeromq`` do it."""

from __future__ import annotations

from chappe.log.guard import Guard
from chappe.sim.pubsub import SimLink


def honours(guard: Guard, link: SimLink, prefix: bytes, on: bool) -> bool:
    """Honour what may be honoured of a subscription; returns whether the core is to know of it."""
    if not on:
        honoured = link.granted.pop(prefix, [])
        needed = {each for others in link.granted.values() for each in others}
        for each in honoured:
            if each not in needed:
                link.wanted.pop(each, None)
        if honoured:
            guard.unsubscribed(prefix)
        return bool(honoured)
    if prefix in link.granted:
        return False
    honoured = link.granted[prefix] = guard.subscribed(link.subscriber.name, prefix)
    if prefix[:1] != b"M" or b"R" + prefix[1:] not in link.granted:
        for each in honoured:
            link.wanted[each] = None
    if prefix[:1] == b"R":
        for each in link.granted.get(b"M" + prefix[1:], ()):
            link.wanted.pop(each, None)
    return bool(honoured)


def judged_otherwise(guard: Guard, link: SimLink) -> bool:
    """Whether somebody would be granted more by now, or less."""
    name = link.subscriber.name
    return any(guard.scope(name, prefix) != granted for prefix, granted in link.granted.items())
