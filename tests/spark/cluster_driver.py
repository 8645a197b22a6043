"""A driver on a cluster, in a process of its own: reads topic ``in``, and copies it to topic ``out``.

Its one argument is JSON: master, towers, folder, and the host whose executor stops in the middle of a batch, to be
killed there. What it finds goes to files in the folder.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chappe.spark.session import spark_session

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

# What runs in the executors is pickled as it is: they do not have this module.
if __name__ == "__main__":

    def here(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The host, and where its chappe lies."""
        import pyarrow

        import chappe

        for _ in batches:
            pass
        place = os.path.abspath(chappe.__file__)
        yield pyarrow.RecordBatch.from_pydict({"host": [os.environ["SPARK_LOCAL_IP"]], "place": [place]})

    def stopping(batches: Iterator[pa.RecordBatch], victim: str, mark: str) -> Iterator[pa.RecordBatch]:
        """All rows; but on one host the task never ends."""
        yield from batches
        if os.environ["SPARK_LOCAL_IP"] == victim:
            open(mark, "w").close()
            while True:
                time.sleep(1)


def look(spark: SparkSession, folder: Path) -> None:
    rows = spark.range(0, 4, 1, 4).mapInArrow(here, "host string, place string").collect()
    (folder / "places.json").write_text(json.dumps(sorted({(row.host, row.place) for row in rows})))


def read(spark: SparkSession, given: dict[str, Any]) -> DataFrame:
    return spark.read.format("chappe").options(towers=given["towers"], subscribe="in", columns="value").load()


def copy(spark: SparkSession, given: dict[str, Any]) -> None:
    folder = Path(given["folder"])
    reader = spark.readStream.format("chappe").options(towers=given["towers"], subscribe="in", columns="value")
    rows = reader.options(startingOffsets="earliest", maxRecordsPerTrigger=6_000, minPartitions=2).load()
    stop = partial(stopping, victim=given["victim"], mark=str(folder / "stopped"))
    writer = rows.repartition(2).mapInArrow(stop, rows.schema).writeStream.format("chappe")
    writer = writer.options(towers=given["towers"], topic="out", checkpointLocation=str(folder / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()


def main(given: dict[str, Any]) -> None:
    folder = Path(given["folder"])
    spark = spark_session("cluster", conf=given["conf"], master=given["master"])
    look(spark, folder)
    values = [bytes(row.value).decode() for row in read(spark, given).collect()]
    (folder / "values.json").write_text(json.dumps(values))
    copy(spark, given)
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
