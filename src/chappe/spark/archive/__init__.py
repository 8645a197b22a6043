"""Topics kept as Parquet, and brought back.

manifest.py   names and columns; what has been archived: the one truth, and how it changes in one step
tasks.py      what Spark's tasks do: records into staged files, small files into one
job.py        the streaming query that archives
reading.py    where the live log goes on; ``read_archive``: the archive and the log as one DataFrame
order.py      archived records in the order of their times, each partition in its own order
replay.py     records on their way back into topics

An archive is a directory that every host of the cluster sees under one path::

    topic=metrics/date=2026-01-31/00000007-000.parquet    what readers read; names are URL-encoded
    _chappe/manifest-00000042.json                        files, and how far each partition is archived
    _chappe/staging/...                                   files that are not part of the archive yet
    _chappe/lock                                          held by the one job that writes

The dates are those of the records' timestamps, in UTC. A file has the columns partition, offset, timestamp, key, value
and headers; the topic is in the path, as Hive, Spark, Arrow and DuckDB expect it. Within a file the records of each
partition lie in the order of their offsets.

**Exactly once, for every reader.** A plain listing of ``topic=*`` must never show a record twice, or one that may be
taken back, and must never lose one. So:

1. Tasks write into ``_chappe/staging`` only, each attempt under names of its own. No reader lists it: names that start
   with an underscore are hidden, and staged files do not end in ``.parquet``. The files are on disk (fsync) before
   Spark hears of them.
2. The driver takes exactly the files that the successful attempts named, sees that each partition goes on where the
   archive ended, and writes the next manifest: the offsets that are archived from now on, and the list of renames to
   be done. Giving the manifest its name is the commit: it happens or it does not.
3. Then the staged files are renamed to their places, and the directories synced. A rename is repeatable: if the job is
   killed here, the next start does what is left of the list before anything else. Until then a reader sees the archive
   as it was, or a part of the new files; never a record twice.
4. Before the commit nothing has changed, and the next start removes the staged files. Where to read on is taken from
   the manifest, and Spark's own checkpoint is thrown away with the run: two truths could differ. Records that the log
   gives although they are archived (a store that was away at the start, and comes back) are dropped by their offsets.

**Small files.** Replacing two visible files by one cannot be done in one step: a listing in between sees records twice,
or not at all. Replacing *one* file can be, by a rename. So a directory has at most one small file. What is new and
small is written together with it into a staged file that takes its name: a reader finds the old content, or the old
and the new. A file that has reached 32 MiB is never touched again. Readers that list first and open later, as Spark
does, may find that the small file has grown in between, and fail; they never see wrong records. ``read_archive`` of
a directory that is being written can hit this, too: run it again.

Importing this package imports neither pyspark nor pyarrow.
"""
