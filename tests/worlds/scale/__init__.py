"""How the mesh grows: networks of hundreds and thousands of real cores, and what they cost in frames, time and memory.

Worlds (``sim/world.py``) ask whether promises hold under faults; this asks what it costs, without faults.
"""
