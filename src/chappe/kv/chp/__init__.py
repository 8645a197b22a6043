"""Shared maps: the Clustered Hashmap Protocol (RFC 12) as models 5 and 6 of the ZeroMQ Guide speak it.

A server orders all updates of a map; clients have a copy of it, or of subtrees. ``messages`` has the protocol's own
messages, ``stream`` those that ends of chappe exchange once they know each other. ``server`` and ``client`` are the two
cores; ``source`` follows a server, for a client and for the passive one of two servers. Entries, expiry and commits
are those of data stores (``kv/engine.py``, ``kv/group_commit.py``).
"""
