"""What Spark says, as one sentence."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pytest

from chappe.cli.archive import _apart
from chappe.errors import OffsetOutOfRange, UsageError
from chappe.spark.sentences import LONGEST, failure, line_in_sql, sentence

UNRESOLVED = (
    "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `valu` cannot be resolved. Did you mean one of the "
    "following? [`value`, `metric`]. SQLSTATE: 42703; line 2 pos 7;\n'Project ['valu]\n+- SubqueryAlias\n"
)
PARSE = "\n[PARSE_SYNTAX_ERROR] Syntax error at or near 'FORM'. SQLSTATE: 42601 (line 3, pos 9)\n\n== SQL ==\nSELECT"
SOURCE = (
    "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: [PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR]"
    " Failed when Python streaming data source perform latestOffset: Traceback (most recent call last):\n"
    '  File "source.py", line 3, in x\nchappe.errors.TimedOut: no store answers at tcp://127.0.0.1:1; start one\n'
    " SQLSTATE: 38000 SQLSTATE: XXKST"
)
UDF = (
    "[STREAM_FAILED] Query terminated with exception: Job aborted: Traceback (most recent call last):\n"
    '  File "p.py", line 3, in f\nZeroDivisionError: division by zero\n\n\tat org.apache.spark.api'
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            UNRESOLVED,
            "A column with name `valu` cannot be resolved. Did you mean one of the following? [`value`, `metric`]",
        ),
        (PARSE, "Syntax error at or near 'FORM'"),
        (SOURCE, "no store answers at tcp://127.0.0.1:1; start one"),
        (UDF, "ZeroDivisionError: division by zero"),
        ("", "ValueError"),
        ("plain", "plain"),
        (
            "An error occurred while calling o1.start.\n: org.x.NoException: [NO] Nothing there. SQLSTATE: 1",
            "Nothing there",
        ),
        ('Exception in thread "main" org.x.SparkException: No such place', "No such place"),
        (
            "An error occurred while calling None.x.\n: org.x.WideException: It failed.\n\tat org.x.Y(Y.scala:1)\n"
            "Caused by: java.io.IOException: x\n\tat java.x\nCaused by: java.net.UnknownHostException: x\n\t... 2 more",
            "It failed (UnknownHostException: x)",
        ),
    ],
)
def test_one_sentence(text: str, said: str) -> None:
    assert sentence(ValueError(text)) == said


PROXY = (
    "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: [FOREACH_BATCH_USER_FUNCTION_ERROR] An error "
    "occurred in the user provided function in foreach batch sink. Reason: An exception was raised by the Python "
    'Proxy. Return Message: Traceback (most recent call last):\n  File "clientserver.py", line 644, in _call_proxy\n'
    "ValueError: mine\n SQLSTATE: 39000 SQLSTATE: XXKST\n=== Streaming Query ===\nIdentifier: [id = 1]\n"
)


def test_commands_say_the_sentence_and_where_the_log_is() -> None:
    pytest.importorskip("pyspark")
    from pyspark.errors import PySparkException

    from chappe.cli.app import _in_one_line
    from chappe.cli.demo.query import DemoQuery, QueryFailed

    assert _in_one_line(PySparkException(PROXY)) == "Spark: ValueError: mine"
    query = object.__new__(DemoQuery)
    query._problem, query._log = PySparkException(PROXY), Path("demo/spark.log")
    with pytest.raises(QueryFailed, match=r"^the Spark query failed: ValueError: mine; Spark's log: demo/spark\.log$"):
        query.check()


def test_an_archive_that_fails_names_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def failing(error: Exception, words: str) -> None:
        with _apart():
            print(words, file=sys.stderr)
            raise error

    with pytest.raises(OffsetOutOfRange, match=r"^data loss: all of it; Spark's log: .+\.log$") as caught:
        failing(OffsetOutOfRange("data loss: all of it"), "words of Java")
    log = Path(str(caught.value).rpartition(": ")[2])
    assert log.read_text() == "words of Java\n"
    log.unlink()
    with pytest.raises(UsageError, match=r"^wrong$"):
        failing(UsageError("wrong"), "words")
    assert not [*tmp_path.iterdir()]


def test_lines_and_length() -> None:
    assert (line_in_sql(UNRESOLVED), line_in_sql(PARSE), line_in_sql("")) == (2, 3, 1)
    assert len(sentence("x " * 5000)) <= LONGEST


def test_a_checkpoint_of_another_query_is_named() -> None:
    text = "[STREAM_FAILED] x: [STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE] Provided key schema does not match. SQLSTATE: 1"
    assert "give it a new `checkpoint`, or undo the change" in failure(text, "q", "/c")
    assert "another query uses its checkpoint /c" in failure("[CONCURRENT_STREAM_LOG_UPDATE] x", "q", "/c")
    assert failure("oh", "q", "/c") == "query q failed: oh"
    damaged = 'File "x/python_streaming_source_runner.py", line 101\njson.decoder.JSONDecodeError: Expecting'
    assert "the offsets in its checkpoint /c are damaged" in failure(damaged, "q", "/c")
