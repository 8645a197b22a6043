"""What passes through a forwarder or an endpoint, told to those who look.

messages.py   what a tap is asked and answers, and its bytes
sessions.py   who looks, for what, and what waits for each
frames.py     what the frames of the log and of the mesh say
"""
