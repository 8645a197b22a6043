"""All processes of a load test on this machine: started one role after the other, measured from one common moment."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from chappe.benchmark.load.frame import SourceLoad
from chappe.benchmark.load.report import LoadMember
from chappe.benchmark.processes import BenchmarkProcess, Processes

START_S: Final = 60.0  # the processes of a role get this long to be ready
AHEAD_NS: Final = 200_000_000  # the common start is this far ahead, so that all hear of it
QUIET_S: Final = 10.0  # when nothing arrived for longer than this, nothing will
RESULT_S: Final = 15.0  # processes get this long to tell their last numbers
LOOK_S: Final = 0.1

Show = Callable[[str, float], None]  # the state of things, and the share that is done


class Crew:
    """The processes of a run; a context that leaves none of them behind. ``show``: called several times a second."""

    def __init__(self, show: Show) -> None:
        self.members: list[LoadMember] = []
        self.stopped: KeyboardInterrupt | None = None  # Ctrl-C or SIGTERM, if it came while measuring
        self._show = show
        self._processes = Processes("chappe.benchmark.load.worker")

    def start(
        self, work: str, role: str, part: str, each: Sequence[dict[str, Any]], **options: object
    ) -> list[dict[str, Any]]:
        """Start the processes of a role, one for each of ``each``, and return what they tell when they are ready.

        Args:
            work: Which function of which module, as ``worker`` takes it.
            role: What people call it.
            part: As of ``Member``.
            each: Options of one process alone.
            options: Those of all of them.

        Raises:
            ChappeError: One could not begin, with its reason.
        """
        names = [role if len(each) == 1 else f"{role} {number}" for number in range(1, len(each) + 1)]
        for name, own in zip(names, each, strict=True):
            self.members.append(LoadMember(name, role, part))
            self._processes.start(name).order("begin", work=work, **options, **own)
        until = time.monotonic() + START_S
        self._await("ready", names, until)
        return [self._child(name).said["ready"] for name in names]

    def meet(self, role: str, **facts: object) -> None:
        """Order the processes of a role to wait until they see all others; raises ChappeError."""
        names = [each.name for each in self._of(role)]
        for name in names:
            self._child(name).order("meet", **facts)
        self._await("met", names, time.monotonic() + START_S)

    def run(self, unit: str, load: Sequence[SourceLoad]) -> tuple[str, bool]:
        """Start all at once and measure until all is done.

        Returns:
            ``reason`` and ``cut`` of ``Report``. Ctrl-C is a reason like others.
        """
        at_ns = time.monotonic_ns() + AHEAD_NS
        for each in self._processes.children.values():
            each.order("start", at_ns=at_ns)
        try:
            reason, cut = self._follow(unit, load, at_ns)
        except KeyboardInterrupt as stop:
            self.stopped = stop
            reason, cut = "stopped before its end: these are the numbers until then", True
        self._stop([each for each in self.members if each.part == "sources"])  # others still confirm what they sent
        self._stop([each for each in self.members if each.part != "sources"])
        for each in reversed(self._processes.children.values()):
            each.order("leave")
        for member in self.members:
            child = self._child(member.name)
            _take(member, child)
            if "result" not in child.said:
                member.ended = child.ended or "does not answer"
        return reason, cut

    def _stop(self, members: Sequence[LoadMember]) -> None:
        children = [self._child(each.name) for each in members]
        for each in children:
            each.order("stop")
        until = time.monotonic() + RESULT_S
        while time.monotonic() < until and any(each.ended is None and "result" not in each.said for each in children):
            self._processes.listen(LOOK_S)

    def _follow(self, unit: str, load: Sequence[SourceLoad], at_ns: int) -> tuple[str, bool]:
        sinks = [each for each in self.members if each.part == "sinks"]
        sources = [each for each in self.members if each.part == "sources"]
        count = None if load[0].count is None else sum(each.count or 0 for each in load)
        seconds = load[0].seconds
        before, moved_at = -1, time.monotonic()
        while True:
            self._processes.listen(LOOK_S)
            for member in self.members:
                child = self._child(member.name)
                _take(member, child)
                if child.ended is not None:
                    return "", True
            now = time.monotonic()
            sent = sum(each.count for each in sources)
            arrived = sum(each.count + each.dropped for each in sinks or sources)
            if sent + arrived != before:
                before, moved_at = sent + arrived, now
            share = max((now - at_ns / 1e9) / seconds if seconds else 0.0, sent / count if count else 0.0)
            self._show(
                f"{sent:,} {unit}s sent, {arrived:,} arrived" if sinks else f"{sent:,} {unit}s",
                max(0.0, min(share, 1.0)),
            )
            done = all("sent" in self._child(each.name).said for each in sources)
            if done and all(each.count + each.dropped >= sent for each in sinks):
                return "", False
            if now > moved_at + QUIET_S:
                return f"nothing was sent and nothing arrived for {QUIET_S:.0f} s", False

    def _await(self, event: str, names: Sequence[str], until: float) -> None:
        while True:
            there = sum(event in self._child(name).said for name in names)
            self._show(f"starting {names[0].split()[0]}: {there} of {len(names)} {event}", 0.0)
            if there == len(names):
                return
            self._processes.await_some(event, until)

    def _of(self, role: str) -> list[LoadMember]:
        return [each for each in self.members if each.role == role]

    def _child(self, name: str) -> BenchmarkProcess:
        return self._processes.children[name]

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        self._processes.close()


def _take(member: LoadMember, child: BenchmarkProcess) -> None:
    for event in ("result", "sent", "progress"):
        if event in child.said:
            member.take(child.said[event])
            return
