"""``chappe --version``: the version, compiled parts and extras."""

from __future__ import annotations

import platform
import re
import sqlite3
import ssl
from collections.abc import Iterator
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from pathlib import Path
from typing import Final

import chappe
from chappe.system.sources import is_pure

_EXTRA: Final = re.compile(  # ``pyspark[connect]<4.4,>=4.3; extra == 'connect'``
    r"""(?P<package>[A-Za-z0-9._-]+)(?:\[(?P<inner>[a-z,]+)\])?[^;]*;.*\bextra\s*==\s*['"](?P<extra>[a-z]+)['"]"""
)


def lines() -> Iterator[str]:
    """Yield the version alone, then lines with details."""
    yield f"chappe {version('chappe')}"
    yield f"{platform.python_implementation()} {platform.python_version()}, {platform.system()} {platform.machine()}"
    yield f"compiled parts: {', '.join(_compiled())}; chappe itself: {itself()}"
    there, missing = _extras()
    if there:
        yield f"extras: {', '.join(there)}"
    if missing:
        yield f"extras that are not installed: {', '.join(missing)}"


def itself() -> str:
    """Name the compiled share of chappe: ``Python alone``, or the number of modules and their packages."""
    if is_pure():
        return "Python alone, since CHAPPE_PURE is set"
    package = Path(chappe.__file__).parent
    made = {each.relative_to(package) for suffix in EXTENSION_SUFFIXES for each in package.rglob(f"*{suffix}")}
    if not made:
        return "Python alone"
    parts = sorted({each.parts[0] if len(each.parts) > 1 else each.name.partition(".")[0] for each in made})
    return f"{len(made)} modules compiled ({', '.join(parts)})"


def _compiled() -> Iterator[str]:
    try:
        import zmq

        yield f"libzmq {zmq.zmq_version()} {'with' if zmq.has('curve') else 'without'} CURVE"
    except ImportError as error:  # of two lines, on some systems
        yield f"no libzmq ({' '.join(str(error).split())})"
    try:
        import crc32c

        yield f"CRC-32C in {'hardware' if crc32c.hardware_based else 'software'}"
    except ImportError as error:
        yield f"no CRC-32C ({' '.join(str(error).split())})"
    yield f"SQLite {sqlite3.sqlite_version}"
    yield ssl.OPENSSL_VERSION.rpartition("  ")[0] or " ".join(ssl.OPENSSL_VERSION.split()[:2])


def _extras() -> tuple[list[str], list[str]]:
    names = sorted({*(metadata("chappe").get_all("Provides-Extra") or ())} - {"all"})
    there = [each for each in names if _is_whole("chappe", each)]
    return there, [each for each in names if each not in there]


def _is_whole(package: str, extra: str) -> bool:
    """True if everything that an extra of a package needs is installed, extras of other packages included."""
    for wanted in requires(package) or ():
        match = _EXTRA.match(wanted)
        if match is None or match["extra"] != extra:
            continue
        try:
            version(match["package"])
        except PackageNotFoundError:
            return False
        if match["inner"] and not all(_is_whole(match["package"], each) for each in match["inner"].split(",")):
            return False
    return True
