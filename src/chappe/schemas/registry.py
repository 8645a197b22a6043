"""The registry: schemas, their ids, the versions of subjects, and the compatibility that a new one must have.

Source: the REST interface of Confluent's Schema Registry, whose numbers of errors these are. Departures: a schema has
no references, metadata or rules; a Protobuf file is compiled; the rules are those of ``avro``, ``json_schema`` and
``protobuf`` here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from chappe.defaults import SCHEMA_SUBJECT_MAX, SCHEMA_VERSIONS_MAX, SCHEMAS_MAX
from chappe.errors import BadSchema, ChappeError
from chappe.schemas import avro, json_schema
from chappe.schemas.comparing import parse_json
from chappe.storage.schema_database import SchemaDatabase

Kind = Literal["AVRO", "JSON", "PROTOBUF"]
KINDS: Final[tuple[Kind, ...]] = ("AVRO", "JSON", "PROTOBUF")
DIRECTIONS: Final = {  # the level -> whether the new schema reads what the old wrote, and the other way round
    "NONE": (False, False),
    "BACKWARD": (True, False),
    "FORWARD": (False, True),
    "FULL": (True, True),
}
LEVELS: Final = (*DIRECTIONS, "BACKWARD_TRANSITIVE", "FORWARD_TRANSITIVE", "FULL_TRANSITIVE")
NO_SUBJECT, NO_VERSION, NO_SCHEMA, NOT_SOFT_DELETED, NO_LEVEL = 40401, 40402, 40403, 40405, 40408
INCOMPATIBLE, BAD_SCHEMA, BAD_VERSION, BAD_LEVEL = 409, 42201, 42202, 42203


class RegistryRefusal(ChappeError):
    """The registry did not do what was asked; ``number`` is Confluent's for it, ``problems`` why schemas do not fit."""

    def __init__(self, number: int, text: str, problems: tuple[str, ...] = ()) -> None:
        super().__init__(text)
        self.number = number
        self.problems = problems


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema: its id, its kind and its text; JSON without spaces, or a compiled Protobuf file in base64."""

    id: int
    kind: Kind
    text: str


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """A version of a subject, and its schema."""

    subject: str
    version: int
    schema: Schema


def checked(kind: str, text: str) -> str:
    """Return the text by which equal schemas are told. Raises BadSchema."""
    if kind == "PROTOBUF":
        from chappe.schemas import protobuf

        return _base64(protobuf.parse(text))
    if kind not in KINDS:
        raise BadSchema(f"a schema is {', '.join(KINDS)}, not {kind[:50]!r}")
    (avro.parse if kind == "AVRO" else json_schema.checker)(text)
    return msgspec.json.encode(parse_json(text)).decode()


def _base64(file: Any) -> str:
    import base64

    return base64.b64encode(file.SerializeToString(deterministic=True)).decode()


def problems(kind: str, reader: str, writer: str) -> list[str]:
    """Return the reasons why the reader does not read all that the writer writes. Raises BadSchema."""
    if kind == "PROTOBUF":
        from chappe.schemas import protobuf

        return protobuf.problems(reader, writer)
    compare: Callable[[str, str], list[str]] = avro.problems if kind == "AVRO" else json_schema.problems
    return compare(reader, writer)


class Registry:
    """Keeps schemas in a directory, which one process has at a time; calls are made by one thread.

    What a call that writes has done is on disk when it returns.

    Raises:
        StorageLocked, StorageFormat, StorageError: The directory cannot be used.
    """

    def __init__(self, directory: str | Path) -> None:
        self._database = SchemaDatabase(directory)

    def close(self) -> None:
        self._database.close()

    # -- looking ----------------------------------------------------------------------------------------------

    def schema(self, id: int) -> Schema:
        """Raise RegistryRefusal if no schema has this id."""
        found = self._database.rows("SELECT id, kind, text FROM schemas WHERE id = ?", id)
        if not found:
            raise RegistryRefusal(NO_SCHEMA, f"there is no schema with the id {id}")
        return Schema(*found[0])

    def subjects(self, *, prefix: str = "", deleted: bool = False) -> list[str]:
        """Return their names, sorted; with ``deleted`` also of those of which all versions are deleted."""
        rows = self._database.rows(
            "SELECT DISTINCT subject FROM versions WHERE deleted <= ? ORDER BY subject", int(deleted)
        )
        return [subject for (subject,) in rows if subject.startswith(prefix)]

    def versions(self, subject: str, *, deleted: bool = False) -> list[int]:
        """Raise RegistryRefusal if the subject has none."""
        found = [version for version, _, gone in self._rows(subject) if deleted or not gone]
        if not found:
            raise RegistryRefusal(NO_SUBJECT, f"there is no subject {subject[:SCHEMA_SUBJECT_MAX]!r}")
        return found

    def version(self, subject: str, version: int | None, *, deleted: bool = False) -> SchemaVersion:
        """Return a version, None: the latest. Raises RegistryRefusal."""
        there = self.versions(subject, deleted=deleted)
        if version is not None and version not in there:
            raise RegistryRefusal(
                NO_VERSION, f"subject {subject!r} has no version {version}: it has {there[0]} to {there[-1]}"
            )
        wanted = there[-1] if version is None else version
        return SchemaVersion(
            subject, wanted, self.schema(next(id for at, id, _ in self._rows(subject) if at == wanted))
        )

    def uses(self, id: int) -> list[tuple[str, int]]:
        """Return the subjects and versions under which a schema was added. Raises RegistryRefusal for an unknown id."""
        self.schema(id)
        return [
            (subject, version)
            for subject, version in self._database.rows(
                "SELECT subject, version FROM versions WHERE id = ? AND deleted = 0 ORDER BY subject, version", id
            )
        ]

    def find(self, subject: str, kind: str, text: str) -> SchemaVersion:
        """Return the version that is this schema. Raises RegistryRefusal if none is."""
        there = self.versions(subject)
        _, digest = self._checked(kind, text)
        for version, id in self._alike(subject, digest):
            if version in there:
                return SchemaVersion(subject, version, self.schema(id))
        raise RegistryRefusal(NO_SCHEMA, f"subject {subject!r} has no version with this schema")

    def level(self, subject: str = "", *, inherits: bool = True) -> str:
        """Return the compatibility of a subject, or of all without one. Raises RegistryRefusal if it has none."""
        rows: dict[str, str] = dict(
            self._database.rows("SELECT subject, level FROM levels WHERE subject IN (?, '')", subject)
        )
        if subject and subject not in rows and not inherits:
            raise RegistryRefusal(NO_LEVEL, f"subject {subject!r} has no compatibility of its own")
        return rows.get(subject) or rows.get("") or "BACKWARD"

    # -- changing ---------------------------------------------------------------------------------------------

    def add(self, subject: str, kind: str, text: str) -> SchemaVersion:
        """Add a version, or return the one that is this schema. Raises RegistryRefusal, StorageError."""
        _check_subject(subject)
        canonical, digest = self._checked(kind, text)
        rows = self._rows(subject)
        gone = {version for version, _, deleted in rows if deleted}
        for version, id in self._alike(subject, digest):
            if version not in gone:
                return SchemaVersion(subject, version, self.schema(id))
        found = self._conflicts(subject, kind, canonical, self.level(subject), None)
        if found:
            raise RegistryRefusal(
                INCOMPATIBLE,
                f"subject {subject!r} is {self.level(subject)}, which this schema is not: {found[0]}",
                tuple(found),
            )
        if len(rows) >= SCHEMA_VERSIONS_MAX:
            raise RegistryRefusal(
                BAD_SCHEMA, f"a subject has {SCHEMA_VERSIONS_MAX:,} versions at most: take another one"
            )
        self._check_room("schemas")
        self._check_room("versions")
        version = rows[-1][0] + 1 if rows else 1
        self._database.add(subject, version, kind, canonical, digest)
        return self.version(subject, version)

    def check(self, subject: str, kind: str, text: str, version: int | None = None) -> list[str]:
        """Return the reasons against a schema, compared with ``version`` alone if given. Raises RegistryRefusal."""
        canonical, _ = self._checked(kind, text)
        if version is not None:
            self.version(subject, version)
        return self._conflicts(subject, kind, canonical, self.level(subject), version)

    def delete(self, subject: str, version: int | None = None, *, permanent: bool = False) -> list[int]:
        """Delete a version, None: all; return them. Its schema keeps its id, by which what was written is read.

        Versions that are deleted are gone for good with a second, ``permanent`` call. Raises RegistryRefusal.
        """
        rows = self._rows(subject)
        live = [at for at, _, gone in rows if not gone]
        there = [at for at, _, gone in rows if gone] if permanent else live
        if version is None:
            if permanent and live:
                raise RegistryRefusal(NOT_SOFT_DELETED, f"subject {subject!r} is not deleted yet: delete it first")
            if not there:
                raise RegistryRefusal(NO_SUBJECT, f"there is no subject {subject[:SCHEMA_SUBJECT_MAX]!r}")
        elif version not in there:
            self.versions(subject, deleted=True)
            hint = ": delete it first" if permanent and version in live else ""
            raise RegistryRefusal(NO_VERSION, f"subject {subject!r} has no version {version} to delete{hint}")
        doomed = there if version is None else [version]
        self._database.delete(subject, doomed, permanent=permanent)
        return doomed

    def set_level(self, level: str | None, subject: str = "") -> None:
        """Set the compatibility of a subject, or of all; None: as that of all. Raises RegistryRefusal."""
        if level is not None and level not in LEVELS:
            raise RegistryRefusal(BAD_LEVEL, f"a compatibility is {', '.join(LEVELS)}, not {level[:50]!r}")
        if subject:
            _check_subject(subject)
            self._check_room("levels")
        self._database.set_level(subject, level)

    # -- inside -----------------------------------------------------------------------------------------------

    def _check_room(self, table: str) -> None:
        if self._database.rows(f"SELECT count(*) FROM {table}")[0][0] >= SCHEMAS_MAX:
            raise RegistryRefusal(BAD_SCHEMA, f"a server has {SCHEMAS_MAX:,} {table} at most: run another one")

    def _rows(self, subject: str) -> list[tuple[int, int, int]]:
        rows = self._database.rows(
            "SELECT version, id, deleted FROM versions WHERE subject = ? ORDER BY version", subject
        )
        return [(version, id, gone) for version, id, gone in rows]

    def _alike(self, subject: str, digest: bytes) -> list[tuple[int, int]]:
        rows = self._database.rows(
            "SELECT version, id FROM versions JOIN schemas USING (id) WHERE subject = ? AND digest = ? "
            "ORDER BY version DESC",
            subject,
            digest,
        )
        return [(version, id) for version, id in rows]

    @staticmethod
    def _checked(kind: str, text: str) -> tuple[str, bytes]:
        try:
            canonical = checked(kind, text)
        except BadSchema as error:
            raise RegistryRefusal(BAD_SCHEMA, str(error)) from None
        return canonical, hashlib.sha256(f"{kind}\n{canonical}".encode()).digest()

    def _conflicts(self, subject: str, kind: str, text: str, level: str, version: int | None) -> list[str]:
        backward, forward = DIRECTIONS[level.removesuffix("_TRANSITIVE")]
        live = [(at, id) for at, id, gone in self._rows(subject) if not gone]
        compared = live if level.endswith("_TRANSITIVE") and version is None else live[-1:]
        if version is not None:
            compared = [(at, id) for at, id in live if at == version]
        found: list[str] = []
        try:
            for at, id in reversed(compared):
                old = self.schema(id)
                if not backward and not forward:
                    break
                if old.kind != kind:
                    found.append(f"version {at} is {old.kind}, and this is {kind}")
                    continue
                if backward:
                    found += [f"it cannot read version {at}: {each}" for each in problems(kind, text, old.text)]
                if forward:
                    found += [f"version {at} cannot read it: {each}" for each in problems(kind, old.text, text)]
        except BadSchema as error:
            raise RegistryRefusal(BAD_SCHEMA, str(error)) from None
        return found


def _check_subject(subject: str) -> None:
    if not 0 < len(subject) <= SCHEMA_SUBJECT_MAX or not subject.isprintable():
        raise RegistryRefusal(
            BAD_SCHEMA, f"a subject is a name of 1 to {SCHEMA_SUBJECT_MAX} printable characters, such as readings-value"
        )
