"""Faults as people make them, each one change of the sources; ``python -m tests.mutations`` plants them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

# The worlds and the tests that look for the faults of a part.
SCENARIOS: Final = {
    "log": ("log",),
    "exactly once": ("sink",),
    "mesh": ("mesh",),
    "channel": ("channel", "kv"),
    "kv": ("kv", "kv-lossy"),
    "members": ("log", "mix", "kv"),
    "maps": ("maps",),
}
TESTS: Final = {
    "log": ("tests/log",),
    "exactly once": (
        "tests/log/test_transactions.py",
        "tests/log/test_staging.py",
        "tests/storage/test_staged_files.py",
    ),
    "mesh": ("tests/mesh",),
    "channel": ("tests/test_channel.py", "tests/kv"),
    "kv": ("tests/kv",),
    "members": ("tests/log/test_member.py", "tests/log/test_producers.py", "tests/test_mesh_member.py"),
    "maps": ("tests/kv/test_map_pair.py", "tests/kv/test_map_server_and_client.py", "tests/kv/test_map_originals.py"),
}


@dataclass(frozen=True)
class Plant:
    """One fault.

    Args:
        name: What is wrong, in a few words joined by hyphens.
        part: Of the sources; a key of ``SCENARIOS``.
        file: Below ``src/chappe``.
        before: What stands there, once.
        after: What stands there instead.
        breaks: The promise that no longer holds; empty if none is broken, and tests are enough.
    """

    name: str
    part: str
    file: str
    before: str
    after: str
    breaks: str = ""

    @property
    def scenarios(self) -> tuple[str, ...]:
        """The scenarios of the simulator that look for it."""
        return SCENARIOS[self.part]

    @property
    def tests(self) -> tuple[str, ...]:
        """The tests that look for it."""
        return TESTS[self.part]

    def into(self, source: Path) -> None:
        """Plant it in a copy of the sources."""
        path = source / "chappe" / self.file
        text = path.read_text(encoding="utf-8")
        if text.count(self.before) != 1:
            raise ValueError(f"{self.name}: {self.file} has {self.before!r} {text.count(self.before)} times, not once")
        path.write_text(text.replace(self.before, self.after), encoding="utf-8")


PLANTS: Final[tuple[Plant, ...]] = (
    Plant(
        "fenced-run-attaches-again",
        "exactly once",
        "log/exactly_once/transactions.py",
        "fenced = (*state.fenced, state.run)[-RUNS_MAX:] if state.run else ()",
        "fenced = state.fenced[-RUNS_MAX:]",
        "who was fenced stays so",
    ),
    Plant(
        "fenced-run-still-commits",
        "exactly once",
        "log/exactly_once/transactions.py",
        (
            "        if run != sink.state.run:\n"
            "            raise self._fenced(sink, run)\n"
            "        if run != sink.saved_run:"
        ),
        "        if run not in (sink.state.run, *sink.state.fenced):",
        "who was fenced stays so",
    ),
    Plant(
        "run-writes-before-it-is-saved",
        "exactly once",
        "log/exactly_once/transactions.py",
        "        if run != sink.saved_run:",
        "        if run not in (sink.saved_run, sink.state.run):",
        "who was fenced stays so",
    ),
    Plant(
        "repeated-commit-is-done-again",
        "exactly once",
        "log/exactly_once/transactions.py",
        ("        if request.batch <= sink.state.batch:\n            return [asked.reply(CommitAnswer"),
        ("        if request.batch < sink.state.batch:\n            return [asked.reply(CommitAnswer"),
        "a batch is committed once",
    ),
    Plant(
        "redo-writes-again-what-is-there",
        "exactly once",
        "log/exactly_once/redo.py",
        "have[topic] = 0 if info is None else info.next",
        "have[topic] = 0",
        "a batch is committed once",
    ),
    Plant(
        "redo-leaves-out-the-piece-at-the-end",
        "exactly once",
        "log/exactly_once/redo.py",
        "if base + piece.count > self._have.get(piece.topic, 0):",
        "if base + piece.count > self._have.get(piece.topic, 0) + 1:",
        "a committed batch is there as a whole",
    ),
    Plant(
        "redo-forgets-a-refused-chunk",
        "exactly once",
        "log/exactly_once/redo.py",
        ("            self.written.append(self._storage.write(chunk))\n            self._chunk = []\n"),
        ("            self._chunk = []\n            self.written.append(self._storage.write(chunk))\n"),
        "a committed batch is there as a whole",
    ),
    Plant(
        "redo-not-finished-after-a-crash",
        "exactly once",
        "log/exactly_once/redo.py",
        ("            while not finishing.done:\n                finishing.step()"),
        ("            if not finishing.done:\n                finishing.step()"),
        "a committed batch is there as a whole",
    ),
    Plant(
        "attempts-mixed-up",
        "exactly once",
        "log/exactly_once/transactions.py",
        (
            "        attempt = StagedAttempt(request.sink, request.run, request.batch, request.task, request.attempt)\n"
            "        topics = sink.staged.get(attempt)"
        ),
        (
            "        attempt = StagedAttempt(request.sink, request.run, request.batch, request.task, 0)\n"
            "        topics = sink.staged.get(attempt)"
        ),
        "rows of an attempt are committed as it staged them",
    ),
    Plant(
        "home-moves-during-a-commit",
        "exactly once",
        "log/exactly_once/transactions.py",
        "if sink.state.batch >= 0 or sink.committing:",
        "if sink.state.batch >= 0:",
        "a batch is committed once",
    ),
    Plant(
        "jobs-counted-down-twice",
        "exactly once",
        "log/exactly_once/transactions.py",
        ("        if found.asked:\n            self._bytes -= _size(job)"),
        "        self._bytes -= _size(job)",
        "what waits for the disk has a bound",
    ),
    Plant(
        "live-rows-are-swept",
        "exactly once",
        "log/exactly_once/transactions.py",
        ("        sink.touched_at = now\n        return sink"),
        "        return sink",
        "rows that wait for their commit are kept",
    ),
    Plant(
        "drop-repeated-beside-new-rows",
        "exactly once",
        "log/exactly_once/transactions.py",
        "            self._repeatable.pop(job, None)  # the one under way comes before what was staged since",
        "            pass",
    ),
    Plant(
        "commit-not-announced",
        "exactly once",
        "log/exactly_once/transactions.py",
        ("            self._announce(outcome, now)\n            actions += self.handle_timeout(now)"),
        "            actions += self.handle_timeout(now)",
    ),
    Plant(
        "attempts-in-the-order-of-the-request",
        "exactly once",
        "log/exactly_once/transactions.py",
        "attempts = sorted(request.attempts)",
        "attempts = list(request.attempts)",
    ),
    Plant(
        "ends-of-a-commit-forgotten",
        "exactly once",
        "log/exactly_once/staged.py",
        "    return replace(state, batch=intent.batch, ends=tuple(ends.items()))",
        "    return replace(state, ends=tuple(ends.items()))",
        "a batch is committed once",
    ),
    Plant(
        "acknowledged-before-the-sync",
        "log",
        "log/store.py",
        (
            "        stored = self._writer.stored(key)\n"
            "        self._writer.prune(key)\n"
            "        return self._acknowledge(key, stored)"
        ),
        (
            "        stored = self._writer.next_offset(*key)\n"
            "        self._writer.prune(key)\n"
            "        return self._acknowledge(key, stored)"
        ),
        "what is acknowledged is on disk",
    ),
    Plant(
        "acknowledged-behind-a-hole",
        "log",
        "log/store.py",
        "        end = self._unfilled.limit(key, end)\n",
        "",
        "what is acknowledged is on disk",
    ),
    Plant(
        "holes-forgotten-after-a-restart",
        "log",
        "log/store.py",
        "            self._unfilled.miss((hole.topic, hole.partition), hole.first, hole.last + 1)",
        "            pass",
        "what is acknowledged is on disk",
    ),
    Plant(
        "refused-write-counts-as-had",
        "log",
        "log/writing.py",
        "            gap.next = self.stored(key)\n",
        "            gap.next = max(gap.next, self.stored(key))\n",
        "stores have what can be had",
    ),
    Plant(
        "staged-bytes-never-less",
        "log",
        "log/writing.py",
        "        self.staged_bytes -= sum(len(append.body) for append in done)\n",
        "",
        "what waits for the disk is counted",
    ),
    Plant(
        "held-bytes-of-a-refused-write-kept",
        "log",
        "log/writing.py",
        "            self._gaps.drop_held(gap)\n",
        "            gap.held = None\n",
        "what is held is counted",
    ),
    Plant(
        "retention-runs-once",
        "log",
        "log/store.py",
        ('        self._timers.set("retain", now + self.limits.maintain_s)\n        for key'),
        "        for key",
        "retention bounds a topic",
    ),
    Plant(
        "one-store-counts-as-two",
        "log",
        "log/producer.py",
        "        self.stored = held[self._min_acks - 1]\n",
        "        self.stored = held[0]\n",
        "what counts as stored is on min_acks disks",
    ),
    Plant(
        "stored-after-a-restart-what-is-journaled",
        "log",
        "log/producer.py",
        "        self.stored = next_offset if self._kept.first is None else self._kept.first",
        "        self.stored = self.next_offset",
        "what counts as stored is on min_acks disks",
    ),
    Plant(
        "head-tells-what-is-gathered",
        "log",
        "log/producer.py",
        "return self._resuming.told if self._resuming.holds(now) else self.published",
        "return self._resuming.told if self._resuming.holds(now) else self.next_offset",
        "nobody hears of what is not journaled",
    ),
    Plant(
        "head-not-repeated-after-a-batch",
        "log",
        "log/producer.py",
        "        self._head_at = min(self._head_at, now + HEAD_INTERVAL_S)\n",
        "",
        "stores have what can be had",
    ),
    Plant(
        "partly-stored-batch-let-go",
        "log",
        "log/answering.py",
        "self._batches[0].next <= offset",
        "self._batches[0].base < offset",
        "a producer keeps what is not stored",
    ),
    Plant(
        "answer-ends-a-batch-early",
        "log",
        "log/answering.py",
        "            if kept.base >= last or size >= self._limits.read_bytes_max:",
        "            if kept.next >= last or size >= self._limits.read_bytes_max:",
        "stores have what can be had",
    ),
    Plant(
        "shared-bytes-never-less",
        "log",
        "log/answering.py",
        "        self._shared.total -= size\n",
        "",
        "what a producer keeps is counted",
    ),
    Plant(
        "former-life-not-noticed",
        "log",
        "log/resuming.py",
        "return next_ > (published if self._sure else self.told)",
        "return next_ > published",
        "an offset names one record",
    ),
    Plant(
        "resumed-identity-does-not-wait",
        "log",
        "log/resuming.py",
        "        return not self._sure and now < self.until",
        "        return False",
        "an offset names one record",
    ),
    Plant(
        "sure-after-the-first-of-many-stores",
        "log",
        "log/resuming.py",
        "len(self._answered) >= listening",
        "listening > 0",
        "an offset names one record",
    ),
    Plant(
        "page-cut-off-and-not-asked-for",
        "log",
        "log/queries.py",
        "rows[-1][-1] if more and rows else max(version, since)",
        "max(version, since)",
        "consumers have what is stored",
    ),
    Plant(
        "damage-not-told-to-who-reads",
        "log",
        "log/answering.py",
        "last = -1 if read.hole is None else read.hole.last",
        "last = -1",
        "consumers have what is stored",
    ),
    Plant(
        "batch-delivered-twice",
        "log",
        "log/delivery.py",
        (
            "        if batch.next <= gap.next:\n"
            "            self.duplicates += 1\n"
            "            return []\n"
            "        actions = [self._deliver"
        ),
        "        actions = [self._deliver",
        "each record is delivered once",
    ),
    Plant(
        "held-batch-delivered-twice",
        "log",
        "log/gap.py",
        ("            if batch.next > gap.next:\n                return batch\n        return None"),
        ("            return batch\n        return None"),
        "each record is delivered once",
    ),
    Plant(
        "held-bytes-not-counted-down",
        "log",
        "log/gap.py",
        ("            batch = gap.held.popleft()\n            self.held_bytes -= len(batch.raw)\n"),
        "            batch = gap.held.popleft()\n",
        "what is held is counted",
    ),
    Plant(
        "poll-that-was-lost-is-never-repeated",
        "log",
        "log/sources.py",
        "late = [self._end(request_id) for request_id in",
        "late = [self.asked.pop(request_id) for request_id in",
        "stores have what can be had",
    ),
    Plant(
        "store-has-the-offset-behind-its-last",
        "log",
        "log/sources.py",
        "        return first <= offset < next_",
        "        return first <= offset <= next_",
        "consumers have what is stored",
    ),
    Plant(
        "overlap-is-stored-twice",
        "log",
        "log/writing.py",
        ("        if batch.base < gap.next:\n            batch = Batch.parse(batch.slice(gap.next), check=False)\n"),
        "",
        "stores change nothing",
    ),
    Plant(
        "one-late-answer-proves-that-it-is-gone",
        "log",
        "log/backfill.py",
        "said, part.said = min(part.said, base), base",
        "said = part.said = base",
        "what is acknowledged is on disk",
    ),
    Plant(
        "who-listens-is-remembered-too-long",
        "log",
        "log/subscriptions.py",
        ("        self._originals.clear()\n        self._original_stores = None"),
        "        self._original_stores = None",
        "originals have what can be had",
    ),
    Plant(
        "piece-of-an-answer-left-out",
        "log",
        "log/answering.py",
        "replace(wanted, sequence=reached, count=left)",
        "replace(wanted, sequence=reached + 1, count=left - 1)",
        "originals have what can be had",
    ),
    Plant(
        "dead-member-at-a-taken-port-replayed",
        "log",
        "log/beacon.py",
        ("            if former != name:\n                self._forget(former)  # it"),
        ("            if former == address:\n                self._forget(former)  # it"),
    ),
    Plant(
        "silent-members-live-for-ever",
        "log",
        "log/beacon.py",
        "for endpoint, (address, until) in self._peers.items() if now >= until]",
        "for endpoint, (address, until) in self._peers.items() if now < 0]",
    ),
    Plant(
        "gap-given-up-too-early",
        "log",
        "log/gap.py",
        "            if goal is not None and now - gap.missing_at >= self.owner.patience_s(key, gap, now):",
        "            if goal is not None:",
        "nothing is passed over that somebody has",
    ),
    Plant(
        "nobody-answers-and-nobody-else-is-asked",
        "log",
        "log/gap.py",
        (
            "            if gap is not None and gap.state is GapState.READING:\n"
            "                gap.state = GapState.OPEN"
        ),
        (
            "            if gap is not None and gap.state is GapState.FETCHING:\n"
            "                gap.state = GapState.OPEN"
        ),
        "consumers have what is stored",
    ),
    Plant(
        "who-left-is-waited-for",
        "log",
        "log/store.py",
        "        self._gaps.unanswered(self._sources.gone(address, now) or [])\n",
        "        self._sources.gone(address, now)\n",
        "stores have what can be had",
    ),
    Plant(
        "passed-over-more-than-is-gone",
        "log",
        "log/gap.py",
        "goal = min((each for each in known if each > gap.next), default=None)",
        "goal = max((each for each in known if each > gap.next), default=None)",
        "nothing is passed over that somebody has",
    ),
    Plant(
        "passed-over-and-not-remembered",
        "log",
        "log/backfill.py",
        "            self.unfilled.miss(key, gap.next, goal, now + SILENT_S)\n",
        "            pass\n",
        "what is acknowledged is on disk",
    ),
    Plant(
        "who-speaks-again-is-not-asked-for-holes",
        "log",
        "log/backfill.py",
        "        return [] if wanted is None else [Publish(Fetch(key[1], self._gaps.address, key[0], *wanted))]",
        "        return []",
        "stores have what can be had",
    ),
    Plant(
        "known-partition-begins-anew",
        "log",
        "log/backfill.py",
        "if first <= gap.next or gap.damaged_to > gap.next or not self._writer.unknown(key):",
        "if first <= gap.next or gap.damaged_to > gap.next:",
        "nothing is passed over that somebody has",
    ),
    Plant(
        "damage-that-was-passed-stays",
        "log",
        "log/gap.py",
        ("        if gap.damaged is not None:\n            gap.damaged.remove(0, gap.next)"),
        "        pass",
    ),
    Plant(
        "ranges-that-touch-stay-apart",
        "log",
        "log/ranges.py",
        (
            "        at = bisect_left(self._ranges, first, key=_end)\n"
            "        stop = bisect_right(self._ranges, end, lo=at, key=_first)"
        ),
        (
            "        at = bisect_right(self._ranges, first, key=_end)\n"
            "        stop = bisect_left(self._ranges, end, lo=at, key=_first)"
        ),
    ),
    Plant(
        "held-batches-overlap",
        "log",
        "log/gap.py",
        "(gap.held and batch.base < gap.held[-1].next)",
        "(gap.held and batch.base < gap.held[-1].base)",
    ),
    Plant(
        "next-page-not-asked-for",
        "log",
        "log/store.py",
        "        more = [self._sources.news(source, everything, now)] if answer.more else []\n",
        "        more: list[Action] = []\n",
    ),
    Plant(
        "subscription-ends-with-one-of-two",
        "members",
        "log/member.py",
        ("        if self._wanted[prefix]:\n            return []"),
        ("        if self._wanted[prefix] > 1:\n            return []"),
        "consumers have what is stored",
    ),
    Plant(
        "who-comes-later-hears-of-no-store",
        "members",
        "log/consuming.py",
        (
            "        for info in self._stores.values():\n"
            "            actions += self._tell(part, part.handle_message, info, now, 0, now=now)\n"
        ),
        "",
        "consumers have what is stored",
    ),
    Plant(
        "answer-goes-to-another-part",
        "members",
        "log/consuming.py",
        "        part = self._numbered.get(request_id // REQUESTS)\n",
        "        part = next(iter(self._numbered.values()), None)\n",
        "consumers have what is stored",
    ),
    Plant(
        "others-wait-for-ever-for-who-is-paused",
        "members",
        "log/consuming.py",
        ("            self._waited_for.clear(part.address)\n            carried += self._resume()\n"),
        "            self._waited_for.clear(part.address)\n",
        "consumers have what is stored",
    ),
    Plant(
        "removed-part-stays-subscribed",
        "members",
        "log/member.py",
        (
            "        for prefix in list(self._wants[address]):\n"
            "            actions += self._unsubscribe(address, Unsubscribe(prefix))\n"
        ),
        "",
    ),
    Plant(
        "one-of-the-topics-hears-of-a-listener",
        "members",
        "log/producing.py",
        "            found += self._topics[raw].values()\n",
        "            found = list(self._topics[raw].values())\n",
    ),
    Plant(
        "command-in-anothers-name",
        "members",
        "member.py",
        "            if known[way]:\n",
        "            if known:\n",
        "nobody speaks for others",
    ),
    Plant(
        "kv-part-is-due-later",
        "members",
        "member.py",
        "        self.due = role.next_timeout(now, wall_ns)\n",
        "        self.due = max(self.due, role.next_timeout(now, wall_ns))\n",
        "every call ends",
    ),
    Plant(
        "written-beside-a-full-watcher",
        "members",
        "member.py",
        "        return not self._full and self._router.room(None, NOBODY) and (",
        "        return self._router.room(None, NOBODY) and (",
    ),
    Plant(
        "everybody-may-have-the-master",
        "members",
        "member.py",
        "part.handle_network(frozenset(wanting), now, wall_ns)",
        "part.handle_network(frozenset(filters), now, wall_ns)",
    ),
    Plant(
        "data-store-not-told-who-is-gone",
        "members",
        "member.py",
        "                    found += part.handle_gone(action.event.peer_id, now, wall_ns)\n",
        "                    pass\n",
    ),
    Plant(
        "older-generation-not-looked-at",
        "mesh",
        "mesh/forwarding/duplicates.py",
        "if sequence in young or sequence in known.old:",
        "if sequence in young:",
        "at most once",
    ),
    Plant(
        "floor-not-raised",
        "mesh",
        "mesh/forwarding/duplicates.py",
        "            self.floor = max(self.floor, *self.old)  # some of them may have come before the floor rose",
        "            pass",
        "at most once",
    ),
    Plant(
        "generation-never-ends",
        "mesh",
        "mesh/forwarding/duplicates.py",
        "if len(young) >= self._limits.seen_max or self.size >= self._limits.seen_total_max:",
        "if len(young) >= self._limits.seen_total_max:",
        "what is remembered has a bound",
    ),
    Plant(
        "gone-for-a-moment-is-forgotten",
        "mesh",
        "mesh/link_states.py",
        "elif now - known.gone_since > LINK_STATE_KEPT_S:",
        "else:",
    ),
    Plant(
        "gone-is-never-forgotten",
        "mesh",
        "mesh/link_states.py",
        "elif now - known.gone_since > LINK_STATE_KEPT_S:",
        "elif now < known.gone_since:",
        "what is remembered has a bound",
    ),
    Plant(
        "who-returns-is-not-passed-on-anew",
        "mesh",
        "mesh/link_states.py",
        "            self.returned.append(endpoint)",
        "            pass",
    ),
    Plant(
        "who-is-gone-is-offered",
        "mesh",
        "mesh/link_states.py",
        "return self.gone_since is None or now - self.gone_since <= LINK_STATE_OFFERED_S",
        "return True",
    ),
    Plant(
        "link-that-one-side-tells",
        "mesh",
        "mesh/sides.py",
        "                if beyond is None or at not in beyond.chappe:",
        "                if beyond is None:",
        "reachable is who has a path",
    ),
    Plant(
        "wrong-one-speaks-with-an-original",
        "mesh",
        "mesh/topology.py",
        "found[original] = min(first, found.get(original, first))",
        "found[original] = max(first, found.get(original, first))",
        "exactly once over originals",
    ),
    Plant(
        "anybody-brings-anything",
        "mesh",
        "mesh/topology.py",
        "        return until > now and peer in peers",
        "        return True",
        "nobody speaks for others",
    ),
    Plant(
        "link-state-believed-from-anywhere",
        "mesh",
        "mesh/topology.py",
        (
            "        side = self._sides.get(peer)\n"
            "        return side is not None and origin in side.endpoints\n"
            "\n"
            "    def _note"
        ),
        ("        return True\n\n    def _note"),
        "nobody speaks for others",
    ),
    Plant(
        "moved-endpoint-refused",
        "mesh",
        "mesh/topology.py",
        ("        for peer in pairs.values():\n            gone = former"),
        ("        for peer in ():\n            gone = former"),
        "exactly once while a path stands",
    ),
    Plant(
        "earlier-life-not-outdone",
        "mesh",
        "mesh/telling.py",
        "            self.version = max(self.version, self._outdo)\n",
        "",
        "everybody knows who is there",
    ),
    Plant(
        "numbers-of-an-earlier-life-used-again",
        "mesh",
        "mesh/telling.py",
        "            self.numbers_from = self._outdo + LIFE_NUMBERS\n",
        "",
        "exactly once while a path stands",
    ),
    Plant(
        "same-link-state-is-news",
        "mesh",
        "mesh/link_states.py",
        "self.payload >= payload)",
        "self.payload > payload)",
        "while nothing changes nobody tells link states",
    ),
    Plant(
        "version-that-cannot-be-outdone",
        "mesh",
        "mesh/link_states.py",
        "    return version < limit or (former is not None and version <= former + LINK_STATE_STEP_MAX)",
        "    return True",
        "nobody speaks for others",
    ),
    Plant(
        "doubts-without-a-bound",
        "mesh",
        "mesh/link_states.py",
        "while len(doubts) > self._doubts_max or (len(doubts) > 1",
        "while (len(doubts) > 1",
        "what is remembered has a bound",
    ),
    Plant(
        "loss-with-a-link-not-told",
        "mesh",
        "mesh/forwarding/routing.py",
        ("            if link.chappe:\n                self.losses.owe(link.peer_id, lost)\n"),
        "",
        "losses are told",
    ),
    Plant(
        "for-one-delivered-to-all-on-its-way",
        "mesh",
        "mesh/forwarding/routing.py",
        ("        if receiver == NOBODY or receiver == self._own:\n            subscribers"),
        ("        if receiver or receiver == self._own:\n            subscribers"),
        "for one is for one",
    ),
    Plant(
        "goes-another-way-at-once",
        "mesh",
        "mesh/forwarding/published.py",
        "if self.order.held and (key := branch.key)",
        "if self.order.given_up < 0 and (key := branch.key)",
        "in order while ways change",
    ),
    Plant(
        "link-that-is-back-overtakes-detours",
        "mesh",
        "mesh/forwarding/published.py",
        "(not ours and (branch.origin, child.hop.id) in self._around)",
        "child.detoured",
        "in order while ways change",
    ),
    Plant(
        "detours-do-not-wait-for-each-other",
        "mesh",
        "mesh/forwarding/published.py",
        "            if self.order.holds(keys, given) or not",
        "            if self.order.given_up < 0 or not",
        "in order while ways change",
    ),
    Plant(
        "confirmed-before-those-below-have-it",
        "mesh",
        "mesh/forwarding/branches.py",
        ("            if child.kept:\n                least ="),
        ("            if child.kept and self.upstream == NOBODY:\n                least ="),
        "exactly once while a path stands",
    ),
    Plant(
        "confirmed-up-to-what-has-not-arrived",
        "mesh",
        "mesh/forwarding/branches.py",
        "least = min(least, child.kept[0][0] - 1)",
        "least = min(least, child.kept[0][0])",
        "exactly once while a path stands",
    ),
    Plant(
        "detour-not-waited-for",
        "mesh",
        "mesh/forwarding/branches.py",
        ("            if child.detoured:\n                least = min(least, child.detoured[0] - 1)\n"),
        "",
        "exactly once while a path stands",
    ),
    Plant(
        "detour-ends-too-early",
        "mesh",
        "mesh/forwarding/kept.py",
        "            while branch.waiting and branch.waiting[0][0] <= done:",
        "            while branch.waiting:",
    ),
    Plant(
        "wrong-detour-is-over",
        "mesh",
        "mesh/forwarding/kept.py",
        "        child.detoured.remove(number)",
        "        child.detoured.popleft()",
    ),
    Plant(
        "what-was-not-sent-is-not-sent-around",
        "mesh",
        "mesh/forwarding/version2.py",
        "            all_on = self._send_around(branch, child, number, frame[PREFIX:], spared)",
        (
            "            if id(frame) in unsent:\n"
            "                lost += 1\n"
            "                continue\n"
            "            all_on = self._send_around(branch, child, number, frame[PREFIX:], spared)"
        ),
        "exactly once while a path stands",
    ),
    Plant(
        "hop-does-not-send-around",
        "mesh",
        "mesh/forwarding/version2.py",
        ("            if child is not None and child.conn == link.conn:\n                child.conn = None"),
        (
            "            if child is not None and child.conn == link.conn and branch.upstream == NOBODY:\n"
            "                child.conn = None"
        ),
        "exactly once while a path stands",
    ),
    Plant(
        "detours-without-an-end",
        "mesh",
        "mesh/forwarding/published.py",
        "            before += 1\n",
        "",
    ),
    Plant(
        "message-on-a-tree-of-another-neighbour",
        "mesh",
        "mesh/forwarding/version2.py",
        "        branch = self._above.get(link.peer_id, _NONE).get(above)",
        "        branch = next((known[above] for known in self._above.values() if above in known), None)",
        "nobody speaks for others",
    ),
    Plant(
        "origin-of-a-tree-not-compared",
        "mesh",
        "mesh/forwarding/version2.py",
        ("        if branch is None or branch.origin != origin:\n            raise"),
        ("        if branch is None:\n            raise"),
        "nobody speaks for others",
    ),
    Plant(
        "passed-on-with-the-label-it-came-with",
        "mesh",
        "mesh/forwarding/version2.py",
        "frame = pack_onward(body, branch.label)",
        "frame = pack_onward(body, branch.above)",
        "exactly once while a path stands",
    ),
    Plant(
        "number-taken-again",
        "mesh",
        "mesh/forwarding/version2.py",
        ("        if number <= branch.came:\n            return None"),
        ("        if number < branch.came:\n            return None"),
    ),
    Plant(
        "number-not-newer-than-the-next",
        "mesh",
        "mesh/forwarding/version2.py",
        ("        if number <= branch.came:\n            return None"),
        ("        if number <= branch.came + 1:\n            return None"),
        "exactly once while a path stands",
    ),
    Plant(
        "tree-that-is-told-again-stays-forgotten",
        "mesh",
        "mesh/forwarding/version2.py",
        ("                former.used = True\n                self._holds"),
        "                self._holds",
        "exactly once while a path stands",
    ),
    Plant(
        "tree-not-looked-at-after-a-change",
        "mesh",
        "mesh/forwarding/published.py",
        "        if branch is None or branch.checked != self._look:",
        "        if branch is None:",
        "exactly once while a path stands",
    ),
    Plant(
        "tree-forgotten-with-something-on-its-way",
        "mesh",
        "mesh/forwarding/kept.py",
        " and not branch.busy and branch not in self._unconfirmed:",
        " and branch not in self._unconfirmed:",
        "exactly once while a path stands",
    ),
    Plant(
        "batch-has-the-number-of-its-first",
        "mesh",
        "mesh/flows.py",
        "topic, first = body[HEAD_BYTES:end], last - len(lengths) + 1",
        "topic, first, last = body[HEAD_BYTES:end], last, last + len(lengths) - 1",
        "at most once",
    ),
    Plant(
        "run-taken-for-new-that-came-before",
        "mesh",
        "mesh/forwarding/duplicates.py",
        "        if not room or not young.isdisjoint(numbers) or not known.old.isdisjoint(numbers):",
        "        if not room or not known.old.isdisjoint(numbers):",
        "at most once",
    ),
    Plant(
        "of-a-batch-one-is-told-as-lost",
        "mesh",
        "mesh/forwarding/kept.py",
        "            self._losses.add(child.hop.id, origin, topic, why, missing, len(messages))",
        "            self._losses.add(child.hop.id, origin, topic, why, missing)",
        "losses are told",
    ),
    Plant(
        "batch-counts-as-one-message",
        "mesh",
        "mesh/forwarding/boxes.py",
        "        self._more += messages_in(frame, PREFIX) - 1\n        return True",
        "        return True",
        "what waits has a bound",
    ),
    Plant(
        "detours-have-no-more-room-than-messages",
        "mesh",
        "mesh/forwarding/boxes.py",
        "        if self.policy is Policy.BLOCK and frame[PREFIX + KIND_AT] == DETOUR and",
        "        if False and",
        "exactly once while a path stands",
    ),
    Plant(
        "batch-not-read-before-it-is-kept",
        "mesh",
        "mesh/forwarding/version2.py",
        "            check_publications(inner(body))",
        "            inner(body)",
    ),
    Plant(
        "label-never-forgotten-below",
        "mesh",
        "mesh/forwarding/kept.py",
        "                self._take_back(link, branch.label)\n",
        "",
        "what is remembered has a bound",
    ),
    Plant(
        "kept-bytes-never-less",
        "mesh",
        "mesh/forwarding/version2.py",
        "            link.kept_bytes -= size\n            if self._holds",
        "            if self._holds",
        "what is kept has a bound",
    ),
    Plant(
        "dropped-is-waited-for",
        "mesh",
        "mesh/forwarding/kept.py",
        ("            child.kept.remove((number, frame))\n            link.kept_bytes -= len(frame)\n"),
        "            pass\n",
    ),
    Plant(
        "no-way-and-nobody-told",
        "mesh",
        "mesh/forwarding/published.py",
        "            self._lose(child, body, wanted - there, Why.NO_WAY)",
        "            pass",
        "losses are told",
    ),
    Plant(
        "hold-that-stays-with-its-hop",
        "mesh",
        "mesh/forwarding/holds.py",
        "                found.append((branch, int(1000 * max(0.0, now - hold.moved))))",
        "                pass",
        "one slow subscriber slows nobody else",
    ),
    Plant(
        "hold-that-is-never-let-go",
        "mesh",
        "mesh/forwarding/holds.py",
        "                found.append((branch, LET_GO))",
        "                pass",
        "one slow subscriber slows nobody else",
    ),
    Plant(
        "topics-of-one-lane",
        "mesh",
        "mesh/forwarding/published.py",
        "        self.lanes[key.receivers] = {}\n        return True",
        "        return False",
        "one slow subscriber slows nobody else",
    ),
    Plant(
        "news-of-an-origin-not-waited-for",
        "mesh",
        "mesh/forwarding/routing.py",
        "                if not self._early.keep(link, body, self.settled, now):",
        "                if body:",
        "nothing is lost while a way exists",
    ),
    Plant(
        "ahead-for-ever",
        "mesh",
        "mesh/forwarding/holds.py",
        "            if branch not in self._holds:\n                self._wait(branch, -inf, 0.0)",
        "            self._news.pop(branch, None)",
        "publishers wait for who is slow, and no longer",
    ),
    Plant(
        "never-ahead",
        "mesh",
        "mesh/forwarding/kept.py",
        "            self._holds.run_ahead(branch)",
        "            pass",
        "bounded memory",
    ),
    Plant(
        "hop-that-blocks-for-who-does-not-wait",
        "mesh",
        "mesh/forwarding/version2.py",
        "            put = self._put_unless_full",
        "            pass",
        "one slow subscriber slows nobody else",
    ),
    Plant(
        "full-but-nobody-waits",
        "mesh",
        "mesh/forwarding/routing.py",
        "        if route.tree is not None and self.trees.is_held(route.tree):\n            return False\n",
        "",
        "a slow reader loses nothing",
    ),
    Plant(
        "detour-to-the-next-hop-alone",
        "mesh",
        "mesh/flows.py",
        "        return frozenset([node for node, flags, _ in nodes if flags & _RECEIVER])",
        "        return frozenset([node for node, flags, _ in nodes if flags & _RECEIVER][:1])",
        "exactly once while a path stands",
    ),
    Plant(
        "all-on-a-tree-are-receivers",
        "mesh",
        "mesh/flows.py",
        "flags = (_RECEIVER | (_TWICE if at in twice else 0)) if at in receivers else 0",
        "flags = _RECEIVER | (_TWICE if at in twice else 0)",
    ),
    Plant(
        "copies-with-numbers-of-their-own",
        "mesh",
        "mesh/forwarding/published.py",
        "            frame = pack_onward(frame[PREFIX:], second.label)\n",
        (
            "            number = self.number = self.number + 1\n"
            "            frame = pack_publication(self._own, number, second.label, kind, receiver, topic, payload)\n"
        ),
        "at most once always",
    ),
    Plant(
        "both-ways-begin-with-one-link",
        "mesh",
        "mesh/ways.py",
        "                    before.remove(root)\n",
        "                    pass\n",
    ),
    Plant(
        "two-ways-in-one-direction",
        "mesh",
        "mesh/ways.py",
        "            one, ear = two, ear[::-1]\n",
        "            one = two\n",
    ),
    Plant(
        "places-that-are-all-the-same",
        "mesh",
        "mesh/ways.py",
        "        if step < _STEP_MIN:\n",
        "        if step < 0:\n",
    ),
    Plant(
        "both-go-the-only-way",
        "mesh",
        "mesh/ways.py",
        "frozenset([each for each in receivers if self._differ(each, one, two)])",
        "receivers",
    ),
    Plant(
        "dropped-on-one-way-told-as-lost",
        "mesh",
        "mesh/forwarding/kept.py",
        "origin, topic, why.on_one, twice, len(messages))",
        "origin, topic, why, twice, len(messages))",
    ),
    Plant(
        "former-second-way-kept",
        "mesh",
        "mesh/forwarding/published.py",
        "            if each not in found:\n                self._let_be(each)\n",
        "            if each is before[0] and each not in found:\n                self._let_be(each)\n",
    ),
    Plant(
        "for-one-not-to-who-does-not-forward",
        "mesh",
        "mesh/ways.py",
        "                if each != own and beyond is not None and at in beyond.chappe:",
        "                if each != own and beyond is not None and at in beyond.chappe and beyond.state.forwards:",
        "for one arrives while a path stands",
    ),
    Plant(
        "later-version-than-is-offered",
        "mesh",
        "mesh/links/handshake.py",
        "        self._version = min(self._version_max, hello.version_max)",
        "        self._version = self._version_max",
    ),
    Plant(
        "routes-survive-a-change",
        "mesh",
        "mesh/forwarding/routing.py",
        ("        self.settled += 1\n        self.routes.forget()"),
        "        self.settled += 1",
        "exactly once while a path stands",
    ),
    Plant(
        "second-source-not-held-back",
        "mesh",
        "mesh/forwarding/congestion.py",
        ("            self.waits = True\n        found.sources[source.conn]"),
        ("            self.waits = True\n            found.sources[source.conn]"),
        "a full peer holds back who fills it",
    ),
    Plant(
        "held-back-without-an-end",
        "mesh",
        "mesh/forwarding/outboxes.py",
        "            self._congestion.is_over(link.conn)\n",
        "",
    ),
    Plant(
        "claims-go-around",
        "mesh",
        "mesh/forwarding/congestion.py",
        "endpoint == self._own or number <= self._heard.get(endpoint, 0)",
        "endpoint == self._own or number < self._heard.get(endpoint, 0)",
    ),
    Plant(
        "control-overtakes-messages",
        "mesh",
        "mesh/forwarding/boxes.py",
        "        self._control.append((self._gone + len(self._waiting), frame))",
        "        self._control.append((self._gone, frame))",
        "what was published before the goodbye arrives",
    ),
    Plant(
        "control-bytes-never-less",
        "mesh",
        "mesh/forwarding/boxes.py",
        ("                control.popleft()\n                self.control_bytes -= size"),
        "                control.popleft()",
        "a peer that takes what is sent stays",
    ),
    Plant(
        "box-without-a-bound-in-bytes",
        "mesh",
        "mesh/policy.py",
        "len(self._waiting) >= 2 * self.messages_max or self.bytes >= 2 * self.bytes_max",
        "len(self._waiting) >= 2 * self.messages_max",
        "what waits for a peer has a bound",
    ),
    Plant(
        "box-without-a-bound",
        "mesh",
        "mesh/policy.py",
        "        elif self.policy is not Policy.BLOCK or self._is_beyond_twice():\n",
        "        elif self.policy is not Policy.BLOCK:\n",
        "what waits for a peer has a bound",
    ),
    Plant(
        "oldest-dropped-and-not-counted",
        "mesh",
        "mesh/policy.py",
        "                self._count_dropped(*self._remove_oldest())",
        "                self._remove_oldest()",
        "losses are told",
    ),
    Plant(
        "dead-link-stands",
        "mesh",
        "mesh/links/heartbeats.py",
        ("            if now >= lost_at:\n                silent.append(link)\n                continue\n"),
        "",
        "a silent peer is lost",
    ),
    Plant(
        "slow-reader-taken-for-dead",
        "mesh",
        "mesh/links/heartbeats.py",
        "max(link.heard_at, link.moved_at) + LOST_AFTER",
        "link.heard_at + LOST_AFTER",
        "who lives is not given up",
    ),
    Plant(
        "unread-counts-as-confirmed",
        "mesh",
        "mesh/links/heartbeats.py",
        "link.probes.append(link.outbox.messages)",
        "link.probes.append(link.outbox.accepted)",
        "what may not have arrived is told",
    ),
    Plant(
        "waiting-connections-not-woken",
        "mesh",
        "mesh/links/peers.py",
        ("        del self._entries[peer_id]\n        return tuple(entry.paused)"),
        ("        del self._entries[peer_id]\n        return ()"),
    ),
    Plant(
        "handshake-without-a-deadline",
        "mesh",
        "mesh/links/handshake.py",
        (
            "        if now < self.next_timeout():\n"
            "            return []\n"
            "        return self._end(Failed(Code.TIMED_OUT"
        ),
        (
            "        if now < self.next_timeout() or self.peer_id is not None:\n"
            "            return []\n"
            "        return self._end(Failed(Code.TIMED_OUT"
        ),
        "peers are peered with again",
    ),
    Plant(
        "both-keep-their-own-connection",
        "mesh",
        "mesh/links/peers.py",
        (
            "        if entry.status is not PeerStatus.CONNECTING or role is Role.RESPONDER:\n"
            "            return Claim.REDUNDANT"
        ),
        (
            "        if entry.status is not PeerStatus.CONNECTING:\n"
            "            return Claim.REDUNDANT\n"
            "        if role is Role.RESPONDER:\n"
            "            entry.conn = conn\n"
            "            return Claim.PROCEED"
        ),
        "one connection for each pair",
    ),
    Plant(
        "short-peering-not-dialled-again",
        "mesh",
        "mesh/links/dialling.py",
        (
            "            self.retries.set(target.address, now + target.retry_s)\n"
            "            return []\n"
            "        return self._dial(target)"
        ),
        ("            return []\n        return self._dial(target)"),
        "peers are peered with again",
    ),
    Plant(
        "closed-connections-kept",
        "mesh",
        "mesh/links/peerings.py",
        '            if what == "empty":\n                self._closed_at_last(number)',
        '            if what == "empty":\n                pass',
        "what is remembered has a bound",
    ),
    Plant(
        "who-awaits-a-peer-waits-for-ever",
        "mesh",
        "mesh/links/peerings.py",
        '            elif what == "await":\n                if self._awaited',
        '            elif what == "await":\n                if now < 0 and self._awaited',
        "every call ends",
    ),
    Plant(
        "who-pings-waits-for-ever",
        "mesh",
        "mesh/links/peerings.py",
        "        actions += [Resolve(ticket, gone) for ticket in link.pings.values()]\n",
        "",
        "every call ends",
    ),
    Plant(
        "commands-to-who-wants-data",
        "mesh",
        "mesh/subscriptions.py",
        "if wanted == kind and topic",
        "if topic",
        "who wants data gets data",
    ),
    Plant(
        "topic-not-found-among-many",
        "mesh",
        "mesh/filters.py",
        ("at = bisect_right(wanted, topic)\n    return at > 0 and topic.startswith(wanted[at - 1])"),
        ("at = bisect_right(wanted, topic) - 1\n    return at > 0 and topic.startswith(wanted[at])"),
        "exactly once while a path stands",
    ),
    Plant(
        "sent-to-an-original-and-not-noted",
        "mesh",
        "mesh/forwarding/version1.py",
        "                self.echoes.note(link.peer_id, topic, payload, now)\n",
        "",
        "loops through originals end",
    ),
    Plant(
        "copies-of-one-original-are-a-loop",
        "mesh",
        "mesh/forwarding/echoes.py",
        "content.copies += bool(places)",
        "content.copies += 1",
    ),
    Plant(
        "acknowledged-what-is-missing",
        "channel",
        "channel/consumer.py",
        ("        self._acked = self.next - 1\n        self._ack_at"),
        ("        self._acked = self._end - 1\n        self._ack_at"),
        "acknowledged is what has come",
    ),
    Plant(
        "trimmed-at-the-fastest",
        "channel",
        "channel/producer.py",
        "            keep_from = min(keep_from, path.acked)\n",
        "            keep_from = min(keep_from, max(each.acked for each in self._paths.values()))\n",
        "what somebody needs is kept",
    ),
    Plant(
        "retransmission-forgotten",
        "channel",
        "channel/producer.py",
        (
            "            size += self._size(event.payload)\n"
            "            actions.append(ToConsumer(consumer, event))\n"
            "        return actions"
        ),
        ("            size += self._size(event.payload)\n        return actions"),
        "everybody gets everything",
    ),
    Plant(
        "gap-not-asked-for",
        "channel",
        "channel/consumer.py",
        (
            "        if self.next < self._end and self._nack_at == math.inf:\n"
            "            self._nack_at = now + self._nack_s"
        ),
        (
            "        if self.next < self._end - 1 and self._nack_at == math.inf:\n"
            "            self._nack_at = now + self._nack_s"
        ),
        "everybody gets everything",
    ),
    Plant(
        "window-off-by-one",
        "channel",
        "channel/producer.py",
        "end = min(self.seq, path.acked + self._window)",
        "end = min(self.seq, path.acked + self._window + 1)",
        "no more is sent ahead than the window holds",
    ),
    Plant(
        "acknowledged-beyond-the-end",
        "channel",
        "channel/producer.py",
        "if path.acked <= seq <= self.seq:",
        "if path.acked <= seq <= self.seq + 1:",
        "acknowledged is what has come",
    ),
    Plant(
        "heartbeat-tells-what-was-not-sent",
        "channel",
        "channel/producer.py",
        "actions.append(ToAll(Heartbeat(self._sent())))",
        "actions.append(ToAll(Heartbeat(self.seq)))",
        "no more is sent ahead than the window holds",
    ),
    Plant(
        "what-has-come-given-up",
        "channel",
        "channel/consumer.py",
        "self._held.setdefault(seq, _HOLE)",
        "self._held[seq] = _HOLE",
        "everybody gets everything",
    ),
    Plant(
        "number-used-again-after-a-drop",
        "channel",
        "channel/producer.py",
        ("        if not self._paths and not self._lasting:\n            self.seq += 1\n        return [Dropped"),
        "        return [Dropped",
        "nothing is missed without a word",
    ),
    Plant(
        "who-acknowledges-is-silent",
        "channel",
        "channel/producer.py",
        ("        path.heard_at = now\n        if path.acked <= seq"),
        "        if path.acked <= seq",
        "who lives is not dropped",
    ),
    Plant(
        "held-without-a-bound",
        "channel",
        "channel/consumer.py",
        "if len(self._held) < self._held_max or seq in self._held:",
        "if seq >= self.next:",
        "what is held has a bound",
    ),
    Plant(
        "repeated-handshake-begins-anew",
        "channel",
        "channel/consumer.py",
        ("        if not self.initialized:\n            self._heartbeat_s = max("),
        ("        if not self.initialized or offset >= self._acked - 1:\n            self._heartbeat_s = max("),
        "each event once",
    ),
    Plant(
        "bytes-not-counted",
        "channel",
        "channel/producer.py",
        ("        self._buffer.append(event)\n        self._bytes += size\n"),
        "        self._buffer.append(event)\n",
        "what is kept has a bound",
    ),
    Plant(
        "bytes-bound-beyond-by-one-event",
        "channel",
        "channel/producer.py",
        "self._bytes + payload_bytes <= self._bytes_max",
        "self._bytes <= self._bytes_max",
        "what is kept has a bound",
    ),
    Plant(
        "silence-told-once-in-a-life",
        "channel",
        "channel/consumer.py",
        ("        self._heard_at = now\n        self._silent = False\n\n    def _known"),
        ("        self._heard_at = now\n\n    def _known"),
    ),
    Plant(
        "confirmed-before-it-is-durable",
        "kv",
        "kv/ordering.py",
        ("        writer.taken = seq\n        writer.heard_ns"),
        ("        writer.taken = writer.applied = seq\n        writer.heard_ns"),
        "what is confirmed is durable",
    ),
    Plant(
        "told-before-it-is-durable",
        "kv",
        "kv/ordering.py",
        ("        if self.durable:\n            self.commits.add(done)\n        else:"),
        ("        if self.durable and done.changes:\n            self.commits.add(done)\n        else:"),
        "what is confirmed is durable",
    ),
    Plant(
        "what-a-clone-has-done-is-not-kept",
        "kv",
        "kv/group_commit.py",
        ("            if done.writer is not None:\n                touched[done.writer] = done.seq"),
        (
            "            if done.writer is not None and done.changes:\n"
            "                touched.setdefault(done.writer, done.seq)"
        ),
        "a write is done once",
    ),
    Plant(
        "kept-as-done-what-waits",
        "kv",
        "kv/group_commit.py",
        "operations.append(WriterRow(entity, seq, outcomes, row.heard_ns))",
        "operations.append(WriterRow(entity, row.applied, outcomes, row.heard_ns))",
        "what is confirmed is durable",
    ),
    Plant(
        "undone-in-the-wrong-order",
        "kv",
        "kv/group_commit.py",
        "        for done in reversed(undone):",
        "        for done in undone:",
        "what is refused is not done",
    ),
    Plant(
        "clear-is-not-durable",
        "kv",
        "kv/group_commit.py",
        ("            last.clear()\n            cleared = True"),
        "            last.clear()",
        "what is confirmed is durable",
    ),
    Plant(
        "outcomes-of-later-writes-kept",
        "kv",
        "kv/group_commit.py",
        "tuple(each for each in row.outcomes if each[0] <= seq)",
        "tuple(row.outcomes)",
    ),
    Plant(
        "snapshot-behind-which-changes-are-gone",
        "kv",
        "kv/snapshots.py",
        "if not behind or (young and floor <= newest.offset and behind",
        "if not behind or (young and behind",
        "clones become what the master has",
    ),
    Plant(
        "changes-during-a-snapshot-forgotten",
        "kv",
        "kv/following.py",
        ("        for command in receiving.events:\n            self._do(command, now, actions)\n"),
        "",
        "clones show what the master has",
    ),
    Plant(
        "snapshot-of-what-is-not-durable",
        "kv",
        "kv/ordering.py",
        "return self._engine.frozen(self.commits.changes())",
        "return self._engine.frozen()",
        "nobody sees what is not durable",
    ),
    Plant(
        "piece-of-a-snapshot-left-out",
        "kv",
        "kv/snapshots.py",
        ("            taker.under_way.clear()\n            taker.next = command.entries"),
        ("            taker.under_way.clear()\n            taker.next = command.entries + 1"),
        "clones become what the master has",
    ),
    Plant(
        "newer-value-expires-with-the-older",
        "kv",
        "kv/engine.py",
        "            if entry is not None and entry.version == version:",
        "            if entry is not None and entry.expires_ns is not None:",
        "a value lives its time",
    ),
    Plant(
        "expiry-forgotten-after-a-restart",
        "kv",
        "kv/master.py",
        "            self.engine.put(key, value, expires_ns)",
        "            self.engine.put(key, value)",
        "nothing outlives its time",
    ),
    Plant(
        "expiry-forgotten-after-an-undone-write",
        "kv",
        "kv/engine.py",
        ("            if change.before.expires_ns is not None:\n                self._expires(index, change.before)\n"),
        "",
        "nothing outlives its time",
    ),
    Plant(
        "loser-told-that-it-won",
        "kv",
        "kv/ordering.py",
        "            elif done.result is False:",
        "            elif done.result is None:",
        "one wins",
    ),
    Plant(
        "writer-begins-again-where-it-says",
        "kv",
        "kv/taking.py",
        "writer.channel.handle_handshake(writer.taken, command.ticks * CHANNEL_TICK_S, now)",
        "writer.channel.handle_handshake(command.offset, command.ticks * CHANNEL_TICK_S, now)",
        "a write is done once",
    ),
    Plant(
        "confirmed-before-it-is-shown",
        "kv",
        "kv/clone_writes.py",
        "self._states[0].output < next_event)",
        "self._states[0].output <= next_event)",
        "who is told of a write sees it",
    ),
    Plant(
        "current-one-event-too-early",
        "kv",
        "kv/following.py",
        "not self._syncing and self._input.next > seq:",
        "not self._syncing and self._input.next >= seq:",
        "what is read is not older than told",
    ),
    Plant(
        "never-stale",
        "kv",
        "kv/following.py",
        ("        self.lost_at = now\n        self._stale_from = min(self._stale_from, now)\n        self._search_at"),
        ("        self.lost_at = now\n        self._search_at"),
        "what is read is not older than told",
    ),
    Plant(
        "sent-write-given-up-as-not-done",
        "kv",
        "kv/clone_writes.py",
        (
            "        actions += self.pending.fail(self._sent, WriteUnknown, lost)\n"
            "        actions += self.pending.fail(self.channel.seq"
        ),
        "        actions += self.pending.fail(self.channel.seq",
        "what is refused is not done",
    ),
    Plant(
        "outcome-told-before-it-holds",
        "kv",
        "kv/writers.py",
        "[each for each in self.outcomes.items() if each[0] <= self.applied]",
        "[each for each in self.outcomes.items()]",
        "a write has the outcome that is told",
    ),
    Plant(
        "outcomes-without-a-bound",
        "kv",
        "kv/taking.py",
        "if writer.full or self._ordering.commits.full:",
        "if self._ordering.commits.full:",
        "what is remembered has a bound",
    ),
    Plant(
        "attached-writer-forgotten",
        "kv",
        "kv/writers.py",
        "if each.heard_ns < old and each.channel is None]",
        "if each.heard_ns < old]",
    ),
    Plant(
        "who-waits-until-it-may-be-read-is-not-woken",
        "kv",
        "kv/clone.py",
        "        if self._unready and self.readable:\n            actions",
        "        if False:\n            actions",
        "every call ends",
    ),
    Plant(
        "changes-before-an-undone-write-remembered",
        "kv",
        "kv/engine.py",
        ("        self.version += 1\n        self._changes.clear()  # who asks for what is new takes everything"),
        "        self.version += 1",
        "who asks for changes gets all of them",
    ),
    Plant(
        "second-master-not-told",
        "kv",
        "kv/master.py",
        "if sender != self.entity and self._conflicts",
        "if sender > self.entity and self._conflicts",
        "two masters are told",
    ),
    Plant(
        "silent-taker-waited-for",
        "kv",
        "kv/snapshots.py",
        "return self.silences.due(now)",
        "return []",
        "a master becomes idle",
    ),
    Plant(
        "room-of-the-backend-never-full",
        "kv",
        "kv/group_commit.py",
        "return len(self._waiting) >= 2 * limits.commit_operations or self._waiting_bytes",
        "return self._waiting_bytes",
        "what waits for the disk has a bound",
    ),
    Plant(
        "map-write-is-confirmed-before-the-partner-has-it",
        "maps",
        "kv/chp/ledger.py",
        "return session.confirm(min(position, floor)) if floor >= self.copied_to else 0",
        "return session.confirm(position)",
        "what was confirmed survives",
    ),
    Plant(
        "map-keeps-messages-of-a-history-that-is-void",
        "maps",
        "kv/chp/streams.py",
        "        self._batches.clear()  # what follows may be another history, whose sequences begin again\n",
        "",
    ),
    Plant(
        "map-snapshot-brings-writers-of-a-later-moment",
        "maps",
        "kv/chp/streams.py",
        "(name, each.released,",
        "(name, each.taken,",
        "what was confirmed survives",
    ),
    Plant(
        "map-step-that-failed-is-not-kept-with-its-number",
        "maps",
        "kv/chp/ledger.py",
        "            session.failed[number] = failure  # now, as it goes to the disk with the writer's number\n",
        "",
        "a step is done once",
    ),
    Plant(
        "map-partner-keeps-no-numbers-of-writers",
        "maps",
        "kv/chp/ledger.py",
        "                self._copy(run, name, number, sequence - left, now, actions)",
        '                self._copy(run, b"", 0, sequence - left, now, actions)',
        "a step is done once",
    ),
    Plant(
        "map-server-in-doubt-drops-what-clients-ask",
        "maps",
        "kv/chp/pair.py",
        "            self._hold(client, frames)",
        "            pass",
        "all writes are done in the end",
    ),
    Plant(
        "map-server-confirms-alone-while-it-is-paired",
        "maps",
        "kv/chp/pair.py",
        'self._done += core.confirm(action.what == self.star.confirms == "alone")',
        "self._done += core.confirm(True)",
        "what was confirmed survives",
    ),
    Plant(
        "map-term-is-not-kept",
        "maps",
        "kv/chp/pair.py",
        "            return Memory(row.applied, Record(*row.outcomes[0]))",
        "            return Memory()",
        "no two servers are active in one term",
    ),
    Plant(
        "map-server-follows-who-has-less",
        "maps",
        "kv/chp/pair.py",
        "                self._done += core.rest()",
        "                self._done += core.follow(now)",
    ),
)
