"""Values and errors survive pickle, cloudpickle, copy and deepcopy, whether chappe is compiled or not.

Spark, process pools and users' own programs carry them from process to process. mypyc's own ``__setstate__`` once
refused to restore a frozen dataclass, so nothing compiled could be read in Spark.
"""

from __future__ import annotations

import ast
import builtins
import collections.abc
import copy
import dataclasses
import enum
import inspect
import io
import pickle
import pkgutil
import ssl
import sys
import types
import typing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime, timedelta
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import numpy
import numpy.typing
import pyarrow
import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame
from pyspark.sql.types import DataType, StringType

import chappe
from chappe.api.log.consumed_batch import ConsumedBatch
from chappe.api.mesh.forwarded import Forwarded
from chappe.api.mesh.identity import Behind
from chappe.api.mesh.received import Received
from chappe.data import values
from chappe.data.binary import encode
from chappe.data.logical import LamportTimestamp
from chappe.errors import ChappeError, OffsetConflict
from chappe.log.batch import Batch, encode_batch
from chappe.mesh.links.greetings import Code, Fault
from chappe.mesh.messages import Message
from chappe.spark.archive.tasks import FileWriter

WAYS: typing.Final[dict[str, Callable[[Any], Any]]] = {
    "pickle": lambda value: pickle.loads(pickle.dumps(value)),
    "cloudpickle": lambda value: cloudpickle.loads(cloudpickle.dumps(value)),  # type: ignore[no-untyped-call]
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
}
DEPTH_MAX: typing.Final = 6
PLAIN: typing.Final[dict[Any, Any]] = {
    int: 3,
    str: "text",
    bytes: b"bytes",
    bool: True,
    float: 1.5,
    None: None,
    type(None): None,
    object: "object",
    typing.Any: "any",
    collections.abc.Hashable: "hashable",
    type: int,
    Path: Path("folder"),
    UUID: UUID(int=5),
    datetime: datetime(2026, 1, 2, tzinfo=UTC),
    timedelta: timedelta(seconds=3),
    msgspec.Raw: msgspec.Raw(b"1"),
    Exception: ValueError("text"),
    DataType: StringType(),
    pyarrow.Table: pyarrow.table({"column": [1, 2]}),
    Batch: Batch.parse(encode_batch(0, [b"value"], 5)),
    LamportTimestamp: LamportTimestamp(7),
    Fault: Fault(Code.PEER_INCOMPATIBLE, "text"),  # compiled, so that its __init__ tells no types
    numpy.ndarray: numpy.arange(3),
}
NAMES: typing.Final = (
    vars(builtins) | vars(values) | {"DataFrame": DataFrame, "NDArray": numpy.typing.NDArray}
)  # besides those of a class's module
OF_ONE_PROCESS: typing.Final = (ssl.SSLContext, ssl.SSLObject, ssl.MemoryBIO, memoryview, DataFrame, FileWriter, Behind)
SKIPPED: typing.Final = ("__main__", "chappe.testing.plugin")


def _modules() -> Iterator[types.ModuleType]:
    for each in pkgutil.walk_packages(chappe.__path__, "chappe."):
        if not each.name.endswith(SKIPPED):
            yield import_module(each.name)


def _classes(wanted: Callable[[type], bool]) -> list[type]:
    found = {
        kind
        for module in _modules()
        for kind in vars(module).values()
        if isinstance(kind, type) and kind.__module__ == module.__name__ and wanted(kind)
        if kind.__name__ in vars(module)  # not a schema that is made of other declarations
    }
    return sorted(found, key=lambda kind: (kind.__module__, kind.__qualname__))


def _is_value(kind: type) -> bool:
    """Frozen dataclasses and Structs. The others hold what belongs to one process: cores, sockets, files."""
    if dataclasses.is_dataclass(kind):
        return bool(kind.__dataclass_params__.frozen)  # type: ignore[attr-defined]
    return issubclass(kind, msgspec.Struct)


VALUES: typing.Final = _classes(_is_value)
ERRORS: typing.Final = _classes(lambda kind: issubclass(kind, ChappeError))


class _OfOneProcess(Exception):
    """A value holds something that no other process could use."""


def _sample(hint: Any, depth: int = 0) -> Any:
    """Something plain of a type, and as shallow as the type allows."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if isinstance(hint, collections.abc.Hashable) and hint in PLAIN:
        return PLAIN[hint]
    if isinstance(hint, typing.TypeVar):
        return _sample(hint.__bound__ or str, depth)
    if origin in (typing.Union, types.UnionType):
        return None if depth >= DEPTH_MAX and type(None) in inner else _sample(inner[0], depth)
    if origin is typing.Literal:
        return inner[0]
    if origin is tuple and inner[-1:] != (...,):
        return tuple(_sample(each, depth + 1) for each in inner)
    if origin is type:
        return inner[0]
    if origin is collections.abc.Callable:
        return len
    kind = origin or hint
    if kind in OF_ONE_PROCESS or getattr(kind, "_is_protocol", False) or issubclass(kind, io.IOBase):
        raise _OfOneProcess
    if kind in PLAIN:
        return PLAIN[kind]
    items = [] if depth >= DEPTH_MAX else [_sample(each, depth + 1) for each in inner if each is not ...]
    if issubclass(kind, collections.abc.Mapping):
        return (dict if inspect.isabstract(kind) else kind)([items] if items else [])
    if issubclass(kind, collections.abc.Iterable) and kind.__module__ in ("builtins", "collections", "collections.abc"):
        concrete = kind if not inspect.isabstract(kind) else frozenset if kind is collections.abc.Set else list
        return concrete(items)
    if issubclass(kind, enum.Enum):
        return next(iter(kind))
    return _make(kind, depth + 1)


def _hints(kind: Any) -> dict[str, Any]:
    """The types of its fields. Of a compiled class some are not told, and its sources are asked."""
    module = sys.modules[kind.__module__]
    names = NAMES | vars(module)
    hints = typing.get_type_hints(kind, localns=names)
    if any(each is type for each in hints.values()):
        source = Path(str(module.__file__)).parent / f"{module.__name__.rpartition('.')[2]}.py"
        for node in ast.parse(source.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and node.name == kind.__name__:
                for each in node.body:
                    if isinstance(each, ast.AnnAssign):
                        hints[ast.unparse(each.target)] = eval(ast.unparse(each.annotation), names)
    return hints


def _make(kind: Any, depth: int = 0) -> Any:
    """An object with a sample in each field. A dataclass's own checks of what fits together do not run."""
    if dataclasses.is_dataclass(kind):
        hints = _hints(kind)
        made = typing.cast(Any, kind).__new__(kind)
        for each in dataclasses.fields(kind):
            object.__setattr__(made, each.name, _sample(hints[each.name], depth))
        return made
    if issubclass(kind, msgspec.Struct):
        hints = _hints(kind)
        return kind(**{name: _sample(hints[name], depth) for name in kind.__struct_fields__})
    if issubclass(kind, str) or (issubclass(kind, BaseException) and kind.__init__ is Exception.__init__):
        return kind("text")
    if issubclass(kind, bytes):
        return kind(bytes(16))
    parameters = inspect.signature(kind).parameters.values()
    hints = typing.get_type_hints(kind if issubclass(kind, tuple) else kind.__init__, localns=NAMES)
    return kind(*[_sample(hints[each.name], depth) for each in parameters if each.kind < each.KEYWORD_ONLY])


def _compares(value: Any) -> bool:
    compare: Any = type(value).__eq__
    return compare is not object.__eq__


def _parts(value: Any) -> Any:
    """The same for equal values, also of classes that compare by identity."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return type(value), [_parts(getattr(value, each.name)) for each in dataclasses.fields(value)]
    if isinstance(value, msgspec.Struct):
        return type(value), [_parts(getattr(value, name)) for name in value.__struct_fields__]
    if isinstance(value, BaseException):
        return type(value), value.args, _parts(value.__getstate__())
    if isinstance(value, dict):
        return [(_parts(key), _parts(each)) for key, each in value.items()]
    if isinstance(value, list | tuple | collections.deque):
        return type(value), [_parts(each) for each in value]
    if isinstance(value, numpy.ndarray):
        return value.tolist()
    return value if _compares(value) else type(value)


@pytest.mark.parametrize("way", WAYS)
def test_values_survive(way: str) -> None:
    kept = 0
    for kind in VALUES:
        try:
            value = _make(kind)
        except _OfOneProcess:
            continue
        again = WAYS[way](value)
        assert _parts(again) == _parts(value), kind
        kept += 1
    assert kept > 500


@pytest.mark.parametrize("way", WAYS)
def test_errors_survive_with_what_they_carry(way: str) -> None:
    for kind in ERRORS:
        error = _sample(kind)
        again = WAYS[way](error)
        assert _parts(again) == _parts(error), kind
        assert str(again) == str(error)


@pytest.mark.parametrize("way", WAYS)
def test_what_readers_get_survives(way: str) -> None:
    batch = ConsumedBatch("topic", "partition", Batch.parse(encode_batch(3, [b"one", b"two"], 5)), 3)
    assert list(WAYS[way](batch)) == list(batch)
    received = Received(Message(b"topic", encode({"a": 1})))
    assert WAYS[way](received).value == received.value == {"a": 1}
    assert WAYS[way](received).value == {"a": 1}  # decoded once
    forwarded = Forwarded(Message(b"topic", encode({"a": 1})))
    assert WAYS[way](forwarded).with_value(2).value == 2


@pytest.mark.process
def test_an_error_reaches_the_owner_of_a_process_pool() -> None:
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        failed = pool.submit(_conflict).exception()
    assert isinstance(failed, OffsetConflict)
    assert (str(failed), failed.next_offset) == ("taken", 7)


def _conflict() -> None:
    raise OffsetConflict("taken", 7)
