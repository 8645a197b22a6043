"""The messages between masters and clones, and their bytes.

A message is ``u64 sequence number, sender, receiver, u8 kind`` and the fields of its kind; sender and receiver are
entities (16 bytes, u64), a receiver of zeros is everybody. Numbers are big-endian; values are in the binary form with
their tag; an optional timespan is a byte 0, or a byte 1 and i64 nanoseconds; lists have a varbyte count before them.

==== ================== ========================================================================================
kind name               fields
==== ================== ========================================================================================
0    Put                key, value, optional expiry, publisher
1    PutUnique          key, value, optional expiry, who, u64 request, publisher
2    PutUniqueResult    u8 inserted, who, u64 request, publisher
3    Erase              key, publisher
4    Expire             key, publisher
5    Add                key, value, u8 tag of the type to start from, optional expiry, publisher
6    Subtract           key, value, optional expiry, publisher
7    Clear              publisher
8    AttachWriter       u64 offset, u16 heartbeat in ticks
9    Keepalive          u64 number of the last event
10   CumulativeAck      u64 number
11   MissingEvents      list of u64 (nack)
12   AckClone           u64 offset, u16 heartbeat in ticks, list of (key, value)
13   RetransmitFailed   u64 number
128  WriterState        u64 applied, u64 output, list of (u64 number, u8 code): from a master of chappe
129  Settled            u64 number: from a clone of chappe to a master of chappe
130  Leave              u64 number of its last write: from a clone of chappe to a master of chappe
131  SnapshotOffer      u64 snapshot, u64 offset, u16 heartbeat in ticks, u64 entries, u64 base: from a master of chappe
132  SnapshotPiece      u64 snapshot, u64 first entry, u32 crc32c of what follows, list of rows: likewise
133  SnapshotTaken      u64 snapshot, u64 entries, u8 again: from a clone of chappe to a master of chappe
134  MasterSilent       entity of a master: from the next head of its chain, or from itself, to all clones
135  ChangesOffer       as 131, and u64 how many of the entries are gone, a master, u64 number of its event: likewise
136  Several            list of (kind and fields of 0 to 7): from a master of chappe, to all clones
137  PositionAsked      u64 question: from a clone of chappe to a master of chappe
138  Position           u64 question, u64 number of the last event: from a master of chappe to a clone of chappe
139  Expiring           i64 nanoseconds since 1970, kind and fields of 0, 5 or 6: from a master of chappe, to all clones
140  ExpiresAt          key, u64 number of an event, i64 nanoseconds since 1970: to a clone of chappe
141  PutIf              key, value, optional expiry, u64 revision, publisher: from a clone of chappe to one
142  EraseIf            key, u64 revision, publisher: likewise
143  HistoryAsked       u64 question, key, u64 revision: from a clone of chappe to a master of chappe
144  HistoryTold        u64 question, u8 state, list of (u64 revision, bytes body): from a master of chappe to a clone
==== ================== ========================================================================================

From 128 on they never reach an original, but for 134: they are sent to one receiver, whose entity has chappe's mark, or
to all while no clone is an original's. An original drops that one, as every command that it does not know.

Several are events one after the other, of which the message has the number of the first. A master sends them while no
clone is an original's; an event that is asked for again comes alone.

A row is key, value, u64 revision, and a byte 0, or a byte 1 and i64 nanoseconds since 1970 at which it expires. The
revision of an entry is the number of the event that set it, and ``base`` for what was there before this master. A
change that has an expiry is told as Expiring while all clones are of chappe; otherwise as the original does, and each
clone of chappe is told ExpiresAt besides.

HistoryAsked asks for the changes of a key below a revision, 0: for all. HistoryTold has the newest of them, the oldest
first; its state is 0 if they are all, 1 if older ones follow when they are asked for, 2 if the master keeps none. The
bytes, with a varbyte count, are the body of a ``kv.history`` row.

A MissingEvents of the number 0 asks for everything. A clone of chappe may put four more behind that: the master that it
followed, as three numbers, and its last event, so that a master that knows that state says only what has changed since
(``asking``). An original does not answer to more than one number; so each second time a clone asks without.

A master of chappe also tells what was added to a string or container, or taken from it, as Add and Subtract, if all
its clones are of chappe; otherwise, as the original does, with a Put of all that came out.

lists.py     the lists in them
messages.py  what they are
wire.py      messages and commands as bytes
"""

from __future__ import annotations

from chappe.kv.commands.messages import (
    ACTIONS,
    ALL,
    DONE,
    EVENTS,
    MORE,
    NO_HISTORY,
    NOT_INSERTED,
    AckClone,
    Add,
    AttachWriter,
    Changed,
    ChangesOffer,
    Clear,
    Command,
    CumulativeAck,
    Erase,
    EraseIf,
    Event,
    Expire,
    ExpiresAt,
    Expiring,
    HistoryAsked,
    HistoryTold,
    Keepalive,
    Leave,
    MasterSilent,
    Message,
    MissingEvents,
    Mutation,
    Offer,
    Pair,
    Past,
    Position,
    PositionAsked,
    Put,
    PutIf,
    PutUnique,
    PutUniqueResult,
    RetransmitFailed,
    Row,
    Settled,
    Several,
    SnapshotOffer,
    SnapshotPiece,
    SnapshotTaken,
    Subtract,
    Told,
    WriterState,
    asked,
    asking,
    bound,
    encode_pairs,
    encode_past,
    encode_row,
    piece,
    ticks,
)
from chappe.kv.commands.wire import (
    SEVERAL,
    decode_message,
    encode_command,
    encode_message,
    encode_several,
    from_far,
    sender_endpoint,
    to_far,
)

__all__ = [
    "ACTIONS",
    "ALL",
    "DONE",
    "EVENTS",
    "MORE",
    "NOT_INSERTED",
    "NO_HISTORY",
    "SEVERAL",
    "AckClone",
    "Add",
    "AttachWriter",
    "Changed",
    "ChangesOffer",
    "Clear",
    "Command",
    "CumulativeAck",
    "Erase",
    "EraseIf",
    "Event",
    "Expire",
    "ExpiresAt",
    "Expiring",
    "HistoryAsked",
    "HistoryTold",
    "Keepalive",
    "Leave",
    "MasterSilent",
    "Message",
    "MissingEvents",
    "Mutation",
    "Offer",
    "Pair",
    "Past",
    "Position",
    "PositionAsked",
    "Put",
    "PutIf",
    "PutUnique",
    "PutUniqueResult",
    "RetransmitFailed",
    "Row",
    "Settled",
    "Several",
    "SnapshotOffer",
    "SnapshotPiece",
    "SnapshotTaken",
    "Subtract",
    "Told",
    "WriterState",
    "asked",
    "asking",
    "bound",
    "decode_message",
    "encode_command",
    "encode_message",
    "encode_pairs",
    "encode_past",
    "encode_row",
    "encode_several",
    "from_far",
    "piece",
    "sender_endpoint",
    "ticks",
    "to_far",
]
