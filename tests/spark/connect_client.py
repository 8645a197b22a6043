"""A client of a Spark Connect server: reads topic ``in`` in three ways and copies it to ``out``; prints JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from chappe.spark.session import spark_session

if __name__ == "__main__":
    url, tower, folder = sys.argv[1:]
    options = {"towers": tower, "subscribe": "in"}
    spark = spark_session("client", master=url)
    batch = spark.read.format("chappe").options(**options).load()
    found = {"batch": sorted(bytes(row.value).decode() for row in batch.collect())}
    clause = ", ".join(f"{name} '{value}'" for name, value in options.items())
    spark.sql(f"CREATE TEMPORARY VIEW topic USING chappe OPTIONS ({clause})")
    found["table"] = [row.n for row in spark.sql("SELECT count(*) AS n FROM topic").collect()]
    stream = spark.readStream.format("chappe").options(**options, startingOffsets="earliest").load().select("value")
    writer = stream.writeStream.format("chappe").options(towers=tower, topic="out")
    writer = writer.option("checkpointLocation", str(Path(folder) / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()
    print(json.dumps(found))
