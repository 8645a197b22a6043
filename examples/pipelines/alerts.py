"""An alert for each value of a metric that lies far from what the metric usually is, into the topic demo.alerts.

What is usual is an average and a spread of all values so far that forget slowly; Spark keeps both for each metric.

    chappe pipeline run examples/pipelines/alerts.py
    chappe consume demo.alerts
"""

# /// chappe
# name = "alerts"
#
# [inputs.measurements]
# topic = "demo.metrics"
# schema = "metric STRING, value DOUBLE, unit STRING"
#
# [output]
# kind = "topic"
# topic = "demo.alerts"
# key = "metric"
# trigger = "1 second"
# ///

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession

SPREADS = 6.0  # this far from the average is an anomaly
VALUES_MIN = 20  # fewer do not say what is usual
FORGET = 0.02  # the weight of a new value
ALERT = "metric STRING, value DOUBLE, usual DOUBLE, spread DOUBLE, at TIMESTAMP"
STATE = "seen INT, average DOUBLE, variance DOUBLE"


def pipeline(spark: SparkSession, measurements: DataFrame) -> DataFrame:
    """What ``chappe pipeline`` calls: inputs come as DataFrames, what is returned goes to the output."""
    known = measurements.where("metric IS NOT NULL AND value IS NOT NULL").select("metric", "value", "timestamp")
    return known.groupBy("metric").applyInPandasWithState(unusual, ALERT, STATE, "append", "NoTimeout")


def unusual(key: tuple[str], batches: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    """The values of one metric that are not usual."""
    import pandas as pd

    seen, average, variance = state.get if state.exists else (0, 0.0, 0.0)
    found = []
    for batch in batches:
        for value, at in batch.sort_values("timestamp")[["value", "timestamp"]].itertuples(index=False):
            spread = math.sqrt(variance)
            if seen >= VALUES_MIN and abs(value - average) > SPREADS * max(spread, 1e-9):
                found.append((key[0], value, average, spread, at))
                continue  # an anomaly must not become usual
            seen += 1
            weight = max(FORGET, 1 / seen)
            variance = (1 - weight) * (variance + weight * (value - average) ** 2)
            average += weight * (value - average)
    state.update((seen, average, variance))
    yield pd.DataFrame(found, columns=["metric", "value", "usual", "spread", "at"])
