"""States of this user's running pipelines: one small JSON file each in the user's state directory.

A file counts only while its process lives: the process id is checked together with the time at which the process
started, since ids are given out again. The next reader removes the file of a process that is gone.
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import msgspec

from chappe.errors import ChappeError
from chappe.observing.snapshot import ObservedQuery
from chappe.system.disk import PRIVATE_DIRECTORY, FileLock, keep_private
from chappe.system.places import users

STATE_BYTES_MAX: Final = 1 << 20
SAME_START_S: Final = 2.0  # start times are told by a clock that may be set
POLL_S: Final = 0.1
ERROR_MAX: Final = 2_000  # characters of an error that are kept
FAILURES_MAX: Final = 200


class PipelineRunning(ChappeError):
    pass


class PipelineNotRunning(ChappeError):
    pass


@dataclass(slots=True)
class PipelineState:
    """The state of a running pipeline. ``started`` is when the process was started, ``began`` and ``updated`` are ISO
    8601 in UTC. ``page`` is the address of Spark's own page, if it has one.
    """

    name: str
    file: str
    pid: int
    started: float
    began: str
    updated: str = ""
    stage: str = "starting"
    master: str = ""
    metrics: str = ""
    log: str = ""
    page: str = ""
    queries: list[ObservedQuery] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Failure:
    """The error that a pipeline ended with, and when, as ISO 8601 in UTC."""

    name: str
    file: str
    error: str
    at: str
    log: str = ""


class States:
    """The state files in ``directory``; the user's own unless another is given."""

    def __init__(self, directory: Path | None = None) -> None:
        self.directory = directory or users("state") / "pipelines"

    @contextmanager
    def claim(self, state: PipelineState) -> Iterator[None]:
        """Be the one running pipeline of this name in the context. Raises PipelineRunning: there is one already."""
        self.directory.mkdir(PRIVATE_DIRECTORY, parents=True, exist_ok=True)
        keep_private(self.directory)
        with self._locked():
            other = self._load(self._path(state.name))
            if other is not None:
                raise PipelineRunning(
                    f"pipeline {state.name} runs already (process {other.pid}, {other.file}); "
                    f"end it with: chappe pipeline stop {state.name}"
                )
            self.write(state)
        self._failure(state.name).unlink(missing_ok=True)
        try:
            yield
        finally:
            self._path(state.name).unlink(missing_ok=True)

    def fail(self, failure: Failure) -> None:
        """Remember what a pipeline ended with, until it is started again."""
        short = replace(failure, error=" ".join(failure.error.split())[:ERROR_MAX])
        self._replace(self._failure(failure.name), short)

    def failures(self) -> list[Failure]:
        """Return the errors of pipelines that have not been started since, by name; the first ``FAILURES_MAX``."""
        found = []
        for path in sorted(self.directory.glob("*.failed"))[:FAILURES_MAX]:
            with suppress(OSError, ValueError, RecursionError, msgspec.ValidationError):
                if path.stat().st_size <= STATE_BYTES_MAX:
                    found.append(msgspec.convert(json.loads(path.read_bytes()), Failure))
        return found

    def write(self, state: PipelineState) -> None:
        """Replace a pipeline's file in one step: readers see the old one or the new one."""
        self._replace(self._path(state.name), state)

    def _replace(self, path: Path, content: PipelineState | Failure) -> None:
        fd, name = tempfile.mkstemp(dir=self.directory, prefix=".", suffix=".tmp")
        try:
            with os.fdopen(fd, "w", encoding="utf-8") as file:
                json.dump(msgspec.to_builtins(content), file)
            os.replace(name, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(name)
            raise

    def running(self) -> list[PipelineState]:
        if not self.directory.is_dir():
            return []
        with self._locked():
            found = [self._load(path) for path in sorted(self.directory.glob("*.json"))]
        return [each for each in found if each is not None]

    def find(self, name: str) -> PipelineState:
        running = self.running()
        for each in running:
            if each.name == name:
                return each
        names = ", ".join(each.name for each in running)
        raise PipelineNotRunning(f"no pipeline {name} runs here" + (f"; there are {names}" if names else ""))

    def stop(self, name: str, timeout_s: float) -> bool:
        """Ask a pipeline to end after its batch; True if it did in time. Raises PipelineNotRunning: none runs."""
        state = self.find(name)
        os.kill(state.pid, signal.SIGTERM)
        deadline = time.monotonic() + timeout_s
        while _alive(state.pid, state.started):
            if time.monotonic() >= deadline:
                return False
            time.sleep(POLL_S)
        return True

    def log_path(self, name: str) -> Path:
        return self.directory / f"{name}.log"

    def _path(self, name: str) -> Path:
        return self.directory / f"{name}.json"

    def _failure(self, name: str) -> Path:
        return self.directory / f"{name}.failed"

    def _locked(self) -> FileLock:
        return FileLock(self.directory / "lock", wait=True)

    def _load(self, path: Path) -> PipelineState | None:
        """Return a file's state if its process lives; else the file is removed."""
        try:
            if path.stat().st_size <= STATE_BYTES_MAX:
                state = msgspec.convert(json.loads(path.read_bytes()), PipelineState)
                if _alive(state.pid, state.started):
                    return state
        except FileNotFoundError:
            return None
        except (OSError, ValueError, OverflowError, RecursionError, msgspec.ValidationError):
            pass
        path.unlink(missing_ok=True)
        return None


def started_at(pid: int) -> float | None:
    """Return the start of a process, in seconds since 1970; None if there is none."""
    import psutil  # type: ignore[import-untyped, unused-ignore]

    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else float(process.create_time())
    except psutil.Error:
        return None


def _alive(pid: int, started: float) -> bool:
    at = started_at(pid) if pid > 0 else None
    return at is not None and abs(at - started) < SAME_START_S
