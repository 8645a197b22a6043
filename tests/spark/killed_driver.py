"""A streaming query in a process of its own, to be killed: the store and a folder are its arguments."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from chappe.spark.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter


def writer(spark: SparkSession, store: str, folder: Path, **more: str) -> DataStreamWriter:
    """What the killed driver and the one that goes on have in common."""
    options = {"stores": store, "subscribe": "t", "startingOffsets": "earliest"} | more
    frame = spark.readStream.format("chappe").options(**options).load()
    return (
        frame.writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .option("path", str(folder / "out"))
    )


def main(store: str, folder: Path) -> None:
    conf = {"spark.sql.warehouse.dir": str(folder / "warehouse"), "spark.local.dir": str(folder / "local")}
    spark = spark_session("killed", conf=conf)
    # in small steps, so that it is killed in the middle of much
    writer(spark, store, folder, maxRecordsPerTrigger="500").start().awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
