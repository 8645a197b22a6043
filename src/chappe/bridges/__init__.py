"""Between what is shared live, which is gone when nobody takes it, and topics of the log, where it stays.

form.py      how a message of the mesh is a record
recorder.py  messages become records, at least once
player.py    records become messages again, at their original speed or another
"""
