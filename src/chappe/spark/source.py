"""``format("chappe")``: topics as DataFrames, in batches and in streams.

The driver asks the stores how far each partition goes and cuts what is new into tasks; the executors read their
ranges straight from the stores and hand Arrow batches to Spark. Offsets live in Spark's checkpoint alone, so a
restarted query reads exactly the offsets that it had planned.

Spark makes these objects in one process and pickles them into others: they hold no connection until they need it.
"""

from __future__ import annotations

from pyspark.sql import datasource as ds
from pyspark.sql.types import StructType

from chappe.errors import UsageError
from chappe.spark import sql_tables
from chappe.spark.batch import TopicReader
from chappe.spark.columns import check_schema, schema_of
from chappe.spark.options import Options
from chappe.spark.sink_options import SinkOptions
from chappe.spark.stream import TopicStreamReader


class ChappeDataSource(ds.DataSource):
    """What Spark makes for ``format("chappe")``; the options are in ``options.py``."""

    @classmethod
    def name(cls) -> str:
        """The name in ``format(...)``."""
        return "chappe"

    def schema(self) -> StructType:
        """The columns that are wanted; of a table that is created, see ``sql_tables.py``."""
        if sql_tables.is_creation(self.options):
            return sql_tables.created(self.options)
        return schema_of(Options.parse(self.options).reading.columns)

    def reader(self, schema: StructType) -> ds.DataSourceReader:
        """For ``spark.read``."""
        options = self._for_reading(schema)
        limits = {"maxRecordsPerTrigger": options.max_records, "maxBytesPerTrigger": options.max_bytes}
        for name, value in limits.items():
            if value is not None:
                raise UsageError(f"`{name}` is for streams; a batch is bounded by `endingOffsets`")
        return TopicReader(options)

    def streamReader(self, schema: StructType) -> ds.DataSourceStreamReader:
        """For ``spark.readStream``."""
        options = self._for_reading(schema)
        if options.reading.ending is not None:
            raise UsageError(
                "`endingOffsets` and `endingTimestamp` are for batches; a stream ends with trigger(availableNow=True)"
            )
        return TopicStreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> ds.DataSourceWriter:
        """For ``df.write``; the options are in ``sink_options.py``."""
        from chappe.spark.sink import TopicWriter  # readers, which are started more often, do without

        options = SinkOptions.parse(sql_tables.writing_options(self.options, schema))
        return TopicWriter(options, sql_tables.without_marks(schema), overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> ds.DataSourceStreamWriter:
        """For ``df.writeStream``. ``overwrite`` is output mode complete: all results are appended every time."""
        from chappe.spark.origins import origins_of
        from chappe.spark.sink import TopicStreamWriter

        options = SinkOptions.parse(sql_tables.streamed_options(self.options, schema))
        return TopicStreamWriter(options, sql_tables.without_marks(schema), origins_of(self.options, options.topic))

    def _for_reading(self, schema: StructType) -> Options:
        options = Options.parse(sql_tables.reading_options(self.options, schema))
        check_schema(sql_tables.without_marks(schema), options.reading.columns)
        return options
