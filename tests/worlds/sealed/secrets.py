"""What is promised of sealed topics of the log."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from tests.worlds.log.residents import LogLife, ProducerLife
from tests.worlds.sealed.members import SealedConsumer, WatchedOpening, WatchedSealing
from tests.worlds.sealing import BEGINNING, LOOK_S, MARK

from chappe.log.batch import Batch
from chappe.log.delivery import Records
from chappe.log.messages import Message, encode
from chappe.log.opened import OpenedRead, Unread, UnreadWhy
from chappe.log.sources import Key
from chappe.log.storage import AppendRecords
from chappe.sealing.chain import ASKED_S, BEHIND_S
from chappe.sealing.records import RecordFrame, decode
from chappe.sealing.ring import CHANGE
from chappe.sim.world import Checker


class Secrets(Checker[Any]):
    """Who may read opens what was sealed, once and in order; nobody else opens anything, and nothing lies open."""

    name = "secrets"

    def __init__(self, world: Any) -> None:
        super().__init__(world)
        self.opened = 0
        self._owed: dict[WatchedOpening, dict[Key, dict[int, RecordFrame]]] = {}  # what was left out, by offset

    # -- sealing ----------------------------------------------------------------------------------------------

    def on_sealed(self, host: WatchedSealing, frame: RecordFrame) -> None:
        """Nobody is in the epoch who had left the group when records were taken, as far as the producer knew."""
        group, identities = host.taken_by.group(host.topic), host.taken_by.identities
        for name in sorted(host.sealed_for):
            if group is not None and not group.has(identities[name]):
                self.fail(f"{host.name} seals in epoch {frame.epoch}, of which {name} has the key, who has left")
        self._look_at_keys(host, frame)

    def _look_at_keys(self, host: WatchedSealing, frame: RecordFrame) -> None:
        """What it took was not for an epoch that others knew to be over, as it had heard or was to ask."""
        heard, at = self.world.told.get(host.host), host.taken_at
        if heard is not None:
            epoch, since = heard[frame.group]
            if epoch > frame.epoch and since + LOOK_S < at < since + BEHIND_S:
                self.fail(
                    f"{host.name} takes records for epoch {frame.epoch} {at - since:.1f} s after it heard of {epoch}"
                )
        elif at < host.began + ASKED_S:
            following = self.world.authority.keys(frame.group).epoch(frame.epoch + 1)
            if following and BEGINNING + timedelta(microseconds=host.taken_us) > following.made + CHANGE:
                self.fail(f"{host.name} takes records for epoch {frame.epoch}, which is over, before it heard anything")

    # -- nothing lies open ------------------------------------------------------------------------------------

    def _secret(self, topic: str) -> bool:
        return self.world.authority.versions[0].group(topic) is not None

    def on_published(self, host: Any, message: Message) -> None:
        """What goes over the wire."""
        if self._secret(getattr(message, "subject", "")) and any(MARK in bytes(each) for each in encode(message)):
            self.fail(f"{host.address} sends plain text: {message}")

    def on_written(self, host: Any, appends: tuple[AppendRecords, ...]) -> None:
        """What lies on disks of stores, and is read from there."""
        for each in appends:
            if self._secret(each.topic) and MARK in bytes(each.body):
                self.fail(f"{host.name} writes plain text of {each.topic}")

    def on_tick(self) -> None:
        """What lies on disks of producers."""
        for each in self.world.alive(ProducerLife):
            if each.journal is not None and self._secret(each.core.topic):
                for path in each.resident.directory.glob("*"):
                    if path.is_file() and MARK in path.read_bytes():
                        self.fail(f"the journal of {each.name} has plain text: {path.name}")

    def on_deliver(self, host: Any, action: Records) -> None:
        """What a consumer is given, that it has to open."""
        if self._secret(action.topic) and action.batch.sealed is None:
            self.fail(f"{host.name} is given plain records of {action.topic}")

    # -- opening ----------------------------------------------------------------------------------------------

    def on_outcome(
        self, host: WatchedOpening, key: Key, start: int, batch: Batch, outcome: OpenedRead | Unread
    ) -> None:
        """A consumer has opened what came, or never will."""
        if start < host.next.get(key, 0):
            self.fail(f"{host.name} opens {key} offset {start} again, {host.next[key]} was next")
        if batch.sealed is None:
            if not isinstance(outcome, OpenedRead) or outcome.sender is not None:
                self.fail(f"{host.name} takes plain records of {key} for sealed ones: {outcome}")
            return
        frame = decode(batch.sealed)
        entitled = frame.epoch in self.world.authority.entitled[frame.group, host.name]
        owed = self._owed.setdefault(host, {}).setdefault(key, {})
        if isinstance(outcome, Unread) and outcome.why is UnreadWhy.NOT_OURS:
            owed[start] = frame
        else:
            for each in [each for each in owed if each <= start]:  # it was read again, or is not any more
                del owed[each]
        if isinstance(outcome, OpenedRead):
            self.opened += 1
            self._look_at(host, key, batch, outcome)
            if not entitled:
                self.fail(f"{host.name} opens {key} {start}, of epoch {frame.epoch}, which was not given to it")
        elif entitled and not self._excused(host, frame):
            self.fail(f"{host.name} refuses {key} {start}, which it may read: {outcome.reason}")

    def _look_at(self, host: WatchedOpening, key: Key, batch: Batch, outcome: OpenedRead) -> None:
        if outcome.sender != self.world.sealings[key[1]].name:
            self.fail(f"{host.name} takes {key} {batch.base} for sealed by {outcome.sender}")
        found = self.world.contents(outcome.batch, batch.base)
        if outcome.batch.base != batch.base or found != self.world.truth.of(key).records[batch.base : batch.next]:
            self.fail(f"{host.name} opens {key} {batch.base}..{batch.next - 1} as something else than was sent")

    def _due(self, host: WatchedOpening, key: Key, start: int, frame: RecordFrame) -> bool:
        """Whether a consumer that is of the group by now is to have what it left out, and somebody has that."""
        authority = self.world.authority
        within = (
            host.name in authority.members[frame.group] and frame.epoch in authority.entitled[frame.group, host.name]
        )
        disks = [disk for address, disk in self.world.disk_of.items() if address in host.core.store_addresses]
        return (
            within
            and self.world.held_within(key, max(start, self.world.retained_from(key)), start + 1, disks) is not None
        )

    def _excused(self, host: WatchedOpening, frame: RecordFrame) -> bool:
        """Whether somebody is none of the group, or was none when it was sealed, by what the reader knows."""
        permissions = host.held.permissions
        group = next(each for each in permissions.sealed if each.name == frame.group)
        sender, reader = permissions.identities[frame.sender], permissions.identities[host.name]
        sealed_at = BEGINNING + timedelta(microseconds=frame.sealed_at)
        if not group.has(reader) or (sender.revoked is not None and sealed_at > sender.revoked):
            return True
        following = self.world.authority.keys(frame.group).epoch(frame.epoch + 1)
        return following is not None and not group.has(sender) and sealed_at > following.made + CHANGE

    # -- in the end -------------------------------------------------------------------------------------------

    def unsettled(self) -> str | None:
        """Everything of the authority has come to all whom it concerns, and nothing waits for keys any more."""
        for each in self.world.alive(LogLife):
            lacks = self.world.lacks(each.ports.gate, each.name)
            if lacks is not None:
                return f"{each.name} {lacks}"
        for host in self.world.alive(SealedConsumer):
            for key, owed in self._owed.get(host.opened, {}).items():
                due = [start for start, frame in owed.items() if self._due(host.opened, key, start, frame)]
                if due:
                    return f"{host.name} has left out {key} {due}, which are for it"
            if host.waits:
                return f"{host.name} waits for keys of {host.face._inbox.queue[0]}"
        return None
