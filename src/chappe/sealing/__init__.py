"""Sealed topics: what only a group can read, and whose sender is known. No I/O.

primitives  what of the cryptography is used, and nothing else of it
epochs      the keys of a group by epoch, as the authority makes them
chain       the file of them, which the authority signs, and what is handed on of it
ring        what one member can do with that file
held        the same of all groups, with the permissions in force: for whom a topic is sealed, and whether it can be
shelf       the files that a machine has, and what of those that are handed on it takes
frames      the form of what was sealed, with bounds
senders     keys of senders, a number once for each, and what is checked of all that was sealed
records     sealing and opening batches of records, and what is noticed of their order
messages    the same for single messages of the mesh, which come in no partition
events      the form in which those travel there
rows        entries of data stores on a disk
map_keys    keys of shared maps
in_log      what producers and readers of the log do
in_mesh     what endpoints of the mesh do, and data stores
"""
