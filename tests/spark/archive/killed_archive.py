"""An archive job in a process of its own that kills itself: store, directory, moment and number are its arguments."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from chappe.data.topic import Filter
from chappe.spark.archive import job as job_module
from chappe.spark.archive.job import ArchiveJob
from chappe.spark.archive.manifest import ArchiveWriter
from chappe.spark.session import spark_session

MOMENTS = ("staged", "committed", "renamed")


def die() -> None:
    os.killpg(os.getpgrp(), signal.SIGKILL)  # Java and its Python workers too


def main(store: str, directory: Path, moment: str, number: int) -> None:
    """Die at a moment of the ``number``-th commit."""
    calls = 0

    def counted(name: str) -> None:
        nonlocal calls
        calls += name == moment
        if name == moment and calls == number:
            die()

    settle, plan = ArchiveWriter._settle, job_module.plan_files
    replace = os.replace

    def planned(*arguments: Any) -> Any:
        counted("staged")
        return plan(*arguments)

    def settled(self: ArchiveWriter) -> None:
        if self.manifest.version:
            counted("committed")
        settle(self)

    def renamed(source: Any, target: Any) -> None:
        replace(source, target)
        if str(target).endswith(".parquet"):
            counted("renamed")

    job_module.plan_files = planned  # type: ignore[assignment]
    ArchiveWriter._settle = settled  # type: ignore[method-assign]
    os.replace = renamed  # type: ignore[assignment]
    conf = {"spark.sql.shuffle.partitions": "1"}
    spark = spark_session("killed", conf=conf, master="local[2]")
    with ArchiveWriter(directory) as opened:
        ArchiveJob(spark, opened, Filter.parse("t"), stores=(store,)).run()
    spark.stop()


if __name__ == "__main__":
    job_module.BATCH_BYTES = 8_000  # type: ignore[misc]  # many small batches
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
