"""The log on disk: batches of many partitions in shared segment files.

One folder for each topic; in it, segments that all partitions of the topic share, so that a commit needs one
sync for each topic it touches and a hundred thousand small partitions are as cheap as one large one.

- ``directory``  identity, lock, the names of folders
- ``blocks``     a batch in a segment, and finding it again by scanning
- ``table``      the blocks of the segment being written, as columns
- ``index``      the same of a sealed segment, as a file that is searched where it lies
- ``appender``   writing, sealing, and undoing what failed (the writing thread)
- ``slots``      what is readable of a partition; gaps are holes
- ``active``, ``topics``, ``changes``, ``handles``   finding and reading it (the reading thread)
- ``recovery``   opening what a crash left
- ``retention``  removing whole segments
- ``storage``    ``SegmentStorage``, which puts it together
"""

from chappe.drivers.segments.storage import SegmentStorage

__all__ = ["SegmentStorage"]
