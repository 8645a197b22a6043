"""Replicated state: which copy is in charge. Cores without I/O.

binary_star/  a pair of servers, of which one is active
agreement/    named servers that agree on values by majority, number by number
chain/        state that is exactly the same on several machines
"""
