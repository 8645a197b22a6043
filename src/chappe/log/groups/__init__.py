"""Consumer groups: members share partitions, and stores keep who reads what and how far it is.

assignment.py   who shall read which partition: each member computes the same
member.py       one member: beats to every store, claims, lets go, commits
table.py        what a store keeps of groups, and decides about claims
"""
