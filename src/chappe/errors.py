"""Every exception that chappe raises on purpose, in one tree.

ChappeError
 +- UsageError            the caller asked for something that cannot be
 |   +- OffsetOutOfRange  an offset that is not, or no longer, or not yet there
 |   +- UnknownTopic      no store or producer has it
 |   +- RecordTooLarge    a record over the size bound
 |   +- ConfigError       a configuration file or variable that cannot be read
 |   +- UnsupportedValue  a Python object that no typed value can hold
 +- ProtocolError         bytes from a peer that are not what they should be
 |   +- InvalidData       bytes, JSON or text that are no typed value
 +- BufferFull            the bounded buffer of a producer has no room
 +- TimedOut              what was waited for did not happen in time
 +- Closed                the object was closed
 +- StorageError          the disk or the files on it
 |   +- StorageFull       no room; nothing of the write is kept
 |   +- StorageLocked     another process uses the directory
 |   +- StorageFormat     written by a newer chappe, or not by chappe at all
 |   +- Damaged           bytes on disk that fail their checksum
 +- Fenced                another run of the same query took over
 +- StagedRowsMissing     rows of a batch were lost before its commit
 +- IdentityInUse         two producers with one identity
 +- AddressInUse          a port that somebody else listens on
 +- SparkUnavailable      pyspark or a usable Java is missing

``definite`` says whether the request certainly did not take effect (True) or may still (False).
"""

from __future__ import annotations


class ChappeError(Exception):
    """Base of all errors of chappe; its text is one sentence for people, with what to do."""

    definite = True


class UsageError(ChappeError):
    """The caller asked for something that cannot be."""


class OffsetOutOfRange(UsageError):
    """The wanted offset is before the first one kept or after the head."""


class UnknownTopic(UsageError):
    """No reachable store has the topic."""


class RecordTooLarge(UsageError):
    """A record is larger than ``defaults.RECORD_BYTES_MAX``."""


class ConfigError(UsageError):
    """A configuration file or environment variable is wrong; the text names file and line."""


class UnsupportedValue(UsageError):
    """No value of the data model can hold a Python object: its type, or a number or size out of bounds."""


class ProtocolError(ChappeError):
    """A peer sent bytes that do not decode."""


class InvalidData(ProtocolError):
    """Bytes, JSON or text are no value of the data model, or one beyond its bounds."""


class BufferFull(ChappeError):
    """The buffer of a producer is full and its policy is to raise."""


class TimedOut(ChappeError):
    """The wait ended before the thing happened; it may still happen."""

    definite = False


class Closed(ChappeError):
    """The object was closed."""


class StorageError(ChappeError):
    """The disk, or the files on it, did not do what was asked."""


class StorageFull(StorageError):
    """No room on the disk; nothing of the refused write is visible."""


class StorageLocked(StorageError):
    """Another process uses the directory."""


class StorageFormat(StorageError):
    """The directory was written by a newer chappe or holds something else."""


class Damaged(StorageError):
    """Bytes on disk fail their checksum."""


class Fenced(ChappeError):
    """Another run of the same query or write took over; this one may write nothing more."""


class StagedRowsMissing(ChappeError):
    """A store does not have all rows that a commit names; nothing is committed, the batch is to be run again."""


class IdentityInUse(ChappeError):
    """Another producer with the same identity is alive."""


class AddressInUse(ChappeError):
    """The address to listen on is taken."""


class SparkUnavailable(ChappeError):
    """PySpark or a Java that it can use is missing."""
