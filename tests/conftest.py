"""What all tests share."""

from __future__ import annotations

import fcntl
import gc
import logging
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import settings
from tests.endpoints import make as make
from tests.sources import COMPILED, skip_compiled
from tests.towers import store as store
from tests.towers import tower as tower
from tests.waiting import Clock, until

SPARK = "tests/spark/"

settings.register_profile("chappe", deadline=None)  # a busy machine is no bug
settings.load_profile("chappe")

# A shell starts background jobs with Ctrl-C ignored, and so would be all that the tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)


class _Failures:
    """Names each failure as it comes: of a run that is ended from outside, its summary is not seen."""

    def __init__(self, config: pytest.Config) -> None:
        self._terminal: Any = config.pluginmanager.get_plugin("terminalreporter")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and self._terminal is not None:
            self._terminal.write_line(f"\n{report.when} failed: {report.nodeid}")


@pytest.hookimpl(trylast=True)  # once the terminal is there
def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # those of workers come to whom they work for
        config.pluginmanager.register(_Failures(config))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest comes first, so that no worker is left alone with it at the end.

    Of what uses Spark that is at first only what one worker has to itself: the others would wait for ``quick_java``.
    Of other processes it is the documentation, whose module takes two minutes alone; of what is pure it is worlds, some
    of whose modules take half a minute.
    """

    def place(item: pytest.Item) -> int:
        spark, process = (item.get_closest_marker(each) is not None for each in ("spark", "process"))
        if spark:
            return 0 if item.nodeid.startswith(SPARK) else 3
        if process:
            return 1 if item.nodeid.startswith("tests/test_docs.py") else 2
        return 4 if item.nodeid.startswith("tests/sim/") else 5

    items.sort(key=place)


def pytest_collection_finish() -> None:
    """Ten thousand tests, and all that they import, are here to stay: no collection of garbage looks through them.

    That takes a quarter of a second, and there is one after each module.
    """
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Workers share a run by modules; all that use the Spark session of the tests are one worker's.

    Not by pytest-xdist's own groups, which 3.8 writes where pytest 9.2 does not look.
    """
    from xdist.scheduler import LoadScopeScheduling

    class ByModule(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return SPARK if nodeid.startswith(SPARK) else nodeid.partition("::")[0]

    return ByModule(config, log)


if COMPILED:

    @pytest.fixture
    def monkeypatch(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
        """Skips the tests that put something else into a compiled module, which keeps its own."""
        put = monkeypatch.setattr

        def put_or_skip(target: Any, *others: Any, **more: Any) -> None:
            holder = target if hasattr(target, "__module__") or isinstance(target, ModuleType) else type(target)
            name = target.rpartition(".")[0] if isinstance(target, str) else _module_of(holder)
            if not (getattr(sys.modules.get(name), "__file__", None) or ".py").endswith(".py"):
                skip_compiled(f"{name} is compiled")
            put(target, *others, **more)

        monkeypatch.setattr = put_or_skip  # type: ignore[method-assign]
        return monkeypatch


def _module_of(holder: Any) -> str:
    return str(holder.__name__ if isinstance(holder, ModuleType) else holder.__module__)


class _Defects(logging.Handler):
    """Defects that endpoints contained, or that stopped them, and wrote into the log."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "defect", False):
            self.found.append(logging.Formatter().format(record))


@pytest.fixture(autouse=True)
def _no_defect_is_hidden(request: pytest.FixtureRequest) -> Iterator[None]:
    """Containment is for users: here a defect fails the test, unless it is what the test is about."""
    handler = _Defects()
    logger = logging.getLogger("chappe")
    before = list(logger.handlers), logger.propagate, logger.level
    logger.addHandler(handler)
    yield
    logger.handlers, logger.propagate, logger.level = before  # a command takes it over, as its process is its own
    if request.node.get_closest_marker("provokes_defects") is None:
        assert not handler.found, handler.found[0]


DESCRIPTORS_MAX = 256  # left open by tests; PySpark's callbacks wait with select, and hang for ever from 1,024 on


@pytest.fixture(scope="module", autouse=True)
def _few_descriptors() -> Iterator[None]:
    """What tests abandon, as a kill would, is gone before the next module: its files and sockets too."""
    yield
    folder = next((each for each in (Path("/proc/self/fd"), Path("/dev/fd")) if each.is_dir()), None)
    if folder is None:
        return

    def few() -> bool:
        gc.collect()
        return len(list(folder.iterdir())) < DESCRIPTORS_MAX

    until(few, "few descriptors")  # what tells of refusals is kept for a while after its socket is closed


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """To be named before what looks at the clock, so that this has ended when the time is right again."""
    return Clock(monkeypatch)


@pytest.fixture(scope="session")
def quick_java(pytestconfig: pytest.Config) -> Iterator[None]:
    """Every Java that is started from here on lives shortly: it compiles quickly, not well, and maps Spark's classes.

    The archive of those classes is made by the first tests that need it, which takes half a minute, and kept among
    pytest's own files for the next ones; it halves the start of each of some twenty drivers.
    """
    from chappe.errors import SparkUnavailable
    from chappe.spark import class_archive
    from chappe.spark.java import find_java

    cache = pytestconfig.cache
    assert cache is not None
    folder = cache.mkdir("spark-classes")
    with pytest.MonkeyPatch.context() as patch:
        quick = f"{os.environ.get('JDK_JAVA_OPTIONS', '')} -XX:TieredStopAtLevel=1".strip()
        with pytest.MonkeyPatch.context() as making:
            making.setenv("JDK_JAVA_OPTIONS", quick)
            making.setattr(class_archive, "cache_dir", lambda: folder)
            try:
                with (folder / "lock").open("w") as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX)  # other workers find what the first one has made
                    made = class_archive.make_archive()
            except SparkUnavailable:  # a Java that cannot; the tests only take longer
                archive = ""
            else:
                archive = class_archive.archive_options(find_java())
                for each in set(made.parent.glob(f"*{made.suffix}")) - {made}:
                    each.unlink()  # of another Java or PySpark, and large
        patch.setenv("JDK_JAVA_OPTIONS", f"{quick} {archive}".strip())
        yield


@pytest.fixture(autouse=True)
def _quick_java_for_spark(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("spark") is not None:
        pytest.importorskip("pyspark")
        request.getfixturevalue("quick_java")
