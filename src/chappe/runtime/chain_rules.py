"""The rights at a server of a chain with keys: each message is judged before the core sees it."""

from __future__ import annotations

from collections.abc import Sequence

from chappe.log.guard import LogRefusal
from chappe.permissions.rules import ADMINISTER, ATTACH_CLONE, ATTACH_MASTER, WRITE
from chappe.replication.chain.messages import Do, Listen, Open, Read
from chappe.replication.chain.wire import AnyRequest, Exclude
from chappe.transports.gate import Gate


class ChainRules:
    """The permissions for one chain.

    Args:
        gate: Of the server.
        chain: The chain's name, which rules go by as if it were a topic.
        identities: Of the servers, by place: a client that says it is one has to have its identity.
    """

    def __init__(self, gate: Gate, chain: str, identities: Sequence[str]) -> None:
        self._gate = gate
        self._chain = chain
        self._identities = identities

    def server(self, who: str, place: int) -> bool:
        if who == self._identities[place]:
            return self._may(who, ATTACH_MASTER)
        why = f"{who} is not the server at that place, {self._identities[place]} is"
        self._gate.refuse(LogRefusal(who, ATTACH_MASTER, self._chain, why))
        return False

    def request(self, who: str, request: AnyRequest) -> str:
        """Return why an identity may not make a request; empty if it may."""
        match request:
            case Do() | Open():
                verb = WRITE
            case Read():
                verb = ATTACH_CLONE
            case Exclude():
                verb = ADMINISTER
            case _:
                return ""
        return "" if self._may(who, verb) else f"{who} may not {verb} {self._chain}: no rule allows it"

    def heard(self, who: str, request: AnyRequest) -> AnyRequest:
        """Return a request's allowed part: a client that may not write hears who is in, but no session's answers."""
        writes = self._gate.decisions().may(who, (WRITE,), self._chain)
        return Listen(0, request.nonce) if isinstance(request, Listen) and not writes else request

    def _may(self, who: str, verb: str) -> bool:
        decisions = self._gate.decisions()
        if decisions.may(who, (verb,), self._chain):
            return True
        self._gate.refuse(LogRefusal(who, verb, self._chain, decisions.why_not(who, verb, self._chain)))
        return False
