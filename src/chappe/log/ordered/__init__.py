"""Ordered topics: many writers, and one total order in each of a few partitions; the state of a chain's members.

commands.py   what is asked of the machine, and what it answers
homes.py      what queries have staged, and which batches of theirs are committed
machine.py    which partitions there are and where each ends: what a chain replicates
keeping.py    the records on their way from the machine into the member's store, and to who listens
gathering.py  the records of one writer on their way to the chain
"""
