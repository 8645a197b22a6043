"""Spark looks for packages named ``pyspark_*``: this one makes ``format("chappe")`` known in every session."""

from chappe.spark.source import ChappeDataSource as DefaultSource

__all__ = ["DefaultSource"]
