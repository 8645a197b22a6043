"""The command: ``python -m benchmarks``."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from benchmarks import report
from benchmarks.chain import chain
from benchmarks.chain_state import chain_state
from benchmarks.children import ROOT, ChildFailed
from benchmarks.compressed import compressed
from benchmarks.data_stores import data_stores
from benchmarks.durable import durable
from benchmarks.forwarding import forwarding
from benchmarks.latency import latency
from benchmarks.live import batches, records
from benchmarks.many import many
from benchmarks.maps import maps
from benchmarks.maps_crowd import crowd
from benchmarks.memory import memory
from benchmarks.mesh import mesh
from benchmarks.mesh_versions import mesh_versions
from benchmarks.outcome import Line
from benchmarks.partitions import partitions
from benchmarks.readiness import readiness
from benchmarks.reading import read_topics
from benchmarks.secured import secured, secured_latency
from benchmarks.settings import Settings
from benchmarks.sharded import sharded
from benchmarks.stored import acknowledged, catch_up
from benchmarks.strangers import strangers

PATHS: dict[str, Callable[[Settings], list[Line]]] = {
    "batches": batches,
    "records": records,
    "secured": secured,
    "stored": acknowledged,
    "durable": durable,
    "compressed": compressed,
    "catch-up": catch_up,
    "read-topic": read_topics,
    "forward": forwarding,
    "latency": latency,
    "secured-latency": secured_latency,
    "readiness": readiness,
    "partitions": partitions,
    "memory": memory,
    "mesh": mesh,
    "mesh-versions": mesh_versions,
    "data-stores": data_stores,
    "maps": maps,
    "maps-crowd": crowd,
    "chain": chain,
    "chain-state": chain_state,
    "many": many,
    "sharded": sharded,
    "strangers": strangers,
}
RESULTS = ROOT / "benchmarks" / "RESULTS.md"
DISK_BYTES = 10 << 30  # what a full run may take for a while
QUIET_LOAD = 0.5


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure every path of chappe beside its peers and raw limits. Takes about ten minutes on an "
        "idle machine with two cores; a full run writes benchmarks/RESULTS.md, and a full run of memory its curve.",
    )
    parser.add_argument("--quick", action="store_true", help="few records, one round: does everything work?")
    parser.add_argument("--only", action="append", choices=list(PATHS), metavar="NAME", help=", ".join(PATHS))
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured to FILE")
    parser.add_argument(
        "--peer-python",
        metavar="PYTHON",
        help="an interpreter with rstream, redis[hiredis], nats-py, uvloop and confluent-kafka; else peers are skipped",
    )
    parser.add_argument("--kafka", metavar="DIR", help="an installation of Kafka, which has its jars in DIR/libs")
    parser.add_argument(
        "--directory", default="/var/tmp", metavar="DIR", help="where stores lie meanwhile; a real disk (%(default)s)"
    )
    return parser.parse_args()


def _stop(number: int, frame: object) -> None:
    sys.exit(128 + number)  # unwinds the benchmark, which kills its processes


def main() -> int:
    arguments = _arguments()
    signal.signal(signal.SIGTERM, _stop)
    console = Console()
    watch = report.Watch()
    if not arguments.quick and shutil.disk_usage(arguments.directory).free < DISK_BYTES:
        console.print(f"{arguments.directory} has less than {DISK_BYTES >> 30} GiB left: name another with --directory")
        return 2
    if watch.load > QUIET_LOAD:
        console.print(f"The machine is busy (load {watch.load:.1f}): figures will be lower than they could be.")
    lines: list[Line] = []
    failed = False
    for name in arguments.only or PATHS:
        with tempfile.TemporaryDirectory(prefix="chappe-benchmarks-", dir=arguments.directory) as work:
            console.print(f"{name} ...", highlight=False)
            try:
                lines += PATHS[name](Settings(Path(work), arguments.peer_python, arguments.quick, arguments.kafka))
            except ChildFailed as error:
                failed = True
                console.print(f"{name}: {error}", style="red", highlight=False)
                lines.append(Line(name, "failed", met=False, note=str(error).splitlines()[0]))
    conditions = watch.conditions()
    report.show(console, lines, conditions)
    if arguments.json is not None:
        report.write_json(arguments.json, lines, conditions)
    if not (arguments.quick or arguments.only or failed):
        command = "python -m benchmarks" + (" --peer-python PYTHON" if arguments.peer_python else "")
        RESULTS.write_text(report.markdown(lines, conditions, command))
    return int(failed)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
