"""Commits of durable masters and map servers, as the threads of their disks do them."""

from __future__ import annotations

import logging
from typing import Final

from chappe.errors import StorageError
from chappe.kv.backend import Backend, Commit

logger = logging.getLogger(__name__)

CLOSE_S: Final = 2.0  # closing waits this long for what is under way: commits, and confirmations of a clone's writes


def commit(backend: Backend, operations: Commit) -> StorageError | None:
    try:
        backend.commit(operations.operations)
    except StorageError as problem:
        return problem
    except Exception as problem:  # a defect of the backend's: refuse the writes, rather than hang
        logger.exception("a commit failed")
        return StorageError(f"the backend failed: {problem!r}")
    return None
