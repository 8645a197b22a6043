"""The load tests of ``chappe bench``: processes of this machine that send as fast as they can, or at a rate.

histogram.py   durations, in buckets of equal ratio
report.py      the measurements of all processes: as numbers, and as a table's rows
frame.py       a worker's side: the loops that send and take, and the numbers that they report
log.py         producers, consumers, a store
mesh.py        publishers, subscribers, a chain of endpoints between them
state.py       data stores, shared maps, chains
worker.py      one process
crew.py        all processes of a run, from start to end
"""
