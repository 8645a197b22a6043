"""``chappe doctor``: checks of this machine, each with a remedy."""

from __future__ import annotations

import errno
import os
import platform
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final, Literal

import typer
from typer import Argument

from chappe.cli import options
from chappe.cli.console import host_and_ports, show_json
from chappe.cli.members import DIRECTORY
from chappe.cli.units import human_bytes
from chappe.defaults import DISK_RESERVE_BYTES
from chappe.errors import ChappeError

_STYLES: Final = {"ok": "green", "warning": "yellow", "failed": "bold red"}
LIBZMQ_MIN: Final = (4, 3)
DISK_LOW_BYTES: Final = 1 << 30  # below this a store soon refuses writes
SLOW_SYNC_S: Final = 0.05  # a store commits once per sync: slower than this is felt by every flush
SYNCS: Final = 20
SYNC_BYTES: Final = 4096
CLOCK_LOOK_S: Final = 0.2
CLOCK_STEP_S: Final = 0.05  # wall and monotonic clock may differ by this much within CLOCK_LOOK_S
YEARS: Final = (2024, 2100)
CONNECT_S: Final = 1.0
ZMTP_SIGNATURE: Final = 0xFF  # first octet of ZeroMQ's greeting

Status = Literal["ok", "warning", "failed"]


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    status: Status
    found: str
    mend: str = ""


def doctor(
    directory: Annotated[
        Path, Argument(envvar="CHAPPE_STORE_DIRECTORY", metavar="DIRECTORY", help="Directory of the records.")
    ] = DIRECTORY,
    tower: options.Tower = options.TOWER,
    listen: options.Listen = options.LISTEN,
    as_json: options.Json = False,
) -> None:
    """Check versions, ports, Java, disk and clock, and say how to mend what is wrong."""
    from rich.text import Text

    from chappe.cli.screen import People

    failed = False
    console = People(soft_wrap=True)
    for check in all_checks(directory, tower, listen):
        failed = failed or check.status == "failed"
        if as_json:
            show_json(asdict(check))
            continue
        console.print(Text.assemble((f"{check.status:8}", _STYLES[check.status]), f" {check.name:10} {check.found}"))
        if check.mend:
            console.print(Text(f"{'':8} {'':10} to mend: {check.mend}"))
    if failed:
        raise typer.Exit(1)


def all_checks(directory: Path, tower: str, listen: str) -> Iterator[Check]:
    """Run every check, the quick ones first."""
    yield check_python()
    yield check_compiled()
    yield check_zeromq()
    yield check_interface(listen)
    yield from check_ports(tower)
    yield check_clock()
    yield from check_directory(directory)
    yield check_spark()
    yield check_java()


def check_python() -> Check:
    from chappe import __version__

    found = f"Python {platform.python_version()}, chappe {__version__}, {platform.platform(terse=True)}"
    return Check("python", "ok", found)


def check_compiled() -> Check:
    from chappe.cli.version import itself

    return Check("compiled", "ok", itself())


def check_zeromq() -> Check:
    try:
        import zmq
    except ImportError as error:
        return Check("zeromq", "failed", f"pyzmq cannot be imported: {error}", "pip install --force-reinstall pyzmq")
    found = f"libzmq {zmq.zmq_version()}, pyzmq {zmq.pyzmq_version()}"
    if zmq.zmq_version_info()[:2] < LIBZMQ_MIN:
        return Check("zeromq", "failed", found, "pip install --upgrade pyzmq (libzmq 4.3 or newer is needed)")
    return Check("zeromq", "ok", found)


def check_interface(listen: str) -> Check:
    host = listen.partition(":")[0]
    try:
        with socket.socket() as trial:
            trial.bind((host, 0))
    except OSError as error:
        return Check(
            "interface", "failed", f"cannot listen on {listen}: {error.strerror or error}",
            "give --listen (or CHAPPE_LISTEN) an address of this machine, such as 127.0.0.1",
        )  # fmt: skip
    return Check("interface", "ok", f"sockets can listen on {host}")


def check_ports(tower: str) -> Iterator[Check]:
    """Check both ports of each tower: a tower answers there, or could listen there."""
    for each in tower.split(","):
        host, *ports = host_and_ports(each)
        for port in ports:
            yield _check_port(host, port)


def _check_port(host: str, port: int) -> Check:
    name = "port"
    try:
        with socket.create_connection((host, port), CONNECT_S) as link:
            greeting = link.recv(1)
    except (ConnectionRefusedError, TimeoutError):
        return _check_free(host, port)
    except (OSError, OverflowError) as error:
        return Check(name, "failed", f"{host}:{port}: {error}", "correct --tower (or CHAPPE_TOWER)")
    if greeting and greeting[0] == ZMTP_SIGNATURE:
        return Check(name, "ok", f"{host}:{port}: a tower answers")
    return Check(name, "failed", f"{host}:{port}: used by something that is not a tower",
                 "end that program, or give the tower another port: --tower HOST:PORT")  # fmt: skip


def _check_free(host: str, port: int) -> Check:
    try:
        with socket.socket() as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind((host, port))
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            return Check("port", "warning", f"{host}:{port}: no tower answers there", "start it there: chappe up")
        return Check("port", "failed", f"{host}:{port}: {error.strerror or error}",
                     "choose another port: --tower HOST:PORT, 1024 or above")  # fmt: skip
    return Check("port", "ok", f"{host}:{port}: free; no tower runs (start one with: chappe up)")


def check_clock() -> Check:
    """Check that the clock is plausible and steady: timestamps and retention by age depend on it."""
    wall, steady = time.time(), time.monotonic()
    time.sleep(CLOCK_LOOK_S)
    drift = abs((time.time() - wall) - (time.monotonic() - steady))
    now = datetime.now(UTC)
    found = f"{now:%Y-%m-%d %H:%M:%S} UTC"
    if not YEARS[0] <= now.year <= YEARS[1]:
        return Check("clock", "failed", found, "set the clock: timestamps and retention by age depend on it")
    if drift > CLOCK_STEP_S:
        return Check("clock", "warning", f"{found}, moved by {drift:.3f} s within {CLOCK_LOOK_S:g} s",
                     "let one time service alone set the clock")  # fmt: skip
    return Check("clock", "ok", found)


def check_directory(directory: Path) -> Iterator[Check]:
    """Check that the directory of records is writable, with room, on a disk that syncs fast."""
    where = directory
    while not where.exists() and where != where.parent:
        where = where.parent
    try:
        with tempfile.NamedTemporaryFile(dir=where, prefix=".chappe-doctor-") as trial:
            sync_s = _sync_time(trial.fileno())
    except OSError as error:
        yield Check("directory", "failed", f"{directory}: {error.strerror or error}",
                    "choose a directory that you may write to, on a disk with room")  # fmt: skip
        return
    yield Check("directory", "ok", f"{directory} {'is' if where == directory else 'can be made and is'} writable")
    free = shutil.disk_usage(where).free
    mend = "make room, set [retention] in chappe.toml, or choose another disk"
    status: Status = "failed" if free < DISK_RESERVE_BYTES else "warning" if free < DISK_LOW_BYTES else "ok"
    yield Check("disk", status, f"{human_bytes(free)} free", "" if status == "ok" else mend)
    found = f"{sync_s * 1000:.2f} ms for each commit (median of {SYNCS})"
    if sync_s > SLOW_SYNC_S:
        yield Check("sync", "warning", found, "keep the records on a local SSD; network and USB disks are slow at this")
    else:
        yield Check("sync", "ok", found)


def _sync_time(file: int) -> float:
    """Return the median seconds of writing and syncing 4 KiB."""
    from chappe.system.disk import sync_data

    times = []
    for _ in range(SYNCS):
        began = time.perf_counter()
        os.write(file, bytes(SYNC_BYTES))
        sync_data(file)
        times.append(time.perf_counter() - began)
    return sorted(times)[SYNCS // 2]


def check_spark() -> Check:
    from importlib.metadata import PackageNotFoundError, version

    found, missing = [], []
    for package in ("pyspark", "pyarrow", "pandas"):
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            missing.append(package)
    if missing:
        return Check("spark", "warning", f"{', '.join(missing)} not installed", "pip install 'chappe[spark]'")
    return Check("spark", "ok", ", ".join(found))


def check_java() -> Check:
    try:
        from chappe.spark.java import ensure_java

        java = ensure_java()
        return Check("java", "ok", f"Java {java.major} from {java.source}: {java.home}")
    except ImportError:
        return Check("java", "warning", "not looked for: Spark is not installed", "pip install 'chappe[spark]'")
    except ChappeError as error:
        return Check("java", "warning", str(error), "pip install 'chappe[spark]' brings a Java, or install Java 17")
