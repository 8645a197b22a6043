"""Pipelines as files: topics in, SQL or Python, topics, tables or Parquet out, run by Spark.

model.py      what a file says, checked and complete, and on which line
tables.py     typed access to the tables of a TOML file, gathering complaints
reading.py    a file becomes the model, or a list of what is wrong with it; without Spark
frames.py     options of source and sink; views, rows and records as DataFrames; analysed, not started
progress.py   Spark's query progress as numbers: rates, lag, state
running.py    the queries of a pipeline, from session to end, on a thread of their own
states.py     which pipelines of this user run, and how they are: small files

Only ``frames`` and ``running`` need more than chappe's own dependencies, and only when called.
"""
