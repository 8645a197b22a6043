"""``chappe demo``: everything that chappe is, on one machine, fed with real input.

command.py  the command, and the directory of a demo
run.py      a run: starts the parts, watches them, ends them, says where the results are
child.py    what runs in a child process: tower and store, or the producer of measurements or lines
query.py    the Spark query, and the windows that it computes, as a table in memory and as Parquet
view.py     the running table in the terminal: newest values, rates, delays
"""
