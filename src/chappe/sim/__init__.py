"""The simulated ground: what cores run on without sockets, files, clocks or threads.

``chappe.testing`` runs users' programs on it; ``tests/worlds`` plays the cores on it, from seeds, with faults.

world        one clock, one source of chance, one story, the checkers; how a world is played
host         one life of a member: carries out actions, has its cores called in time
network      who reaches whom, delays
pubsub       links and questions as ZeroMQ has them
streams      connections as TCP gives them
"""
