"""The test with Spark on the page about testing."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
from tests.test_docs import ROOT, blocks

from chappe import Store, Tower

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.spark
def test_the_page_on_testing_tests_a_query(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = [text for language, text in blocks(ROOT / "docs/how-to/test-your-program.md") if language == "python"]
    conftest = ModuleType("conftest")
    exec(code[-2], conftest.__dict__)
    monkeypatch.setitem(sys.modules, "conftest", conftest)
    page: dict[str, Any] = {}
    exec(code[-1], page)
    with Tower("127.0.0.1:0") as tower, Store(tmp_path / "records", tower=tower.address):
        page["test_rooms_are_counted"](spark, tower.address)
