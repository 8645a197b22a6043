"""What endpoints offer to web pages and other clients over HTTP: needs ``pip install 'chappe[web]'``.

admission.py  which web pages may connect, and who gives way when there are too many clients
protocol.py   the frames of the JSON protocol: what comes, what goes
session.py    one client
server.py     the server, in a thread of its own
"""
