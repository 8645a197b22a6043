"""What endpoints offer to web pages and other clients over HTTP: needs ``pip install 'chappe[web]'``.

admission.py  which web pages may connect, and who gives way when there are too many clients
session.py    one client, and the frames of the JSON protocol
server.py     the server, in a thread of its own
"""
