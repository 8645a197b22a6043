"""The cores of chappe in seeded worlds without sockets, files, clocks or threads.

``python -m chappe.sim --scenario log --seed 7 -v`` plays one world and tells what happens; ``--seeds 1000`` plays many.

world        one clock, one source of chance, one story, the checkers; how a world is played
host         one life of a member: carries out actions, has its cores called in time
network      who reaches whom, delays, single messages that get lost
pubsub       links and questions as ZeroMQ has them
streams      connections as TCP gives them
disk         what stores write; with ``journals`` and ``backends`` all that lasts
faults       one schedule of what goes wrong
shrink       makes a failing world smaller, and keeps it
scenarios    who lives in a world, what is promised there, and how that is checked
"""
