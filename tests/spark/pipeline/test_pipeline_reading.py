"""A pipeline's file becomes the model, or a list of sentences with lines; without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from chappe.errors import UsageError
from chappe.spark.pipeline.frames import sink_options
from chappe.spark.pipeline.model import PipelineInvalid, Sql, Trigger, Watermark, duration_ms
from chappe.spark.pipeline.reading import read_pipeline, trigger

GOOD = '''\
name = "windows"
towers = "10.0.0.5:5556"

sql = """
SELECT metric,
  [x = 1] AS odd
FROM measurements
"""

[spark]
master = "spark://host:7077"
settings = {"spark.sql.shuffle.partitions" = 4, "spark.a" = true}

[inputs.measurements]
topic = "demo.metrics"
schema = "metric STRING, value DOUBLE"
watermark = "timestamp 10 seconds"
options = {maxRecordsPerTrigger = 1000}

[inputs.all]
prefix = "logs."
stores = ["tcp://127.0.0.1:1", "tcp://127.0.0.1:2"]
starting = 2026-01-31T12:00:00Z

[output]
kind = "topic"
topic = "stats"
key = "metric"
trigger = "1 second"
'''

OUT = 'kind = "topic"\ntopic = "stats"\nkey = "metric"\n'
PARQUET = 'kind = "parquet"\npath = "out"\noptions = '


def written(tmp_path: Path, text: str, name: str = "p.toml") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def problems(tmp_path: Path, text: str, name: str = "p.toml") -> list[str]:
    path = written(tmp_path, text, name)
    with pytest.raises(PipelineInvalid) as caught:
        read_pipeline(path)
    return [str(each).replace(str(path), name) for each in caught.value.problems]


def test_a_file_says_everything(tmp_path: Path) -> None:
    path = written(tmp_path, GOOD)
    found = read_pipeline(path)
    assert (found.name, found.master) == ("windows", "spark://host:7077")
    assert found.settings == {"spark.sql.shuffle.partitions": "4", "spark.a": "true"}
    measured, everything = found.inputs
    assert measured.topics == ("demo.metrics",)
    assert measured.place.towers == ("10.0.0.5:5556",)
    assert measured.watermark == Watermark("timestamp", 10_000)
    assert measured.options == {"maxRecordsPerTrigger": "1000"}
    assert measured.starting == {"startingOffsets": "earliest"}
    assert everything.prefix == "logs."
    assert everything.place.stores == ("tcp://127.0.0.1:1", "tcp://127.0.0.1:2")
    assert everything.starting == {"startingTimestamp": "1769860800000"}
    (query,) = found.queries
    assert query.name == "windows"
    assert query.sql == Sql("SELECT metric,\n  [x = 1] AS odd\nFROM measurements\n", path, 5)
    assert query.trigger == Trigger(interval_ms=1000)
    assert query.output.key == ("metric",)
    assert query.checkpoint == str(tmp_path / "chappe-data/pipelines/windows")


def test_paths_are_beside_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "q.sql").write_text("SELECT 1")
    text = 'sql_file = "q.sql"\n[inputs.a]\ntopic = "t"\n[output]\nkind = "parquet"\npath = "out"\n'
    written(tmp_path / "sub", text + 'checkpoint = "hdfs://host/c"')
    monkeypatch.chdir(tmp_path)
    (query,) = read_pipeline(Path("sub/p.toml")).queries
    assert query.output.path == str(tmp_path / "sub" / "out")
    assert query.checkpoint == "hdfs://host/c"
    assert query.sql == Sql("SELECT 1", Path("sub/q.sql"), 1)


def test_several_queries_have_checkpoints_of_their_own(tmp_path: Path) -> None:
    text = '[inputs.a]\ntopic = "t"\n'
    for name in ("one", "two"):
        text += f'[[queries]]\nname = "{name}"\nsql = "SELECT * FROM a"\n[queries.output]\nkind = "console"\n'
    found = read_pipeline(written(tmp_path, text))
    assert [each.name for each in found.queries] == ["one", "two"]
    assert [Path(each.checkpoint).name for each in found.queries] == ["one", "two"]


PYTHON = '''\
"""Counts."""
# /// chappe
# [inputs.readings]
# topic = "t"
#
# [output]
# kind = "console"
# ///


def pipeline(spark, readings):
    return readings.groupBy("key").count()
'''


def test_a_python_file_has_the_same_in_its_comments(tmp_path: Path) -> None:
    found = read_pipeline(written(tmp_path, PYTHON, "counts.py"))
    assert (found.name, found.python) == ("counts", True)
    assert found.queries[0].sql is None


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("def pipeline(spark", "def pipelin(spark", "line 1: no function `pipeline(spark, ...)`"),
        ("spark, readings", "readings, spark", "line 11: the first parameter of `pipeline` is `spark`"),
        (
            "spark, readings",
            "spark, reading",
            "line 11: parameter `reading` is not an input of the pipeline: there are",
        ),
        ("return ", "return (", "line 12: not Python: '(' was never closed"),
        ("# kind", "# kin", "line 7: unknown key `output.kin`: did you mean `kind`?"),
        ("# /// chappe", "# ///", "line 1: no comment block"),
        ("# [output]", '# sql = "x"\n# [output]', "line 6: unknown key `inputs.readings.sql`"),
    ],
)
def test_what_is_wrong_with_a_python_file_is_told_with_its_line(tmp_path: Path, old: str, new: str, said: str) -> None:
    found = problems(tmp_path, PYTHON.replace(old, new, 1), "counts.py")
    assert any(said in each for each in found), found


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("name =", "nam =", "p.toml, line 1: unknown key `nam`: did you mean `name`?"),
        ('"windows"', '"my pipeline"', "line 1: 'my pipeline' cannot be a pipeline's name"),
        ('"windows"', '"windows', "line 1: not TOML: Illegal character"),
        ("watermark", "watermarks", "line 17: unknown key `inputs.measurements.watermarks`: did you mean `watermark`?"),
        ("10 seconds", "10 secnds", "line 17: `inputs.measurements.watermark`: '10 secnds' is not a duration"),
        (
            "timestamp 10 seconds",
            "timestamp",
            "line 17: `inputs.measurements.watermark`: 'timestamp' is not a watermark",
        ),
        ("spark://host:7077", "spark:host", "line 11: 'spark:host' is not where Spark runs"),
        (
            'kind = "topic"',
            'kind = "topics"',
            "line 26: `output.kind` is topic, table, parquet or console, not 'topics'",
        ),
        ('kind = "topic"', 'kind = "parquet"', "line 27: an output of kind parquet has no `topic`"),
        ('kind = "topic"', 'kind = "table"\nmode = "complete"', "line 27: an output of kind table has mode append or"),
        ('key = "metric"', 'key = ["a", "b"]', "line 28: `key` is one column"),
        (
            '"1 second"',
            '"continuous"',
            "line 29: `output.trigger`: 'continuous': neither continuous nor real-time mode",
        ),
        ('"1 second"', '"often"', "line 29: `output.trigger`: 'often' is not a trigger; write 'available-now'"),
        ("[inputs.all]", "[inputs.a-b]", "line 20: 'a-b' cannot be an input's name"),
        ('prefix = "logs."', 'topic = "logs.*"', "line 21: `topic` names topics; for all that begin alike"),
        (
            'prefix = "logs."',
            'topic = "a"\nprefix = "b"',
            "line 20: `inputs.all` needs `topic` or `prefix`, one of them",
        ),
        ('prefix = "logs."', "prefix = 3", "line 21: `inputs.all.prefix` is a number; it has to be text"),
        ("2026-01-31T12:00:00Z", '"soon"', "line 23: `inputs.all.starting` is earliest, latest or a time"),
        ("stores = [", 'towers = "a:1"\nstores = [', "line 22: give `stores` or `towers`, not both"),
        ("[output]", '[output]\nchain = "c"\nstores = "tcp://a:1"', "line 26: `chain` says where rows go: leave out"),
        ('kind = "topic"', 'kind = "console"\nchain = "c"', "line 27: an output of kind console has no `chain`"),
        ('"spark.a"', '"a.b"', "line 12: `a.b` is not a setting of Spark: their names begin with `spark.`"),
        ('schema = "metric STRING, value DOUBLE"', 'key = "metric"', "line 16: `key` names columns of `schema` that"),
        (OUT, PARQUET + '{partitonBy = "a"}\n', "line 28: unknown option `partitonBy` of kind parquet: did you mean"),
        (OUT, PARQUET + "{mergeSchema = true}\n", "line 28: unknown option `mergeSchema` of kind parquet: there are"),
        (OUT, PARQUET + '{path = "a"}\n', "line 28: say `path` instead of option `path`"),
        (OUT, PARQUET + "{partitionBy = [1]}\n", "line 28: `output.options.partitionBy` is text, a number, true"),
        (
            'kind = "topic"',
            'kind = "console"\noptions = {a = 1}',
            "line 27: an output of kind console has no `options`",
        ),
        ("[output]", '[output]\noptions = {checkpointLocation = "a"}', "line 26: say `checkpoint` instead of option"),
        ("maxRecordsPerTrigger", "subscribe", "line 18: say `topic` instead of option `subscribe`"),
        ("sql = ", 'sql_file = "x"\nsql = ', "line 1: both `sql` and `sql_file`"),
        ("sql = ", "sql_file = ", "cannot be read: No such file"),
        ("[output]", "[outputs]", "line 1: no [output]: say where the rows go"),
        ('"spark.a"', "spark.a", "(a name with dots in it needs quotes"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in GOOD
    found = problems(tmp_path, GOOD.replace(old, new, 1))
    assert any(said in each for each in found), found


def test_options_of_parquet_reach_its_writer(tmp_path: Path) -> None:
    options = '{partitionBy = ["a", "b"], compression = "zstd", "parquet.block.size" = 1000}\n'
    (query,) = read_pipeline(written(tmp_path, GOOD.replace(OUT, PARQUET + options))).queries
    assert query.output.options == {"partitionBy": "a,b", "compression": "zstd", "parquet.block.size": "1000"}


def test_an_output_to_a_chain_names_its_file_beside_the_pipeline(tmp_path: Path) -> None:
    (query,) = read_pipeline(written(tmp_path, GOOD.replace("[output]", '[output]\nchain = "chain.toml"'))).queries

    assert query.output.chain == str(tmp_path / "chain.toml")
    options = sink_options(query.output, "10.0.0.5:5556")
    assert options == {"chain": query.output.chain, "topic": "stats"}


def test_all_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    text = GOOD.replace("watermark", "watermarks").replace('"1 second"', '"often"').replace("key =", "keys =")
    assert len(problems(tmp_path, text)) == 3


@pytest.mark.parametrize(("content", "said"), [(b"\xff", "line 1: not UTF-8"), (b"", "no [inputs.NAME]")])
def test_odd_files_are_named(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "p.toml"
    path.write_bytes(content)
    with pytest.raises(PipelineInvalid, match=r"p\.toml") as caught:
        read_pipeline(path)
    assert said in str(caught.value)
    for other in (tmp_path / "none.toml", tmp_path / "p.txt"):
        with pytest.raises(PipelineInvalid):
            read_pipeline(other)


@pytest.mark.parametrize(
    ("text", "ms"), [("10 seconds", 10_000), ("500ms", 500), ("1.5 Minutes", 90_000), ("2h", 7_200_000), ("0 s", 0)]
)
def test_durations(text: str, ms: int) -> None:
    assert duration_ms(text) == ms


def test_triggers() -> None:
    assert trigger("available-now") == Trigger(available_now=True)
    assert trigger("as fast as possible") == Trigger()
    with pytest.raises(UsageError):
        duration_ms("10")
