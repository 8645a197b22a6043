"""One Spark session for all tests that need one: starting it takes seconds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from tests.spark.fake_store import FakeStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    pytest.importorskip("pyspark")
    request.getfixturevalue("quick_java")
    from chappe.spark.session import spark_session

    folder = tmp_path_factory.mktemp("spark")
    conf = {
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
        "spark.sql.shuffle.partitions": "1",
    }
    session = spark_session("chappe-tests", conf=conf, master="local[2]")
    yield session
    session.stop()


@pytest.fixture
def store() -> Iterator[FakeStore]:
    with FakeStore() as made:
        yield made
