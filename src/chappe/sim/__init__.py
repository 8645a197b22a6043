"""The cores of chappe in seeded worlds without sockets, files, clocks or threads.

``python -m chappe.sim --seed 7 -v`` plays one world and tells what happens; ``--seeds 1000`` plays many.
"""
