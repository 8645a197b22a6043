"""The log on disk: batches of many partitions in shared segment files.

One folder for each topic; in it, segments that all partitions of the topic share, so that a commit needs one
sync for each topic it touches and a hundred thousand small partitions are as cheap as one large one.

- ``files``, ``directory``   the operating system; the store's lock and id, names of folders and files
- ``blocks``     a batch in a segment, and finding it again by scanning
- ``table``      the blocks of the segment being written, as columns
- ``index``, ``index_files``     the same of a sealed segment, as a file that is searched where it lies, kept twice
- ``appender``   writing, sealing, undoing what failed, and removing what is old (the writing thread)
- ``manifest``   what was acknowledged, and which segments there are
- ``slots``      what is readable of a partition; gaps are holes
- ``topics``, ``reading``        finding and reading it (the reading thread)
- ``opening``, ``aside``   opening what a crash, a bad disk or an operator left
- ``scrub``      reading everything to find damage (a thread of its own)
- ``storage``    ``SegmentStorage``, which puts it together
"""

from chappe.storage.segments.storage import SegmentStorage

__all__ = ["SegmentStorage"]
