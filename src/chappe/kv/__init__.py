"""Data stores: replicated key-value state with one master and any number of clones. Cores without I/O.

engine        keys and values in memory, and the feed of their changes
operations    what add, subtract and a look into a value do, and how large an entry may be
commands      every message between masters and clones, and its bytes
entity        who takes part, and the topics where messages travel
master        all writes in one order
ordering      a master's writes are done, made durable and told
group_commit  what waits for the backend
followers     the clones that are sent every change, and those that write
snapshots     ... and before that all there is, in pieces or, to an original, in one message
recent        ... or what has changed since they were up to date with another master
history       the latest changes of each key
taking        the writes that clones send
clone         all data, and writes that go to the master
following     a clone's master, found, found again, and followed
receiving     a snapshot that comes
questions     what a clone asks its master: how far it is, and the history of keys
clone_writes  a clone's writes on their way, until their outcome is known
role          what a master and a clone have in common
replica       one of several servers that are master in turn, and writes at those that are not
chained/      ... the servers of a chain: the one at its head is the master
backend       where a master's entries last
events        what masters and clones report
"""
