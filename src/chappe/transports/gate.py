"""CURVE on ZeroMQ's sockets: who is let in, and with whose key one dials.

A socket that listens lets in who has the CURVE key of an identity in the permissions, if that has neither expired nor
been revoked. A socket that dials knows beforehand which identity is to be there: an endpoint names it
(``tcp://h:1#hub``) and the permissions know its key. One that names another identity gains nothing: it lacks the key.

ZeroMQ asks a handler at a fixed address of its context (ZAP, RFC 27). Sockets with keys have a context of their own, so
that a handler of the program around us and ours do not meet; and they enforce their domain: without a handler that
answers nobody is let in. The handler is a thread, which also looks once a second whether the files have changed. If
somebody who was let in would not be any more, all connections to the sockets concerned are cut: ZeroMQ does not say
whose is which, and everybody else is back at once.
"""

from __future__ import annotations

import logging
import math
import os
import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from typing import Final

import zmq

from chappe.data.topic import identity_of
from chappe.errors import ChappeError, NotPermitted, UsageError
from chappe.log.guard import LogRefusal
from chappe.permissions.rules import Decisions, Identity
from chappe.security import PASSPHRASE, Keys, LogSecurity, NothingChosen, is_loopback, permissions_file
from chappe.storage.key_files import curve_keys, watched_permissions
from chappe.system import machine, settings, time
from chappe.transports.refusals import RefusalLog

logger = logging.getLogger(__name__)

OFFER_S: Final = 0.05  # between two files that others hand on: a signature, of a large one, takes milliseconds
OFFERS_MAX: Final = 40  # of keys of groups in a second
MONITOR_S: Final = 60.0  # a monitor outlives its socket: ZeroMQ waits, for all sockets, if nobody is there to be told
SHOWN: Final = 200  # characters of a topic or key that is refused
MARK: Final = "X-Chappe-Gate"  # the property of connections that were let in
PLAIN: Final = b"chappe-plain"  # the domain of listeners that are named for those who have no keys
ORIGINALS: Final = "originals"  # the identity that programs of the original are, which have no keys


class Gate:
    """The state that all sockets of one identity share; one for a process."""

    def __init__(self, keys: Keys, domain: str, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self.keys = keys
        self.name = keys.name
        self.context = context
        self.refusals = RefusalLog()
        self.changes = 0  # rises when somebody may be somebody else than before
        self._own = curve_keys(keys)
        self._watched = watched_permissions(keys.directory)
        self._seen = self._watched.changes
        self._looking = threading.Lock()
        self._domain = domain
        self._lock = threading.Lock()
        self._listening: list[_BoundSocket] = []
        self._admitted: set[bytes] = set()  # keys; as many as there are identities
        self._expiry = self._watched.permissions.next_expiry(time.utc_now())
        self._decisions = Decisions(self._watched.permissions, time.utc_now())
        self._offered_at = -math.inf
        self._keys_offered = 0  # in the second that began then
        self._keys_offered_at = -math.inf
        from chappe.storage.sealed_files import watched_groups

        self.groups = watched_groups(keys.directory)

    def decisions(self) -> Decisions:
        return self._decisions

    @property
    def refused(self) -> int:
        """The number of refused connections, and of requests that identities which were let in may not make."""
        return self.refusals.count

    def require(self, verb: str, topic: str, *, prefix: bool = False) -> None:
        """Raise NotPermitted if we ourselves may not do this with a topic, or with a whole prefix."""
        decisions = self._decisions
        if decisions.may_all(self.name, (verb,), topic) if prefix else decisions.may(self.name, (verb,), topic):
            return
        why = "no rule allows all of it" if prefix else decisions.why_not(self.name, verb, topic)
        raise NotPermitted(f"{LogRefusal(self.name, verb, topic, why, prefix)}; {self._remedy}")

    def require_server(self, name: str, verb: str, topic: str, *, prefix: bool = False) -> None:
        """Raise NotPermitted if a peer that we dial may do this with none of our topics."""
        decisions = self._decisions
        if decisions.scopes(name, (verb,), topic) if prefix else decisions.may(name, (verb,), topic):
            return
        why = "no rule allows it" if prefix else decisions.why_not(name, verb, topic)
        raise NotPermitted(f"{LogRefusal(name, verb, topic, why, prefix)}, and it is the only way; {self._remedy}")

    def anybody(self, verb: str, topic: str) -> bool:
        """Return True if there is an identity that may do this with a topic."""
        decisions = self._decisions
        return any(decisions.may(each, (verb,), topic) for each in decisions.permissions.identities)

    def require_somewhere(self, verb: str) -> None:
        """Raise NotPermitted if there is no topic with which we may do this."""
        if not self._decisions.may_somewhere(self.name, (verb,)):
            raise NotPermitted(f"{self.name} may not {verb}: no rule allows it; {self._remedy}")

    @property
    def raw(self) -> bytes:
        return self._watched.raw

    def offer(self, raw: bytes) -> None:
        """Take permissions that another member hands on, if they are newer; not many in a second."""
        now = time.monotonic()
        if now >= self._offered_at + OFFER_S and raw != self._watched.raw:
            self._offered_at = now
            self._watched.offer(raw)

    def offer_keys(self, group: str, raw: bytes) -> None:
        """Take keys of a group that another member hands on; those of several may come at once."""
        now = time.monotonic()
        if now >= self._keys_offered_at + 1.0:
            self._keys_offered, self._keys_offered_at = 0, now
        self._keys_offered += 1
        if self._keys_offered <= OFFERS_MAX:
            self.groups.offer(group, raw)

    def knows(self, name: str) -> bool:
        """Return True if the permissions name an identity, whatever it may."""
        return name in self._watched.permissions.identities

    @property
    def version(self) -> int:
        return self._watched.permissions.version

    @property
    def _remedy(self) -> str:
        path = permissions_file(self.keys.directory)
        return f"whoever signs {path} can allow it, by version {self.version} it is not"

    def check(self) -> None:
        """Raise UsageError if we do not have the identity that we want."""
        self.look()
        ours = self._watched.holder(self._own.public)
        where = permissions_file(self.keys.directory)
        if isinstance(ours, str):
            raise UsageError(f"{self.keys.place} cannot be used: {ours}, by {where}")
        if ours.name != self.name:
            raise UsageError(f"{self.keys.place} has the keys of {ours.name}, by {where}")

    def listen(self, sock: zmq.Socket[bytes]) -> None:
        """Let a socket admit only identities that may come in; before it is bound."""
        for option, value in (
            (zmq.CURVE_SERVER, 1),
            (zmq.CURVE_SECRETKEY, self._own.secret),
            (zmq.CURVE_PUBLICKEY, self._own.public),
            (zmq.ZAP_DOMAIN, self._domain.encode()),
            (zmq.ZAP_ENFORCE_DOMAIN, 1),
        ):
            sock.setsockopt(option, value)

    def admit_plain(self, sock: zmq.Socket[bytes]) -> None:
        """Let the socket bind and dial without keys from now on; endpoints bound so far keep their keys."""
        sock.setsockopt(zmq.CURVE_SERVER, 0)
        sock.setsockopt(zmq.ZAP_DOMAIN, PLAIN)

    def listens(self, sock: zmq.Socket[bytes], port: int) -> None:
        events = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
        made = _BoundSocket(sock, port, monitor_of(sock, events))
        with self._lock:
            self._listening.append(made)

    def dial(self, sock: zmq.Socket[bytes], endpoint: str, verb: str = "") -> str:
        """Prepare a socket's next connection to the identity that ``endpoint`` names; return where to connect.

        Raises:
            UsageError: It names no identity, or one that is not in force or lacks the right ``verb``.
        """
        where, name = identity_of(endpoint)
        permissions = self._watched.permissions
        if not name:
            raise UsageError(f"{where} has no keys: who is there does not say who it is")
        found = permissions.identities.get(name)
        refusal = "the permissions do not name it" if found is None else found.refusal(time.utc_now())
        if found is not None and not refusal and verb and not permissions.may_somewhere(found, verb):
            refusal = f"it may not {verb}"
        if refusal or found is None:
            raise UsageError(f"{name} at {where} is not dialled: {refusal}")
        for option, key in (
            (zmq.CURVE_SERVERKEY, found.curve),
            (zmq.CURVE_PUBLICKEY, self._own.public),
            (zmq.CURVE_SECRETKEY, self._own.secret),
        ):
            sock.setsockopt(option, key)
        return where

    def server(self, verb: str, host: str, name: str) -> str:
        """Return the identity to dial at a host. Raises UsageError if that is not clear."""
        found = self._watched.permissions.server(verb, host, time.utc_now(), name)
        if isinstance(found, Identity):
            return found.name
        raise UsageError(f"{host} cannot be dialled: {found} ({permissions_file(self.keys.directory)})")

    def decide(self, public: bytes, address: str) -> Identity | None:
        """Return the identity to let in, or None, and count and log the refusal."""
        found = self._watched.holder(public)
        if isinstance(found, Identity):
            self._admitted.add(public)
            return found
        self.refusals.add_stranger(1, f"refused {address}: {found}")
        return None

    def forbids(self, name: str, verb: str, topic: str, *, subtree: bool = False) -> LogRefusal | None:
        """Return why an identity may not do this with a topic, or a whole prefix; None if it may."""
        found = self._watched.permissions.decide(name, verb, topic, time.utc_now(), subtree=subtree)
        return None if found.allowed else LogRefusal(name, verb, topic[:SHOWN], found.why, subtree)

    def refuse(self, refusal: LogRefusal) -> None:
        """Count and log a forbidden request of an identity that was let in."""
        self.refusals.add_refusal(refusal)

    def look(self) -> None:
        """Take a newer file, and cut off identities that may not be here any more."""
        with self._looking:
            self._look()

    def hear(self) -> None:
        """Count handshakes that failed before ZeroMQ asked for an identity; in the handler's thread alone."""
        now = time.monotonic()
        with self._lock:
            listening = self._listening
            self._listening = [each for each in listening if now < each.until]
        for each in listening:
            if each.sock.closed and each.until == math.inf:
                each.until = now + MONITOR_S
            if now >= each.until:
                each.monitor.close()
                continue
            count = 0
            while each.monitor.poll(0):
                each.monitor.recv_multipart()
                count += 1
            if count:
                text = f"refused connections to port {each.port} that have no keys, or others for us"
                self.refusals.add_stranger(count, text)

    def _look(self) -> None:
        now = time.utc_now()
        self._watched.refresh()
        self.groups.refresh()
        if self._watched.changes != self._seen or now >= self._expiry:
            self._seen = self._watched.changes
            self._decisions = Decisions(self._watched.permissions, now)
            self.changes += 1
            self._expiry = self._watched.permissions.next_expiry(now)
            if self._expiry <= now:
                self._expiry = datetime.max.replace(tzinfo=UTC)  # everything has ended
        gone = [each for each in list(self._admitted) if isinstance(self._watched.holder(each), str)]
        if gone:
            self._admitted.difference_update(gone)
            logger.warning("cut off: %s", ", ".join(sorted(str(self._watched.holder(each)) for each in gone)[:5]))
            with self._lock:
                ports = {each.port for each in self._listening if not each.sock.closed}
            machine.current().cut(ports)


@dataclass(slots=True)
class _BoundSocket:
    """A socket that is bound, and the monitor of its failed handshakes."""

    sock: zmq.Socket[bytes]
    port: int
    monitor: zmq.Socket[bytes]
    until: float = math.inf  # when nothing more can come of it


def monitor_of(sock: zmq.Socket[bytes], events: int) -> zmq.Socket[bytes]:
    """Return the monitor of a socket's handshakes, without a bound: at one ZeroMQ would wait, with all sockets."""
    where = f"inproc://chappe-monitor-{next(_monitors)}"
    sock.monitor(where, events)
    made: zmq.Socket[bytes] = sock.context.socket(zmq.PAIR)
    made.setsockopt(zmq.LINGER, 0)
    made.setsockopt(zmq.RCVHWM, 0)
    made.connect(where)
    return made


_monitors = count(1)


class _ZapHandler:
    """The gates of a process, and the context of sockets with keys, which asks them who may come in."""

    def __init__(self) -> None:
        self._domains = count(1)
        self.gates: dict[Keys, Gate] = {}
        self._by_domain: dict[str, Gate] = {}
        self.context = machine.current().admitting(self._admit, self._look)

    def gate(self, keys: Keys) -> Gate:
        found = self.gates.get(keys)
        if found is None:
            domain = f"chappe-{next(self._domains)}"
            found = Gate(keys, domain, self.context)
            found.check()
            self._by_domain[domain] = self.gates[keys] = found
        found.check()
        return found

    def _look(self) -> None:
        for gate in list(self.gates.values()):
            try:
                gate.look()
                gate.hear()
            except Exception:
                logger.exception("the permissions in %s could not be looked at", gate.keys.directory)

    def _admit(self, frames: list[bytes]) -> list[bytes]:
        try:
            answer = self._answer(frames)
        except Exception:
            logger.exception("who asks to come in could not be judged, and is refused")
            answer = [b"500", b"", b""]
        return [b"1.0", *frames[1:2], *answer, _METADATA if answer[2] else b""]

    def _answer(self, frames: list[bytes]) -> list[bytes]:
        if frames[2:3] == [PLAIN] and frames[5:] == [b"NULL"]:
            return [b"200", b"", b""]
        if len(frames) != 7 or frames[0] != b"1.0" or frames[5] != b"CURVE":
            return [b"400", b"", b""]
        gate = self._by_domain.get(frames[2].decode())
        found = None if gate is None else gate.decide(frames[6], frames[3].decode(errors="replace"))
        return [b"400", b"", b""] if found is None else [b"200", b"", found.name.encode()]


_word: Final = os.urandom(16).hex()
_METADATA: Final = bytes([len(MARK)]) + MARK.encode() + len(_word).to_bytes(4) + _word.encode()  # as of ZMTP
_guard = threading.Lock()


def gate_of(keys: Keys | None) -> Gate | None:
    """Return the gate of an identity's sockets; None: plain. Raises UsageError: bad files, or no such identity."""
    if keys is None:
        return None
    with _guard:
        once = machine.current().once
        if _ZapHandler not in once:
            try:
                once[_ZapHandler] = _ZapHandler()
            except zmq.ZMQError as error:
                raise ChappeError(f"ZeroMQ has no CURVE here: {error.strerror}") from None
        handler: _ZapHandler = once[_ZapHandler]
        return handler.gate(keys)


def _forked() -> None:
    global _guard
    _guard = threading.Lock()  # another thread of the parent may have held it


os.register_at_fork(after_in_child=_forked)


def keys_of(security: LogSecurity) -> Keys | None:
    """Return the identity to use: ``security``, or from the settings; None for plain connections.

    Raises:
        UsageError: It is neither an identity nor a known word, or the configuration file is unusable.
    """
    if security is None:
        place = settings.identity()
        return Keys(place, os.environ.get(PASSPHRASE)) if place else None
    if security == "plain":
        return None
    if isinstance(security, Keys):  # what is handed to other processes has no passphrase
        return security if security.passphrase else Keys(security.place, os.environ.get(PASSPHRASE))
    raise UsageError(f"security is None, 'plain' or Keys(...), not {security!r}")


def user_of(frame: zmq.Frame) -> str:
    """Return the identity that a message comes from, over a connection that was let in here; empty if unknown.

    Where no handler was asked, at plain sockets and where we dial, the other end may give itself any name. So admitted
    identities are marked by a word that no other program knows.
    """
    try:
        return str(frame.get("User-Id")) if frame.get(MARK) == _word else ""
    except zmq.ZMQError:
        return ""


def sender_of(frames: list[zmq.Frame]) -> str:
    """Return the sender's identity, at a socket with keys; empty for ZeroMQ's notice of one that has left."""
    return user_of(frames[-1])


def address_of(frames: list[zmq.Frame]) -> str:
    """Return the sender's address of a message, without port; empty if unknown."""
    try:
        return str(frames[-1].get("Peer-Address"))
    except zmq.ZMQError:
        return ""


def check_listening(security: LogSecurity, host: str, what: str) -> None:
    """Raise UsageError where nothing was chosen and ``host`` is not this machine."""
    if security is None and keys_of(None) is None and not is_loopback(host):
        raise NothingChosen(
            host,
            f"give the {what} an identity (`chappe keys` makes it), "
            "or security='plain' if everybody who reaches it may read and forge",
        )
