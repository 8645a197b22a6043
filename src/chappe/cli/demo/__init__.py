"""``chappe demo``: everything that chappe is, on one machine, fed with real input.

command.py       the command: starts the parts, watches them, ends them, says where the results are
children.py      the parent's side of a child process: its facts, its last words, its end
child.py         what runs in a child: tower and store, or the producer
feed.py          the producer: measurements several times a second, or lines of a file
measurements.py  this machine's measurements
query.py         the Spark query
windows.py       the windows it computes, as a table in memory and as Parquet
flow.py          what flows: newest values, rates, delays
numbers.py       numbers as people read them
places.py        where everything is, and which commands show it
view.py          the running table in the terminal
"""
