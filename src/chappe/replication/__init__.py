"""Who is in charge of the copies of something. Cores without I/O.

binary_star/  a pair of servers, of which one is active
agreement/    what named servers agree on by majority, number by number
chain/        state that is exactly the same on several machines
"""
