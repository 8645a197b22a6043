"""The face of endpoints for web pages and other clients over HTTP: needs ``pip install 'chappe[web]'``.

session.py      one client, and the frames of the JSON protocol
connections.py  sockets, TLS, and clients that ask for nothing
server.py       which clients may connect; the server, in a thread of its own
"""
