"""Reading topics in bulk from stores, without being a member: what Spark's tasks and ``chappe.read_topic`` share.

selection.py  which topics and partitions; regular expressions over topics, each name in linear time
offsets.py    where a read starts and ends, and how it is cut into tasks
view.py       what the stores have
bounds.py     the ranges that lie between a start and an end; which offset a moment is at
fetch.py      how ranges are read, failing over from store to store
topic.py      ``read_topic`` and ``read_batches``
topics.py     ``list_topics``: which topics there are
groups.py     consumer groups
admin.py      ``Admin``: settings, deletions and trims of topics

Nothing here imports pyspark, and pyarrow only when records are read or a regular expression is used.
"""
