"""Sealed topics: what only a group can read, and whose sender is known. No I/O.

primitives  what of the cryptography is used, and nothing else of it
epochs      the keys of a group by epoch, as the authority makes them
chain       the file of them, which the authority signs, and the files that a machine has
ring        what one member can do with those files, with the permissions in force
senders     keys of senders, a number once for each, and what is checked of all that was sealed
records     sealing and opening batches of records, their form, and what is noticed of their order
messages    the same for single messages of the mesh, which come in no partition
events      the form in which those travel there
rows        entries of data stores on a disk
map_keys    keys of shared maps
in_log      what producers and readers of the log do
in_mesh     what endpoints of the mesh do, and data stores
"""
