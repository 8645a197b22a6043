"""A Spark Connect server in a process of its own: prints its port, and ends with its standard input."""

from __future__ import annotations

import sys
from typing import Any

from chappe.spark.session import spark_session

CONF = {
    "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.grpc.binding.port": "0",
    "spark.sql.shuffle.partitions": "2",
}

if __name__ == "__main__":
    spark: Any = spark_session("connect", conf=CONF, master="local[2]")
    service = getattr(spark._jvm.org.apache.spark.sql.connect.service, "SparkConnectService$")
    print(getattr(service, "MODULE$").localPort(), flush=True)
    sys.stdin.read()
    spark.stop()
