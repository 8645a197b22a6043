"""Taps: traffic through a forwarder or an endpoint, shown to clients.

messages.py   questions to a tap and its answers, and their bytes
sessions.py   the clients of a tap, and what waits for each
frames.py     frames of the log and of the mesh, described
"""
