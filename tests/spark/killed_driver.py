"""A streaming query in a process of its own, to be killed: stores and folder are its arguments."""

from __future__ import annotations

import sys
from pathlib import Path

from chappe.spark.session import spark_session


def main(store: str, folder: Path, ending: str) -> None:
    conf = {"spark.sql.warehouse.dir": str(folder / "warehouse"), "spark.local.dir": str(folder / "local")}
    spark = spark_session("killed", conf=conf | {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"})
    options = {"stores": store, "subscribe": "t", "startingOffsets": "earliest"}
    if ending == "follow":  # in small steps, so that it is killed in the middle of much
        options["maxRecordsPerTrigger"] = "500"
    frame = spark.readStream.format("chappe").options(**options).load()
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    if ending == "drain":
        writer = writer.trigger(availableNow=True)
    query = writer.start(str(folder / "out"))
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
