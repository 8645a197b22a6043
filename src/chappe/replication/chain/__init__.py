"""State that is exactly the same on several machines: chain replication, with reads at any member.

configuration.py  who is a member, in which order
messages.py       what servers and clients tell each other, and its bytes
core.py           one server: its log, its neighbours, its disk, its configurations
membership.py     which configuration it would have next
proposing.py      ... and when it proposes that
peers.py          whom it hears
downstream.py     its successor, or a server that joins
serving.py        ... what clients ask of it
reading.py        reads that wait until it is sure that they miss nothing
joining.py        a state on its way, in pieces
external.py       a part of the machine that lies on a disk of its own
compaction.py     when a state takes the log's place, and how it is made
log.py            entries in memory
replica.py        the machine, and the sessions of clients
client.py         a client
disk.py           what a server has on disk, and its jobs for it
events.py         what an application hears
"""
