"""One of two masters of a data store, of which one is active: Binary Star decides which. Cores without I/O.

core      one master of the pair: what is active here, or what stands by
active    a master whose commits the partner has to have before they count
author    what is written at one that is not master
voters    clones that look for a master
standby   a copy that follows the partner's, and becomes a master
stream    what the active one has, and what it commits, in order and all of it
messages  what the two tell each other, and its bytes
"""
