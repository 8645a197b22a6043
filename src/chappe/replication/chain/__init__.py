"""State that is exactly the same on several machines: chain replication, with reads at any member.

configuration.py  who is a member, in which order
messages.py       what servers and clients tell each other, and its bytes
core.py           one server: its log, its neighbours, its disk, its configurations
membership.py     which configuration it would have next
proposing.py      ... and when it proposes that
peers.py          whom it hears
downstream.py     its successor, or a server that joins
serving.py        clients' requests; a read waits until it surely misses nothing
joining.py        a state on its way, in pieces
compaction.py     when a state takes the log's place, and how it is made
log.py            entries in memory and on disk, and the jobs for the disk
replica.py        the machine, and the sessions of clients
client.py         a client
events.py         what an application hears
"""
