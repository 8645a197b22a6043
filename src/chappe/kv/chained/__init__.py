"""A data store whose state is on the servers of a chain: the one at its head is the master. Cores without I/O.

core      one of the servers, to those who run it a master like any other
machine   the state that the chain replicates: a backend's rows
messages  the commands by which the master changes it, and their bytes
fed       what the machine tells its server of what was committed
"""
