"""The cores of chappe in seeded worlds, on the simulated ground of ``chappe.sim``.

``python -m tests.worlds --scenario log --seed 7 -v`` plays one world and tells what happens; ``--seeds 1000`` plays
many.

disk         what the disk of a store holds; ``backends`` has databases in memory
faults       one schedule of what goes wrong
shrink       makes a failing world smaller, and keeps it
registry     the scenarios: members, promises and their checkers, each in a module or package of its name
scale        networks of a thousand endpoints without faults
"""
