"""A pair of servers of which one is active: Binary Star of the ZeroMQ Guide, with numbered terms.

messages.py  what servers and witness tell each other, and its bytes
core.py      one server of the pair
witness.py   who decides when the two do not see each other
events.py    what an application hears
"""
