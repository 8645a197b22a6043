"""Who is in charge of the copies of something. Cores without I/O.

binary_star/  a pair of servers, of which one is active
"""
