"""A Spark standalone cluster on loopback, for tests: a master and workers, each a process of its own.

Its executors have every package of this Python but chappe, so that what they import of it was shipped to them.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import sys
import time
import zipfile
from collections.abc import Mapping
from importlib.metadata import distribution
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import psutil  # type: ignore[import-untyped, unused-ignore]
import pyspark
from tests.waiting import SPARK_S

from chappe.spark.java import find_java
from chappe.spark.session import worker_python

SPARK: Final = Path(pyspark.__file__).parent
SOURCES: Final = Path(__file__).parents[2] / "src"
PACKAGES: Final = ("chappe", "pyspark_chappe")
BARE: Final = "CHAPPE_TEST_BARE"
_JAVA: Final = ("-Xmx128m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Dspark.master.rest.enabled=false")
# For drivers and executors alike: Spark starts the workers of data sources on both with the driver's Python.
_PYTHON: Final = """#!/bin/sh
[ -z "$CHAPPE_TEST_BARE" ] && exec {python} "$@"
PYTHONPATH="$PYTHONPATH:$CHAPPE_TEST_BARE" exec {python} -S "$@"
"""


class Daemon:
    """The master or a worker, with all that it starts."""

    def __init__(self, name: str, role: str, arguments: list[str], env: Mapping[str, str], folder: Path) -> None:
        self._log = folder / f"{name}.log"
        command = [f"{env['JAVA_HOME']}/bin/java", *_JAVA, "-cp", str(SPARK / "jars" / "*")]
        command += [f"org.apache.spark.deploy.{role}", "--port", "0", "--webui-port", "0", *arguments]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, env=env, cwd=folder, start_new_session=True, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def wait_for(self, pattern: str) -> str:
        """The first group of what it says."""
        deadline = time.monotonic() + SPARK_S
        while (found := re.search(pattern, said := self._log.read_text(errors="replace"))) is None:
            assert self._process.poll() is None, said[-3000:]
            assert time.monotonic() < deadline, said[-3000:]
            time.sleep(0.02)
        return found[1]

    def kill(self) -> None:
        """-9, executors and their Python workers too."""
        kill_tree(self._process)


class Cluster:
    """A master on 127.0.0.1 and a worker of one core on each of ``hosts``."""

    def __init__(self, folder: Path, hosts: tuple[str, ...]) -> None:
        folder.mkdir()
        self._bare = folder / "packages"
        self.python = folder / "python"
        self.python.write_text(_PYTHON.format(python=shlex.quote(worker_python("local"))))
        self.python.chmod(0o755)
        self._env = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK", "PYSPARK"))}
        self._env |= {"JAVA_HOME": str(find_java().home), "SPARK_HOME": str(SPARK), "SPARK_SCALA_VERSION": "2.13"}
        self._env.pop("PYTHONPATH", None)
        self._folder = folder
        self._hosts = hosts
        self._daemons: list[Daemon] = []
        self.workers: dict[str, Daemon] = {}
        self.master = ""

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for each in reversed(self._daemons):
            each.kill()

    def _start(self) -> None:
        self._bare.mkdir()
        for each in _packages():
            (self._bare / each.name).symlink_to(each)
        master = self._daemon("master", "master.Master", ["--host", "127.0.0.1"], {"SPARK_LOCAL_IP": "127.0.0.1"})
        self.master = master.wait_for(r"Starting Spark master at (\S+)")
        for host in self._hosts:
            arguments = ["--host", host, "--cores", "1", "--memory", "1g"]
            arguments += ["--work-dir", str(self._folder / host), self.master]
            env = {"SPARK_LOCAL_IP": host, BARE: str(self._bare)}
            self.workers[host] = self._daemon(host, "worker.Worker", arguments, env)
        for worker in self.workers.values():
            worker.wait_for(r"(Successfully registered with master)")

    def _daemon(self, name: str, role: str, arguments: list[str], env: Mapping[str, str]) -> Daemon:
        made = Daemon(name, role, arguments, {**self._env, **env}, self._folder)
        self._daemons.append(made)
        return made


def _packages() -> list[Path]:
    """All that is installed but chappe, of two of a name the one that Python would take."""
    folders = [Path(each) for each in sys.path if each.endswith("-packages")]
    found = {each.name: each for folder in reversed(folders) for each in folder.iterdir()}
    return [each for each in found.values() if "chappe" not in each.name and each.suffix != ".pth"]


def kill_tree(process: subprocess.Popen[bytes]) -> None:
    """-9 to a process and all that came of it, whatever groups they made."""
    family = []
    with contextlib.suppress(psutil.NoSuchProcess):
        family = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    for each in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.kill()
    process.wait()
    _, alive = psutil.wait_procs(family, SPARK_S)
    assert not alive, alive


def packed(path: Path) -> Path:
    """What the wheel of chappe has in it, as a zip."""
    found = distribution("chappe")
    metadata = found.read_text("METADATA")
    assert metadata is not None
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(f"chappe-{found.version}.dist-info/METADATA", metadata)
        for each in (each for package in PACKAGES for each in sorted((SOURCES / package).rglob("*"))):
            if each.is_file() and "__pycache__" not in each.parts:
                file.write(each, each.relative_to(SOURCES))
    return path
