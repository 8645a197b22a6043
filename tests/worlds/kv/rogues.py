"""Messages of a peer that says anything: every kind of command, with numbers at their bounds as often as not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final

from chappe.kv import commands as cmd
from chappe.kv.entity import NOBODY, Entity

NUMBERS: Final = (0, 1, 2, 3, 5, 40, 2**32, 2**62, 2**62 + 1, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1)
TICKS: Final = (0, 1, 5, 65_535)
_EXPIRIES: Final = (None, 0, 1, -1, 2**63 - 1, -(2**63))
VALUES: Final[tuple[Any, ...]] = (None, 1, "a", "b", 2**63 - 1, (1, "x"), float("nan"), b"\xff")
FORGED: Final = "forged"  # nobody writes that in its own name
_RAW_PAIRS: Final = (b"\0", b"\1\0\0", b"\5", b"", b"\xff" * 9)


def any_command(
    rng: Random, entities: Sequence[Entity], keys: Sequence[Any] = VALUES, values: Sequence[Any] = VALUES
) -> cmd.Command:
    """A command that names some of these entities, keys and values."""
    number, entity = rng.choice(NUMBERS), rng.choice(entities)
    key, value, expiry = rng.choice(keys), rng.choice(values), rng.choice(_EXPIRIES)
    makers: list[Callable[[], cmd.Command]] = [
        lambda: cmd.Put(key, value, expiry, entity),
        lambda: cmd.PutUnique(key, value, expiry, entity, number, entity),
        lambda: cmd.PutUniqueResult(rng.random() < 0.5, entity, number, entity),
        lambda: cmd.Erase(key, entity),
        lambda: cmd.Expire(key, entity),
        lambda: cmd.Add(key, value, rng.randrange(15), expiry, entity),
        lambda: cmd.Subtract(key, value, expiry, entity),
        lambda: cmd.AttachWriter(number, rng.choice(TICKS)),
        lambda: cmd.Keepalive(number),
        lambda: cmd.CumulativeAck(number),
        lambda: cmd.MissingEvents(tuple(rng.choice(NUMBERS) for _ in range(rng.randrange(4)))),
        lambda: cmd.MissingEvents((0,)),
        lambda: cmd.RetransmitFailed(number),
        lambda: cmd.WriterState(number, rng.choice(NUMBERS), ((rng.choice(NUMBERS), rng.randrange(256)),)),
        lambda: cmd.Settled(number),
        lambda: cmd.Leave(number),
        lambda: cmd.PositionAsked(number),
        lambda: cmd.Position(number, rng.choice(NUMBERS)),
        lambda: cmd.HistoryAsked(number, key, rng.choice(NUMBERS)),
        lambda: cmd.HistoryTold(number, rng.randrange(4), rng.choice(_RAW_PAIRS)),
        lambda: cmd.Clear(entity),
        lambda: cmd.PutIf(key, value, expiry, rng.choice(NUMBERS), entity),
        lambda: cmd.EraseIf(key, rng.choice(NUMBERS), entity),
        lambda: cmd.Expiring(rng.choice((-1, 0, 2**62)), cmd.Put(key, value, expiry, entity)),
        lambda: cmd.ExpiresAt(key, rng.choice(NUMBERS), rng.choice((-1, 0, 2**62))),
        lambda: cmd.AckClone(number, rng.choice(TICKS), rng.choice(_RAW_PAIRS)),
        lambda: cmd.SnapshotOffer(number, rng.choice(NUMBERS), rng.choice(TICKS), rng.choice(NUMBERS), 0),
        lambda: cmd.SnapshotPiece(number, rng.choice(NUMBERS), rng.getrandbits(32), rng.choice(_RAW_PAIRS)),
        lambda: cmd.piece(number, rng.choice(NUMBERS), rng.choice(_RAW_PAIRS)),
        lambda: cmd.SnapshotTaken(number, rng.choice(NUMBERS), rng.random() < 0.5),
    ]
    return rng.choice(makers)()


def forged_write(writer: Entity, master: Entity) -> list[bytes]:
    """What has a master do a write, if it believes that the writer says so."""
    said: tuple[cmd.Command, ...] = (cmd.AttachWriter(0, 5), cmd.Put("mixed a", FORGED, None, writer))
    return [cmd.encode_message(seq, writer, master, cmd.encode_command(each)) for seq, each in enumerate(said)]


def forged_event(master: Entity, position: int) -> list[bytes]:
    """What a clone that is at this position shows next, if it believes that its master says so."""
    put = cmd.Put("mixed a", FORGED, None, master)
    return [cmd.encode_message(position + 1, master, NOBODY, cmd.encode_command(put))]


def any_message(rng: Random, receiver: Entity, sender: Entity, command: cmd.Command) -> bytes:
    """Its bytes, for ``receiver``, somebody else or everybody; now and then with a byte that is wrong, or cut short."""
    to = rng.choice((receiver, receiver, NOBODY, Entity(receiver.endpoint, 0)))
    raw = cmd.encode_message(rng.choice(NUMBERS), sender, to, cmd.encode_command(command))
    return raw[: rng.randrange(len(raw))] if rng.random() < 0.05 else raw
