"""The work of workers, a Python function or a program, and the messages between them and their reader.

Nothing is unpickled. The process that calls a function gets the function's name, and imports it. Records come as
MessagePack, each block after its length; what it says are frames of a kind, a length, and a body. A program gets each
record as a line on standard input, and writes the line ``ok`` to standard output when that is done.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import shutil
import struct
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Literal, Protocol, TypeAlias

import msgspec

from chappe.api.log.lines import as_json, as_length, as_raw
from chappe.errors import UsageError
from chappe.log.batch import Headers, Record
from chappe.subscribers.shares import Portion

TOLD: Final = struct.Struct(">cI")  # kind, and length of what follows
READY: Final = b"r"  # nothing: it has imported the function
DONE: Final = b"d"  # a number: so many more are done
FAILED: Final = b"f"  # a text: what the function raised; and the process ends
UNFIT: Final = b"u"  # a text: why no such process can call the function
LENGTH: Final = struct.Struct(">I")
COUNT: Final = struct.Struct(">I")
_SHORT: Final = ((READY, 0), (DONE, COUNT.size))  # kinds and lengths
TEXT_MAX: Final = 1 << 16  # of what was raised
LINE_MAX: Final = 4096  # of a program
LINE_SHOWN: Final = 60
OK: Final = b"ok"
MAIN: Final = "__chappe_main__"  # the file that was started, as a module of a worker: not ``__main__``
inside = False  # True in a process that is a worker

Function: TypeAlias = Callable[[Record], object] | str | Sequence[str]
Form = Literal["json", "raw", "length"]
FORMS: Final[dict[str, Callable[[Record], bytes]]] = {"json": as_json, "raw": as_raw, "length": as_length}


class WorkRow(msgspec.Struct, array_like=True, frozen=True, gc=False):
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class WorkRows(msgspec.Struct, array_like=True, frozen=True):
    """Neighbours of one partition; with ``careful`` each is to be told as done by itself."""

    topic: bytes
    partition: bytes
    careful: bool
    rows: list[WorkRow]


_pack: Final = msgspec.msgpack.Encoder().encode


class Misbehaved(Exception):
    """A worker said something that ends it.

    Args:
        text: Why, as the end of a sentence.
        done: How many more records were done before.
        hopeless: The next one would say the same.
    """

    def __init__(self, text: str, done: int = 0, *, hopeless: bool = False) -> None:
        super().__init__(text)
        self.done = done
        self.hopeless = hopeless


class Ear(Protocol):
    """Reads what one worker says. ``ready``: it has started, as far as anybody can tell."""

    ready: bool

    def hear(self, data: bytes) -> int:
        """Return the number of further records done. Raises Misbehaved, also with the exception of a function."""


class Work(Protocol):
    def command(self, out: int) -> list[str]:
        """Return the command to start; ``out`` is the descriptor that it may write to instead of standard output."""

    @property
    def own_pipe(self) -> bool:
        """True if it tells by a pipe of its own, and standard output is the user's."""

    def hello(self) -> bytes: ...

    def pack(self, portion: Portion) -> bytes: ...

    def ear(self) -> Ear: ...


class _Frames:
    def __init__(self) -> None:
        self.ready = False
        self._data = b""

    def hear(self, data: bytes) -> int:
        self._data += data
        done = 0
        while len(self._data) >= TOLD.size:
            kind, size = TOLD.unpack_from(self._data)
            if (kind, size) not in _SHORT and (kind not in (FAILED, UNFIT) or size > TEXT_MAX):
                raise Misbehaved(f"it wrote {self._data[:20]!r} where only chappe writes", done, hopeless=True)
            if len(self._data) < TOLD.size + size:
                break
            body, self._data = self._data[TOLD.size : TOLD.size + size], self._data[TOLD.size + size :]
            if kind == READY:
                self.ready = True
                continue
            if kind != DONE:
                raise Misbehaved(body.decode("utf-8", "backslashreplace"), done, hopeless=kind == UNFIT)
            done += COUNT.unpack(body)[0]
        return done


class _Lines:
    def __init__(self) -> None:
        self.ready = True  # it does not say
        self._data = b""

    def hear(self, data: bytes) -> int:
        """Nothing in front of a wrong line counts: nobody knows whom to believe."""
        *lines, self._data = (self._data + data).split(b"\n")
        for line in (*lines, *([self._data] if len(self._data) > LINE_MAX else ())):
            if line.rstrip(b"\r") != OK:
                shown = line[:LINE_SHOWN].decode("utf-8", "backslashreplace")
                raise Misbehaved(
                    f"it wrote {shown!r} to standard output, where only 'ok' is expected, a line for each record; what "
                    "people are to read goes to standard error",
                    hopeless=True,
                )
        return len(lines)


@dataclass(frozen=True, slots=True)
class FunctionWork:
    """Workers that call a function with each record; ``main``: the file of ``module``, if that is the program."""

    module: str
    name: str
    main: str | None = None
    own_pipe: bool = True

    def command(self, out: int) -> list[str]:
        return [sys.executable, "-P", "-m", "chappe.subscribers.function_worker", str(out)]

    def hello(self) -> bytes:
        raw = json.dumps({"path": sys.path, "module": self.module, "name": self.name, "main": self.main}).encode()
        return LENGTH.pack(len(raw)) + raw

    def pack(self, portion: Portion) -> bytes:
        first = portion.records[0]
        names = (first.topic.encode("utf-8", "surrogateescape"), first.partition.encode("utf-8", "surrogateescape"))
        rows = [(each.offset, each.timestamp, each.key, each.value, each.headers) for each in portion.records]
        raw = _pack((*names, portion.careful, rows))
        return LENGTH.pack(len(raw)) + raw

    def ear(self) -> Ear:
        return _Frames()


@dataclass(frozen=True, slots=True)
class ProgramWork:
    """Workers that run a program with its arguments, which gets each record in this form."""

    program: tuple[str, ...]
    form: Form = "json"
    own_pipe: bool = False

    def command(self, out: int) -> list[str]:
        return list(self.program)

    def hello(self) -> bytes:
        return b""

    def pack(self, portion: Portion) -> bytes:
        return b"".join(map(FORMS[self.form], portion.records))

    def ear(self) -> Ear:
        return _Lines()


def take_pipes() -> tuple[int, int]:
    """Take the pipes that a process of a reader was started with: the one to tell on, and its input.

    Standard input is empty from then on: what a user's function reads is not meant for us.
    """
    out = int(sys.argv[1])
    os.set_inheritable(out, False)
    source = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return out, source


def work_of(
    function: Callable[[Record], object] | str | Sequence[str] | FunctionWork, form: Form = "json"
) -> FunctionWork | ProgramWork:
    """Return the work that a user asks for. Raises UsageError: not importable by workers, or no program."""
    if isinstance(function, FunctionWork):  # of a reader, to whom the one that started it has told it
        return function
    if isinstance(function, str):
        module, colon, name = function.partition(":")
        if not (colon and module and name):
            raise UsageError(f"a function is named as MODULE:NAME, not {function!r}")
        return _checked(FunctionWork(module, name), None)
    if callable(function):
        return _checked(_named(function), function)
    if not function or not all(isinstance(each, str) for each in function):
        raise UsageError("a program is a list of texts: its name and its arguments")
    if form not in FORMS:
        raise UsageError(f"a program gets records as {', '.join(FORMS)}, not as {form!r}")
    if shutil.which(function[0]) is None:
        raise UsageError(f"there is no program {function[0]!r}, or it cannot be executed")
    return ProgramWork(tuple(function), form)


def _named(function: Callable[[Record], object]) -> FunctionWork:
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or "<" in name:
        raise UsageError(f"workers import their function by its name: {function!r} has none; define it in a module")
    if module != "__main__":
        return FunctionWork(module, name)
    main = sys.modules["__main__"]
    if main.__spec__ is not None:  # python -m
        return FunctionWork(main.__spec__.name, name)
    file = getattr(main, "__file__", None)
    if file is None or not Path(file).is_file():
        raise UsageError(f"workers import their function, and nobody can import {name}: define it in a file")
    return FunctionWork(MAIN, name, str(Path(file).absolute()))


def _checked(named: FunctionWork, function: Callable[[Record], object] | None) -> FunctionWork:
    """Raise UsageError if a worker would find something else."""
    if named.main is None and (function is None or function.__module__ != "__main__"):
        found = find(named.module, named.name, None)
        if not callable(found) or (function is not None and found is not function):
            raise UsageError(f"workers import {named.module}:{named.name}, and that is not the function that was given")
    return named


def find(module: str, name: str, main: str | None) -> Any:
    try:
        found: Any = importlib.import_module(module) if main is None else _main_module(main)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, OSError) as error:
        raise UsageError(f"{module}:{name} cannot be imported: {error}") from error
    return found


def _main_module(file: str) -> ModuleType:
    """Return the program that was started, as a module: what stands behind ``if __name__ == "__main__"`` is not run."""
    spec = importlib.util.spec_from_file_location(MAIN, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is not a Python file")
    made = importlib.util.module_from_spec(spec)
    sys.modules[MAIN] = made
    spec.loader.exec_module(made)
    return made
