"""Pipelines as Spark sees them: what fits is prepared, what does not is told with its line; and queries that run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as parquet
import pytest
from tests.spark.fake_store import FakeStore
from tests.waiting import SPARK_S

from chappe.log.batch import encode_batch
from chappe.observing.snapshot import ObservedQuery
from chappe.spark import table_rows
from chappe.spark.pipeline.frames import prepare
from chappe.spark.pipeline.model import PipelineInvalid
from chappe.spark.pipeline.reading import read_pipeline
from chappe.spark.pipeline.running import PipelineFailed, RunningPipeline

pytest.importorskip("pyspark")
pytestmark = pytest.mark.spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NOWHERE = "127.0.0.1:9"

TEXT = """\
sql = '''
SELECT metric, value AS amount FROM a
'''
[inputs.a]
topic = "t"
schema = "metric STRING, value DOUBLE, timestamp STRING"
watermark = "record_timestamp 10 seconds"
[output]
kind = "topic"
topic = "out"
"""


def prepared(spark: SparkSession, path: Path) -> list[DataFrame]:
    return [each.records for each in prepare(spark, read_pipeline(path), NOWHERE)]


def written(tmp_path: Path, text: str, name: str = "p.toml") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_columns_become_a_json_value(spark: SparkSession, tmp_path: Path) -> None:
    (frame,) = prepared(spark, written(tmp_path, TEXT + 'key = "amount"'))
    assert frame.dtypes == [("value", "string"), ("key", "string")]
    assert frame.isStreaming
    assert spark.table("a").dtypes == [
        ("metric", "string"),
        ("value", "double"),
        ("timestamp", "string"),
        ("topic", "string"),
        ("partition", "string"),
        ("offset", "bigint"),
        ("record_timestamp", "timestamp"),
        ("key", "string"),
    ]


@pytest.mark.parametrize(
    ("query", "output", "columns"),
    [
        ("SELECT value, key FROM a", 'topic = "out"', ["value", "key"]),
        ("SELECT value, metric FROM a", 'topic = "out"\nkey = "metric"', ["value", "key"]),
        ("SELECT metric, 'x' AS topic FROM a", "", ["value", "topic"]),
        ("SELECT metric, a.value FROM a", 'topic = "out"', ["value"]),
        ("WITH b AS (SELECT * FROM a) SELECT metric FROM b -- end;", 'topic = "out"', ["value"]),
        ("SELECT metric, 'x' AS topic FROM a;", 'topic = "out"', ["value"]),
    ],
)
def test_records_of_a_topic(spark: SparkSession, tmp_path: Path, query: str, output: str, columns: list[str]) -> None:
    text = TEXT.replace(
        "SELECT metric, value AS amount FROM a", query.replace("value,", "to_json(struct(*)) AS value,")
    )
    (frame,) = prepared(spark, written(tmp_path, text.replace('topic = "out"', output)))
    assert frame.columns == columns


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("metric,", "\nmetrik,", "line 3: A column, variable, or function parameter with name `metrik` cannot be"),
        ("SELECT metric", "SELEC metric", "line 2: Syntax error at or near"),
        ("SELECT metric, value AS amount FROM a", "DROP VIEW a", "line 2: Syntax error at or near"),
        ("FROM a", "FROM b", "line 2: The table or view `b` cannot be found"),
        ("DOUBLE", "DUBLE", "line 6: `schema` of input a: "),
        ("metric STRING, value DOUBLE, timestamp STRING", "DOUBLE", "line 6: `schema` of input a: it is one type"),
        (
            "record_timestamp 10",
            "timestamp 10",
            "`watermark` of input a: column `timestamp` is string, and no timestamp",
        ),
        (
            "record_timestamp 10",
            "at 10",
            "line 7: `watermark` of input a: there is no column `at`; take record_timestamp",
        ),
        ('topic = "out"', 'topic = "out"\nkey = "id"', "line 8: `key` names id, and there are only metric, amount"),
        ("value AS amount", "value AS metric", "line 8: query p has two columns named `metric`; give one another name"),
        ("SELECT metric, value AS amount FROM a", "SELECT 1 AS x", "line 8: query p reads no input of the pipeline"),
        ("value AS amount", "'' AS value", "column `metric` has no place in a record"),
        ('\ntopic = "out"', "", "nothing says which topic to write to"),
        (
            "value AS amount FROM a",
            "count(*) AS n FROM a GROUP BY metric",
            "append. This output mode is not supported for streaming aggregations without watermark",
        ),
    ],
)
def test_what_does_not_fit_is_told(spark: SparkSession, tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in TEXT
    with pytest.raises(PipelineInvalid) as caught:
        prepared(spark, written(tmp_path, TEXT.replace(old, new)))
    (problem,) = map(str, caught.value.problems)
    assert said in problem
    assert "\n" not in problem


PYTHON = """\
# /// chappe
# [inputs.a]
# topic = "t"
# [output]
# kind = "console"
# ///
def pipeline(spark, a):
    return a.select("topic")
"""


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return 3", "function `pipeline` returns a DataFrame, not int"),
        ("return {'x': a}", "function `pipeline` returns a DataFrame, not a dict of x"),
        ("return a.select('nothing')", "line 8: A column, variable, or function parameter with name `nothing`"),
        ("raise ValueError('no')", "line 8: ValueError: no"),
        ("import nothing_there", "line 8: ModuleNotFoundError: No module named 'nothing_there'"),
    ],
)
def test_what_is_wrong_with_a_function_is_told(spark: SparkSession, tmp_path: Path, body: str, said: str) -> None:
    with pytest.raises(PipelineInvalid) as caught:
        prepared(spark, written(tmp_path, PYTHON.replace('return a.select("topic")', body), "p.py"))
    assert said in str(caught.value)


RUNNABLE = """\
sql = "SELECT metric, sum(value) AS total FROM a GROUP BY window(timestamp, '10 seconds'), metric"
[inputs.a]
topic = "t"
schema = "metric STRING, value DOUBLE"
watermark = "timestamp 0 seconds"
[output]
kind = "parquet"
path = "out"
trigger = "available-now"
"""


def ended(running: RunningPipeline) -> RunningPipeline:
    running.join(SPARK_S)
    assert not running.alive
    return running


def put(store: FakeStore, second: int, *values: float) -> None:
    raw = [json.dumps({"metric": "m", "value": value}).encode() for value in values]
    store.put("t", "p", raw, timestamp=second * 1_000_000)


def test_a_run_goes_on_where_the_last_one_ended(spark: SparkSession, tmp_path: Path, store: FakeStore) -> None:
    path = written(tmp_path, f'stores = "{store.endpoint}"\n' + RUNNABLE)
    put(store, 1, 1.0, 2.0)
    put(store, 11, 4.0)
    first = ended(RunningPipeline(read_pipeline(path), NOWHERE))
    assert first.error is None
    put(store, 12, 8.0)
    put(store, 21, 16.0)
    second = ended(RunningPipeline(read_pipeline(path), NOWHERE))
    assert second.error is None
    assert sorted(parquet.read_table(tmp_path / "out").column("total").to_pylist()) == [3.0, 12.0]
    (numbers,) = second.numbers
    assert numbers.rows == 2
    assert numbers.lag_records == 0
    assert [each.topic for each in numbers.lag] == ["t"]
    assert numbers.state_rows == 1
    assert isinstance(second.events.get_nowait(), ObservedQuery)

    changed = path.read_text().replace("metric, sum", "sum").replace(', metric"', '"')
    path.write_text(changed)
    put(store, 31, 32.0)
    third = ended(RunningPipeline(read_pipeline(path), NOWHERE))
    assert isinstance(third.error, PipelineFailed)
    assert "does not fit its checkpoint" in str(third.error)
    assert "\n" not in str(third.error)


def test_parquet_has_a_directory_for_each_value(spark: SparkSession, tmp_path: Path, store: FakeStore) -> None:
    put(store, 1, 1.0, 2.0)
    put(store, 21, 4.0)
    text = RUNNABLE.replace("[output]", "[output]\noptions = {PartitionBy = 'metric', compression = 'gzip'}")
    path = written(tmp_path, f'stores = "{store.endpoint}"\n' + text)
    assert ended(RunningPipeline(read_pipeline(path), NOWHERE)).error is None
    (file,) = (tmp_path / "out" / "metric=m").glob("*.gz.parquet")
    assert parquet.ParquetFile(file).read().column_names == ["total"]
    for columns, said in (
        ("metrik", "`partitionBy` names metrik, and there are only"),
        ("metric,total", "all columns"),
    ):
        wrong = written(tmp_path, text.replace("'metric'", f"'{columns}'"))
        with pytest.raises(PipelineInvalid, match=said):
            prepare(spark, read_pipeline(wrong), NOWHERE)


def test_a_topic_that_is_a_table_is_joined_by_its_key(spark: SparkSession, tmp_path: Path, store: FakeStore) -> None:
    people = spark.createDataFrame([("ann", 1, "red"), ("bob", 2, "blue")], "name string, number int, team string")
    for topic, key in (("one", ["name"]), ("two", ["name", "number"])):
        for row in table_rows(people, key).collect():
            store.put_raw(topic, "p", encode_batch(store.next.get((topic, "p"), 0), [row.value], 0, keys=[row.key]))
    put(store, 1, 1.0)
    text = """
sql = "SELECT a.name, a.number, a.team, b.team AS other, b.key FROM a JOIN b ON a.name = b.name"
[inputs.a]
topic = "one"
schema = "name STRING, number INT, team STRING"
key = "name"
[inputs.b]
topic = "two"
schema = "team STRING, name STRING, number INT"
key = ["name", "number"]
[output]
kind = "parquet"
path = "out"
trigger = "available-now"
"""
    path = written(tmp_path, f'stores = "{store.endpoint}"\n' + text)
    assert ended(RunningPipeline(read_pipeline(path), NOWHERE)).error is None
    found = sorted(tuple(row.values()) for row in parquet.read_table(tmp_path / "out").to_pylist())
    assert found == [
        ("ann", 1, "red", "red", '{"name":"ann","number":1}'),
        ("bob", 2, "blue", "blue", '{"name":"bob","number":2}'),
    ]


def test_a_topic_is_asked_only_for_what_the_query_needs(spark: SparkSession, tmp_path: Path, store: FakeStore) -> None:
    counting = RUNNABLE.replace("metric, sum(value) AS total", "count(*) AS n").replace(", metric", "")
    path = written(tmp_path, f'stores = "{store.endpoint}"\n' + counting)
    put(store, 1, 1.0, 2.0)
    put(store, 21, 4.0)
    assert ended(RunningPipeline(read_pipeline(path), NOWHERE)).error is None
    assert {each.bare for each in store.reads} == {True}
