from __future__ import annotations
from collections.abc import Callable, Iterator, Sequence
from typing import Any
import pytest
from chappe.api.chain.member import ChainMember
from chappe.core import Effect
from chappe.replication.agreement.core import VoteRecord
from chappe.replication.chain.log import LoadedChain, LogChange
from chappe.replication.chain.client import ChainClient, Finished
from chappe.runtime.chain_ports import ChainServerPorts, _Connections
from chappe.runtime.driver import Driver
from chappe.runtime.worker import Lane
from chappe.storage import chain_files
from chappe.storage.chain_files import ChainFiles
from chappe.testing.disk import DiskOps
from tests.sim.below_the_cores import forgets_who_is_due
Patch = pytest.MonkeyPatch
def syncs_nothing(patch):
    patch.setattr(DiskOps, "fdatasync", lambda self, fd: None)
def counts_a_refused_write(patch):
    done = ChainServerPorts.done
    patch.setattr(ChainServerPorts, "done", lambda self, job, outcome, now: done(self, job, None, now))
def keeps_no_vote(patch):
    keep = ChainFiles.keep
    def memory_alone(self, memory): self.memory = memory
    patch.setattr(ChainFiles, "keep", memory_alone)
def says_before_the_vote_is_kept(patch):
    persist = Driver._persist
    def hasty(self, job, rest):
        persist(self, job, None)
        if rest: self.perform(rest)
    patch.setattr(Driver, "_persist", hasty)
def loads_no_state(patch):
    init = ChainFiles.__init__
    def forgetful(self, *args, **options):
        init(self, *args, **options)
        self.loaded = LoadedChain()
    patch.setattr(ChainFiles, "__init__", forgetful)
def loses_a_job(patch):
    run = Lane._run; count=[0]
    def forgetful(lane, work, done):
        count[0]+=1
        run(lane, work, done if count[0]%5 else None)
    patch.setattr(Lane, "_run", forgetful)
def goes_on_in_a_torn_file(patch):
    write = ChainFiles.write
    def careless(self, change):
        try: write(self, change)
        finally: self._worn = self._file < 0
    patch.setattr(ChainFiles, "write", careless)
def saves_before_the_state_is_whole(patch):
    def remove(self, change):
        for number in self._numbers[:-1]:
            self._ops.discard(self._path(number))
        return save(self, change)
    save = ChainFiles.save
    patch.setattr(ChainFiles, "save", remove)
def promises_too_much(patch):
    withdraw = ChainClient.withdraw
    patch.setattr(ChainClient, "withdraw", lambda self, token: withdraw(self, token) or True)
def mixes_up_answers(patch):
    finished = ChainMember._finished
    def shifted(self, event):
        finished(self, Finished(event.tokens, event.outcomes[::-1], event.members, event.durable))
    patch.setattr(ChainMember, "_finished", shifted)
def forgets_gathered_answers(patch):
    flushed = ChainServerPorts.flushed
    def forgetful(self):
        if len(self._replies) > 1: self._replies.clear()
        flushed(self)
    patch.setattr(ChainServerPorts, "flushed", forgetful)
def a_restart_is_the_same_life(patch):
    from chappe.api.chain import server
    init = ChainFiles.__init__
    def forgetful(self, directory, disk, ops=None):
        init(self, directory, disk, ops)
    patch.setattr(ChainFiles, "__init__", forgetful)
