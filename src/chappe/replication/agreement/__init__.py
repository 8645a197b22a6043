"""What some named servers agree on, number by number, by majority: single-decree agreement for each number.

messages.py  what they tell each other, and its bytes
core.py      one server: it votes, proposes and learns
alone.py     a server that decides without the others, behind the same interface
"""
