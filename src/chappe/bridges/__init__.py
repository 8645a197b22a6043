"""Between what is live, which is gone when nobody takes it, and topics of the log, where it stays; and to other sites.

form.py            how a message of the mesh is a record
recorder.py        messages become records, at least once
player.py          records become messages again, at their original speed or another
kv_form.py         how an entry of a data store is a record
keeping.py         what the bridges have in common; the latest record of each key of a topic
kv_to_topic.py     the changes of a store as a topic
topic_to_kv.py     a topic as a table in a store
copying.py         topics of one site at another one too
"""
