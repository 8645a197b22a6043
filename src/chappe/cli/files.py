"""Files of commands that dump and load: read twice where that is needed, written whole or not at all."""

from __future__ import annotations

import errno
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO


@contextmanager
def readable_twice(file: str) -> Iterator[IO[bytes]]:
    """Open a file that can be read twice; a pipe's content is copied to a temporary file."""
    source = sys.stdin.buffer if file == "-" else open(file, "rb")  # noqa: SIM115  # closed below
    with source:
        if source.seekable():
            yield source
            return
        with tempfile.TemporaryFile() as kept:
            shutil.copyfileobj(source, kept)
            kept.seek(0)
            yield kept


@contextmanager
def written(file: str) -> Iterator[IO[bytes]]:
    """Open a file to replace it whole; on any error the old content stays."""
    if file == "-" or (Path(file).exists() and not Path(file).is_file()):  # such as a pipe
        with open(sys.stdout.fileno() if file == "-" else file, "wb", closefd=file != "-") as out:
            yield out
        return
    temporary = Path(f"{file}.new")
    try:
        with open(temporary, "wb") as out:
            yield out
            out.flush()
            os.fsync(out.fileno())
        temporary.replace(file)
    except BaseException as problem:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(problem, OSError) and problem.filename in (None, str(temporary)):
            raise OSError(problem.errno or errno.EIO, problem.strerror or str(problem), file) from None
        raise
