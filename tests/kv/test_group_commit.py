"""Group commit: what waits for the backend, and what becomes of it when that refuses."""

from __future__ import annotations

from chappe.kv import commands as cmd
from chappe.kv.backend import ForgetWriter
from chappe.kv.engine import Engine
from chappe.kv.entity import NOBODY, chappe_entity
from chappe.kv.group_commit import Committing, DoneOperation
from chappe.limits import KV_LIMITS

CLONE = chappe_entity(b"c" * 16, 1)


def test_who_was_to_be_forgotten_with_a_commit_that_failed_is_forgotten_with_the_next() -> None:
    engine = Engine()
    commits: Committing[DoneOperation] = Committing(KV_LIMITS)
    commits.forget(CLONE)
    for refused in (True, True, False):
        commits.add(DoneOperation(cmd.Put("k", 1, None, NOBODY), (engine.put("k", 1),), (), None))
        commit = commits.start(lambda entity: None)
        assert commit is not None
        assert commit.operations.count(ForgetWriter(CLONE)) == 1
        if refused:
            commits.failed(commit.number, engine)
        else:
            commits.committed(commit.number)
    commits.add(DoneOperation(cmd.Put("k", 2, None, NOBODY), (engine.put("k", 2),), (), None))
    commit = commits.start(lambda entity: None)
    assert commit is not None
    assert ForgetWriter(CLONE) not in commit.operations
