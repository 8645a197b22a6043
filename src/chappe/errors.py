"""Every exception that chappe raises on purpose, in one tree.

ChappeError
 +- UsageError: OffsetOutOfRange, UnknownTopic, RecordTooLarge, ConfigError, UnsupportedValue, NotPermitted, BadSchema
 +- ProtocolError: InvalidData
 +- StorageError: StorageFull, StorageLocked, StorageFormat, Damaged
 +- StoreError: NoSuchKey, TypeClash, InvalidOperation, BackendFailure, StaleData, NoMaster, WriteUnknown, MasterExists,
 |              BrokenClone
 +- ChainError: NoChain, SessionExpired, CommandFailed
 +- PeeringError: PeerIncompatible, PeerInvalid, PeerUnavailable
 +- BufferFull, TooSlow, WorkerFailed, TimedOut, Closed, Forked, MemberStopped, Unreachable
 +- NoResponders, RequestFailed
 +- Fenced, StagedRowsMissing, IdentityInUse, IdentityRolledBack, Sealed, OffsetConflict
 +- AddressInUse, TooManyOpenFiles, SparkUnavailable
 +- BadValue, IncompatibleSchema, UnknownSchema, SchemasUnavailable

``definite`` says whether the request certainly did not take effect (True) or may still (False). ``code`` is the number
that Broker has for such an error (``ErrorCode``).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Self, TypeAlias

Address: TypeAlias = tuple[str, int]  # host and port


class ErrorCode(IntEnum):
    """Broker's numbers for what can go wrong: ``code`` of every error here, and of the messages that tell of errors."""

    NONE = 0
    UNSPECIFIED = 1
    PEER_INCOMPATIBLE = 2
    PEER_INVALID = 3
    PEER_UNAVAILABLE = 4
    PEER_DISCONNECT_DURING_HANDSHAKE = 5
    PEER_TIMEOUT = 6
    MASTER_EXISTS = 7
    NO_SUCH_MASTER = 8
    NO_SUCH_KEY = 9
    REQUEST_TIMEOUT = 10
    TYPE_CLASH = 11
    INVALID_DATA = 12
    BACKEND_FAILURE = 13
    STALE_DATA = 14
    CANNOT_OPEN_FILE = 15
    CANNOT_WRITE_FILE = 16
    INVALID_TOPIC_KEY = 17
    END_OF_FILE = 18
    INVALID_TAG = 19
    INVALID_MESSAGE = 20
    INVALID_STATUS = 21
    CONVERSION_FAILED = 22
    CONSUMER_EXISTS = 23
    CONNECTION_TIMEOUT = 24
    BAD_MEMBER_FUNCTION_CALL = 25
    REPEATED_REQUEST_ID = 26
    BROKEN_CLONE = 27
    SHUTTING_DOWN = 28
    INVALID_PEERING_REQUEST = 29
    REPEATED_PEERING_HANDSHAKE_REQUEST = 30
    UNEXPECTED_HANDSHAKE_MESSAGE = 31
    INVALID_HANDSHAKE_STATE = 32
    NO_PATH_TO_PEER = 33
    NO_CONNECTOR_AVAILABLE = 34
    CANNOT_OPEN_RESOURCE = 35
    SERIALIZATION_FAILED = 36
    DESERIALIZATION_FAILED = 37
    WRONG_MAGIC_NUMBER = 38
    REDUNDANT_CONNECTION = 39
    LOGIC_ERROR = 40
    INVALID_JSON = 41

    @property
    def text(self) -> str:
        """The name as Broker writes it."""
        return self.name.lower()


class ChappeError(Exception):
    """Base of all errors of chappe; the text is one sentence for users that says what to do.

    Errors survive ``pickle`` and ``copy`` with their attributes, so they pass from a process pool to its owner.
    """

    definite = True
    code: int = ErrorCode.UNSPECIFIED

    def coded(self, code: int) -> Self:
        """Itself, with another of Broker's numbers than its class has."""
        self.code = code
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        # Exception's own calls the class with ``args``, which lack what an ``__init__`` of ours asks for besides.
        return _rebuild, (type(self), self.args), self.__getstate__()


def _rebuild(kind: type[ChappeError], args: tuple[Any, ...]) -> ChappeError:
    return kind.__new__(kind, *args)


class UsageError(ChappeError):
    """The caller asked for something impossible."""

    code: int = ErrorCode.BAD_MEMBER_FUNCTION_CALL


class OffsetOutOfRange(UsageError):
    """The wanted offset is before the first one kept or after the head."""


class UnknownTopic(UsageError):
    """No reachable store has the topic."""


class RecordTooLarge(UsageError):
    """A record is larger than ``defaults.RECORD_BYTES_MAX``."""

    code: int = ErrorCode.SERIALIZATION_FAILED


class ConfigError(UsageError):
    """A configuration file or environment variable is wrong; the text names file and line."""


class NotPermitted(UsageError):
    """The permissions do not let this identity do it; the text names identity, verb and topic, or key."""


class BadSchema(UsageError):
    """A text is not a schema of its kind, or one beyond the bounds."""

    code: int = ErrorCode.INVALID_DATA


class UnsupportedValue(UsageError):
    """No value of the data model can hold a Python object: its type, or a number or size out of bounds."""

    code: int = ErrorCode.CONVERSION_FAILED


class ProtocolError(ChappeError):
    """A peer sent bytes that do not decode."""

    code: int = ErrorCode.INVALID_MESSAGE


class InvalidData(ProtocolError):
    """Bytes, JSON or text that are not a value of the data model, or one beyond its bounds."""

    code: int = ErrorCode.DESERIALIZATION_FAILED


class BufferFull(ChappeError):
    """The buffer of a producer is full and its policy is to raise."""


class TooSlow(ChappeError):
    """A message was older than ``max_age_s`` when it was taken: the reader is too slow, and gets no more.

    ``age_s`` is how old it was, and ``count`` how many of those waiting were too old, itself included.
    """

    def __init__(self, text: str, age_s: float, count: int) -> None:
        super().__init__(text)
        self.age_s = age_s
        self.count = count


class WorkerFailed(ChappeError):
    """The workers of a reader cannot finish a record, or cannot be started."""


class Unreachable(ChappeError):
    """There is no way to the only receiver of a message, or it is too long; nothing was sent."""

    code: int = ErrorCode.NO_PATH_TO_PEER


class NoResponders(ChappeError):
    """Nobody in reach subscribes to the topic of a request; nothing was sent."""

    code: int = ErrorCode.NO_PATH_TO_PEER


class RequestFailed(ChappeError):
    """A responder answered a request with an error, which is the text; ``responder`` is the id of its endpoint."""

    definite = False

    def __init__(self, text: str, responder: str = "") -> None:
        super().__init__(text)
        self.responder = responder


class TimedOut(ChappeError):
    """The wait ended before the thing happened; it may still happen."""

    code: int = ErrorCode.REQUEST_TIMEOUT

    definite = False


class Closed(ChappeError):
    """The object was closed."""

    code: int = ErrorCode.SHUTTING_DOWN


class Forked(ChappeError):
    """A member was made before the process forked, and is used in the child: it belongs to the parent. Make another."""


class MemberStopped(ChappeError):
    """A member met a defect and no longer serves anybody."""

    definite = False


class StorageError(ChappeError):
    """The disk, or the files on it, did not do what was asked."""

    code: int = ErrorCode.CANNOT_WRITE_FILE


class StorageFull(StorageError):
    """No room on the disk; nothing of the refused write is visible."""


class StorageLocked(StorageError):
    """Another process uses the directory."""

    code: int = ErrorCode.CANNOT_OPEN_FILE


class StorageFormat(StorageError):
    """The directory was written by a newer chappe or holds something else."""

    code: int = ErrorCode.CANNOT_OPEN_FILE


class Damaged(StorageError):
    """Bytes on disk fail their checksum."""


class Fenced(ChappeError):
    """Another run of the same query or write took over; this one may write nothing more."""


class StagedRowsMissing(ChappeError):
    """A store does not have all rows that a commit names; nothing is committed; run the batch again."""


class StoreError(ChappeError):
    """A data store did not do what was asked; ``code`` is the number that the original has for it."""

    code: int = ErrorCode.UNSPECIFIED


class NoSuchKey(StoreError):
    """Nothing is stored under the key."""

    code: int = ErrorCode.NO_SUCH_KEY


class WrongRevision(StoreError):
    """The key was changed, or is there or gone, against what was expected; nothing is done.

    ``revision`` is the one that the key has now, None if it is not there.
    """

    code = 200  # the original has none

    def __init__(self, text: str, revision: int | None = None) -> None:
        super().__init__(text)
        self.revision = revision

    def __reduce__(self) -> tuple[type[WrongRevision], tuple[str, int | None]]:
        return type(self), (str(self), self.revision)


class TypeClash(StoreError):
    """The operation does not fit the type of the value that is stored."""

    code: int = ErrorCode.TYPE_CLASH


class InvalidOperation(StoreError):
    """The operation's own value is not what it needs, or its result would be out of bounds."""

    code: int = ErrorCode.INVALID_DATA


class BackendFailure(StoreError):
    """The master's backend could not make the write durable; the store is as it was before."""

    code: int = ErrorCode.BACKEND_FAILURE


class StaleData(StoreError):
    """A clone has been without its master for longer than it may, or has not found one yet."""

    code: int = ErrorCode.STALE_DATA


class NoMaster(StoreError):
    """No master took the write in time, or the buffer for writes without one is full; it was not done."""

    code: int = ErrorCode.NO_SUCH_MASTER


class WriteUnknown(StoreError):
    """The master was lost before it confirmed a write that it may have received."""

    code: int = ErrorCode.REQUEST_TIMEOUT
    definite = False


class MasterExists(StoreError):
    """A master of that name is already in reach, or this endpoint holds the store in another role."""

    code: int = ErrorCode.MASTER_EXISTS


class BrokenClone(StoreError):
    """A clone lacks changes of its master for good, so it takes a snapshot."""

    code: int = ErrorCode.BROKEN_CLONE


class ChainError(ChappeError):
    """A chain of servers did not do what was asked."""


class NoChain(ChainError):
    """No server of the chain answered in time, or none took the command; it was not done."""


class SessionExpired(ChainError):
    """The chain has forgotten the client, so nobody knows whether its command was done: look, and decide."""

    definite = False


class CommandFailed(ChainError):
    """The machine raised an exception, at all members alike; what it had changed until then stays."""


class PeeringError(ChappeError):
    """A peering did not come about, or could not be ended; ``code`` is the number that the original has for it.

    ``address`` is host and port, as dialled; ``peer_id`` is known if the handshake got that far. ``last`` is True where
    the address is not dialled again.
    """

    code: int = ErrorCode.UNSPECIFIED
    last = False

    def __init__(self, text: str, address: Address | None = None, peer_id: bytes | None = None) -> None:
        super().__init__(text)
        self.address = address
        self.peer_id = peer_id


class PeerIncompatible(PeeringError):
    """The other side speaks no version of the protocol that we do."""

    code: int = ErrorCode.PEER_INCOMPATIBLE


class PeerInvalid(PeeringError):
    """There is no such peering, or there cannot be one."""

    code: int = ErrorCode.PEER_INVALID


class PeerUnavailable(PeeringError):
    """Nobody answers there, or the handshake failed."""

    code: int = ErrorCode.PEER_UNAVAILABLE


class IdentityInUse(ChappeError):
    """Another producer, or another consumer, with the same identity is alive."""


class IdentityRolledBack(ChappeError):
    """The journal of a producer's identity is older than what stores hold: a restored backup, or a copy in use."""


class Sealed(ChappeError):
    """A topic is sealed for a group, and whoever reads or writes it has no key of that group, or an old one.

    Attributes:
        passing: Whether keys may come by themselves, as others hand them on.
    """

    passing = False


class OffsetConflict(ChappeError):
    """Records were not appended: the partition does not end at the expected offset, but at ``next_offset``."""

    def __init__(self, text: str, next_offset: int) -> None:
        super().__init__(text)
        self.next_offset = next_offset


class AddressInUse(ChappeError):
    """The address to listen on is taken."""

    code: int = ErrorCode.CANNOT_OPEN_RESOURCE


class TooManyOpenFiles(ChappeError):
    """This process may open no more files and sockets: raise its limit, or close what it does not need."""

    code: int = ErrorCode.CANNOT_OPEN_RESOURCE


class SparkUnavailable(ChappeError):
    """PySpark or a Java that it can use is missing."""


class BadValue(ChappeError):
    """A value does not fit the codec of a topic: nothing was sent; or the bytes of a record are not such a value.

    ``topic`` is where; ``partition`` and ``offset`` say which record, None at a producer.
    """

    code: int = ErrorCode.INVALID_DATA

    def __init__(self, text: str, topic: str = "", partition: str | None = None, offset: int | None = None) -> None:
        super().__init__(text)
        self.topic = topic
        self.partition = partition
        self.offset = offset


class IncompatibleSchema(ChappeError):
    """The compatibility of the subject does not allow the schema; it was not added. ``problems`` has every reason."""

    def __init__(self, text: str, problems: tuple[str, ...] = ()) -> None:
        super().__init__(text)
        self.problems = problems


class UnknownSchema(ChappeError):
    """The server of schemas has no such id, subject or version."""


class SchemasUnavailable(ChappeError):
    """The server of schemas does not answer, or refuses who asks. To add a schema again does no harm."""

    definite = False
