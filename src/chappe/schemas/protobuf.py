"""Protobuf: messages to and from bytes, and the rules by which one file reads what another wrote.

A schema is a ``FileDescriptorProto``, which ``protoc --descriptor_set_out`` writes, in base64; it may import Google's
own files alone. Source of the rules: Protobuf's language guide, "Updating A Message Type".
"""

from __future__ import annotations

import base64
import binascii
from importlib import import_module
from typing import Any, Final

from chappe.errors import BadSchema, ChappeError
from chappe.schemas.comparing import Comparison, check_size, reason

try:
    from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
    from google.protobuf.message import Message
except ImportError:
    raise ChappeError("Protobuf needs a further package: pip install 'chappe[protobuf]'") from None

_GOOGLES: Final = ("any", "api", "duration", "empty", "field_mask", "source_context", "struct", "timestamp", "type")
_WELL_KNOWN: Final = {f"google/protobuf/{each}.proto" for each in (*_GOOGLES, "wrappers", "descriptor")}
_FIELD: Final = descriptor_pb2.FieldDescriptorProto
_ALIKE: Final = (  # kinds that read each other's bytes
    {_FIELD.TYPE_INT32, _FIELD.TYPE_UINT32, _FIELD.TYPE_INT64, _FIELD.TYPE_UINT64, _FIELD.TYPE_BOOL, _FIELD.TYPE_ENUM},
    {_FIELD.TYPE_SINT32, _FIELD.TYPE_SINT64},
    {_FIELD.TYPE_STRING, _FIELD.TYPE_BYTES},
    {_FIELD.TYPE_FIXED32, _FIELD.TYPE_SFIXED32},
    {_FIELD.TYPE_FIXED64, _FIELD.TYPE_SFIXED64},
)


class ProtobufMessage:
    """Codec of one message: a value is a message of that class, or a dictionary that has its form in JSON."""

    def __init__(self, kind: Any) -> None:
        self._kind = kind
        self.name = f"Protobuf {kind.DESCRIPTOR.full_name}"

    def encode(self, value: Any) -> bytes:
        raw: bytes = self._message(value).SerializeToString()
        return raw

    def decode(self, data: bytes) -> Any:
        return self._kind.FromString(data)

    def _message(self, value: Any) -> Any:
        if isinstance(value, dict):
            return json_format.ParseDict(value, self._kind())
        if not isinstance(value, Message):
            raise TypeError(f"it is {type(value).__name__}, not a message or a dictionary")
        if value.DESCRIPTOR.full_name != self._kind.DESCRIPTOR.full_name:
            raise TypeError(f"it is the message {value.DESCRIPTOR.full_name}")
        if type(value) is self._kind:
            return value
        found = self._kind.FromString(value.SerializeToString())  # of a class made from another copy of the file
        size = found.ByteSize()
        found.DiscardUnknownFields()
        if found.ByteSize() != size:
            raise ValueError("it has fields that the schema does not know")
        return found


def plain(value: Any) -> Any:
    """Return a message as what JSON has; other values as they are."""
    return json_format.MessageToDict(value, preserving_proto_field_name=True) if isinstance(value, Message) else value


def parse(text: str) -> Any:
    """Return the ``FileDescriptorProto`` of a schema. Raises BadSchema."""
    try:
        found = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(check_size(text), validate=True))
    except (binascii.Error, UnicodeError, ValueError):
        raise BadSchema(
            "a Protobuf schema is a compiled file in base64: make one with protoc --descriptor_set_out=FILE, which "
            "`chappe schemas add` takes"
        ) from None
    except Exception as error:
        raise BadSchema(f"this is not a compiled Protobuf file: {reason(error)}") from None
    pool_of(found)
    return found


def text_of(raw: bytes) -> str:
    """Return the schema of the one file that ``protoc`` wrote. Raises BadSchema."""
    try:
        files = list(descriptor_pb2.FileDescriptorSet.FromString(raw).file)
    except Exception:
        files = []
    own = [each for each in files if each.name not in _WELL_KNOWN]
    if len(own) != 1:
        raise BadSchema("give what protoc --descriptor_set_out=FILE made of one .proto file")
    return base64.b64encode(own[0].SerializeToString()).decode()


def pool_of(file: Any) -> Any:
    """Return the pool in which the file and what it imports are. Raises BadSchema."""
    pool = descriptor_pool.DescriptorPool()
    try:
        _add_imports(pool, file, set())
        pool.Add(file)
        pool.FindFileByName(file.name)
    except BadSchema:
        raise
    except Exception as error:
        raise BadSchema(f"this Protobuf file does not hold together: {reason(error)}") from None
    return pool


def _add_imports(pool: Any, file: Any, done: set[str]) -> None:
    for name in file.dependency:
        if name not in _WELL_KNOWN:
            raise BadSchema(f"the file imports {name[:100]!r}: only files of google/protobuf can be imported")
        if name not in done:
            done.add(name)
            module = import_module(name.removesuffix(".proto").replace("/", ".") + "_pb2")
            inner = descriptor_pb2.FileDescriptorProto()
            module.DESCRIPTOR.CopyToProto(inner)
            _add_imports(pool, inner, done)
            pool.Add(inner)


def message_class(file: Any, indexes: tuple[int, ...]) -> Any:
    """Return the class of a message by its place: its index in the file, in that message, ... Raises BadSchema."""
    names, messages = [file.package] if file.package else [], file.message_type
    for index in indexes:
        if not 0 <= index < len(messages):
            raise BadSchema(f"the Protobuf file {file.name} has no message {list(indexes)}")
        names.append(messages[index].name)
        messages = messages[index].nested_type
    return message_factory.GetMessageClass(pool_of(file).FindMessageTypeByName(".".join(names)))


def place_of(file: Any, full_name: str) -> tuple[int, ...]:
    """Return the place of a message. Raises BadSchema if the file has none of this name."""
    rest = full_name.removeprefix(f"{file.package}." if file.package else "")
    found: list[int] = []
    messages = file.message_type
    for part in rest.split("."):
        index = next((at for at, each in enumerate(messages) if each.name == part), None)
        if index is None:
            names = ", ".join(each.name for each in file.message_type)
            raise BadSchema(f"the Protobuf file {file.name} has no message {full_name[:100]}: it has {names}")
        found.append(index)
        messages = messages[index].nested_type
    return tuple(found)


# -- compatibility ------------------------------------------------------------------------------------------------


def problems(reader: str, writer: str) -> list[str]:
    """Return the reasons why messages of ``writer`` cannot be read as those of ``reader``. Raises BadSchema."""
    new, old = parse(reader), parse(writer)
    found = [] if new.package == old.package else [f"the package is {new.package!r}, and was {old.package!r}"]
    return found + _Update()._messages(new.message_type, old.message_type, "")


class _Update(Comparison):
    def _messages(self, reader: Any, writer: Any, above: str) -> list[str]:
        known = {each.name: each for each in reader}
        found: list[str] = []
        for old in writer:
            self.step()
            name = above + old.name
            if old.name not in known:
                found.append(f"message {name} is gone")
                continue
            new = known[old.name]
            found += self._fields(new, old, name)
            found += self._messages(new.nested_type, old.nested_type, f"{name}.")
        return found

    def _fields(self, reader: Any, writer: Any, message: str) -> list[str]:
        new = {each.number: each for each in reader.field}
        old = {each.number: each for each in writer.field}
        found = [
            f"field {each.name} of {message} is required, and was not"
            for number, each in new.items()
            if each.label == _FIELD.LABEL_REQUIRED and (number not in old or old[number].label != _FIELD.LABEL_REQUIRED)
        ]
        for number in sorted(new.keys() & old.keys()):
            self.step()
            found += self._field(new[number], old[number], message)
        joined: dict[int, int] = {}
        for number in new.keys() & old.keys():
            if _in_oneof(new[number]) and not _in_oneof(old[number]):
                joined[new[number].oneof_index] = joined.get(new[number].oneof_index, 0) + 1
        found += [
            f"oneof {reader.oneof_decl[index].name} of {message} takes {count} fields that could be set together"
            for index, count in joined.items()
            if count > 1
        ]
        return found

    @staticmethod
    def _field(new: Any, old: Any, message: str) -> list[str]:
        where = f"field {old.name} (number {old.number}) of {message}"
        if new.type != old.type and not any({new.type, old.type} <= each for each in _ALIKE):
            kinds = [_FIELD.Type.Name(each.type).removeprefix("TYPE_").lower() for each in (new, old)]
            return [f"{where} is {kinds[0]}, and was {kinds[1]}"]
        message_kinds = (_FIELD.TYPE_MESSAGE, _FIELD.TYPE_GROUP)
        if old.type in message_kinds and new.type_name != old.type_name:
            return [f"{where} is {new.type_name}, and was {old.type_name}"]
        many = [each.label == _FIELD.LABEL_REPEATED for each in (new, old)]
        return (
            [f"{where} is {'' if many[0] else 'not '}repeated, and was {'not ' if many[0] else ''}so"]
            if (many[0] is not many[1])
            else []
        )


def _in_oneof(field: Any) -> bool:
    return field.HasField("oneof_index") and not field.proto3_optional
