"""Clients of a chain: commands are done once, in one order, at all its servers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from chappe.api.chain.configuration import ChainConfiguration
from chappe.api.chain.member import ChainAnswer, ChainCall, ChainMember
from chappe.api.chain.status import ChainServerStatus
from chappe.api.faces import AsyncCloseable, Closeable, Seconds, Steps, T, awaited, run, run_async
from chappe.api.mesh.loop_watch import Watch
from chappe.security import LogSecurity
from chappe.system.forking import own

WAIT_S: Final = 10.0  # a command waits this long for its answer: longer than a chain takes to go on without a server
LOOK_S: Final = 2.0  # servers are given so long to say how they are


class Chain(Closeable):
    """A client of a chain of ``ChainServer``: commands are done once, in one order, at all servers.

    A command that is answered is committed: it stays, whichever servers die, as long as one of those that were members
    is left. Commands of one object are done in the order in which they were given. While servers die they are repeated,
    and still done only once. Use from several threads is safe.

    Args:
        configuration: The servers' own, or its file.
        security: ``Keys("DIRECTORY/NAME")`` if servers have keys, ``"plain"``, or None for the identity of
            ``CHAPPE_IDENTITY``.

    Raises (every command and question):
        NoChain: No server took it in time; it is not done.
        TimedOut: It was sent and not answered in time; it may still be done.
        SessionExpired: It may have been done or not: this client sent nothing for an hour, or 10,000 others came.
        CommandFailed: The machine has raised an exception.
        NotPermitted: The permissions do not allow it.
        BufferFull: 65,536 commands, or 64 MiB of them, are not answered.
        RecordTooLarge: A command or question beyond 4 MiB.
        Closed: The client was closed.
    """

    def __init__(self, configuration: ChainConfiguration | str | Path, *, security: LogSecurity = None) -> None:
        own(self)
        self.member = ChainMember(configuration, security=security)

    @property
    def pending(self) -> int:
        """The number of commands without an answer."""
        return self.member.pending

    def call(self, command: bytes, *, timeout: Seconds = WAIT_S) -> ChainAnswer:
        """Send a command, and return the machine's answer."""
        return self._run(self.member.calling(command, timeout))

    def call_many(self, commands: Iterable[bytes], *, timeout: Seconds = None) -> list[ChainAnswer]:
        """Send many commands, in order, much faster than one by one.

        Return their answers; raise the first error when all are answered.
        """
        return self._run(self.member.calling_many(commands, timeout))

    def submit(self, command: bytes) -> ChainCall:
        """Send a command without waiting; take its answer from the returned object."""
        return self.member.submit(command)

    def read(self, query: bytes, *, server: str | None = None, timeout: Seconds = WAIT_S) -> bytes:
        """Ask the machine: the answer reflects every command that was confirmed to any client before the question.

        Args:
            query: The argument of the machine's ``read``.
            server: The member of the chain to ask; None: the tail.
            timeout: How long to wait, in seconds.
        """
        return self._run(self.member.reading(query, server, timeout))

    def status(self, *, timeout: Seconds = LOOK_S) -> Mapping[str, ChainServerStatus | None]:
        """Return each server's view of the chain; None for servers that do not answer in time."""
        return self._run(self.member.looking(timeout))

    def remove(self, name: str, *, timeout: Seconds = WAIT_S) -> None:
        """Remove a server from the chain until it is added again; wait for the decision.

        Raises:
            UsageError: There is no such server, or it is the last member.
            TimedOut: It is not decided in time; it may still be.
        """
        return self._run(self.member.excluding(name, True, timeout))

    def add(self, name: str, *, timeout: Seconds = WAIT_S) -> None:
        """Let a removed server come back, and wait until it has the whole state and is a member.

        Raises:
            UsageError: There is no such server.
            TimedOut: It is no member in time; it may still become one.
        """
        return self._run(self.member.excluding(name, False, timeout))

    def events(self) -> list[object]:
        """Return the events since the last call: refused connections."""
        return self.member.events()

    def close(self) -> None:
        """Wait two seconds at most for commands under way, and end. Safe to call twice."""
        self.member.leave()

    def _run(self, steps: Steps[T]) -> T:
        return run(steps, self.member.turns.wait)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.member.configuration.name}, {self.pending:,} pending>"


class AsyncChain(AsyncCloseable):
    """``Chain`` for asyncio, made where an event loop runs: ``async with AsyncChain(...) as chain``.

    ``call``, ``call_many``, ``read``, ``status``, ``remove``, ``add`` and ``close`` are coroutines that do not block
    the loop.
    """

    def __init__(self, configuration: ChainConfiguration | str | Path, *, security: LogSecurity = None) -> None:
        own(self)
        self.member = ChainMember(configuration, security=security)
        self._watch = Watch(self.member.turns, "AsyncChain")

    call = awaited(Chain.call)
    call_many = awaited(Chain.call_many)
    read = awaited(Chain.read)
    status = awaited(Chain.status)
    remove = awaited(Chain.remove)
    add = awaited(Chain.add)

    @property
    def pending(self) -> int:
        return self.member.pending

    def events(self) -> list[object]:
        return self.member.events()

    async def close(self) -> None:
        self._watch.unread()
        import asyncio

        await asyncio.to_thread(self.member.leave)
        self._watch.leave()

    async def _run(self, steps: Steps[T]) -> T:
        return await run_async(steps, self._watch.wait)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.member.configuration.name}, {self.pending:,} pending>"
