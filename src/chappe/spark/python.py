"""The Python that Spark starts its helpers with on this machine.

Spark puts its own sources before the installed ones, packed in a zip, and Python compiles what comes from a zip anew in
each process: 0.7 s of processor time whenever a query starts, or the first worker of a kind. A script in between takes
the zips out of the path where PySpark is installed beside them.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Final

from chappe.spark.java import cache_dir

_SCRIPT: Final = """#!/bin/sh
kept=
old=$IFS; IFS=:
for each in $PYTHONPATH; do
  case $each in */pyspark.zip|*/py4j-*.zip) ;; *) kept=${{kept:+$kept:}}$each ;; esac
done
IFS=$old
PYTHONPATH=$kept
export PYTHONPATH
exec {python} "$@"
"""


def worker_python(master: str) -> str:
    """This Python behind such a script, for a session on this machine; elsewhere just this Python."""
    if os.name != "posix" or not (master == "local" or master.startswith("local[")):
        return sys.executable
    text = _SCRIPT.format(python=shlex.quote(sys.executable))
    path = cache_dir() / "python" / hashlib.sha256(text.encode()).hexdigest()[:16] / "python"
    try:
        if not os.access(path, os.X_OK):
            _write(path, text)
    except OSError:  # no place to keep it
        return sys.executable
    return str(path)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, made = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    os.chmod(made, 0o700)
    os.replace(made, path)  # whole or not at all: another session may start just now
