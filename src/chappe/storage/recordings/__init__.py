"""Recordings of an endpoint: what it published in the shape of messages, its topics and its peers. Broker's formats.

codec.py    ``messages.dat``: entries to and from bytes; no I/O
files.py    the files of a folder, written
"""
