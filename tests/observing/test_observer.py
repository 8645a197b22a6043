"""The observer as a function: parts in, snapshots out."""

from __future__ import annotations

import json
from typing import Final

import msgspec
import pytest

from chappe.observing.observer import GRACE_US, TOPICS_MAX, SystemObserver
from chappe.observing.snapshot import (
    HISTORY_MAX,
    MEMBERS_MAX,
    PROBLEMS_MAX,
    TOPICS_SHOWN,
    HealthProblem,
    ObservedLag,
    ObservedLink,
    ObservedMember,
    ObservedPart,
    ObservedPipeline,
    ObservedQuery,
    ObservedReader,
    ObservedStore,
    ObservedTopic,
    to_json,
)

S: Final = 1_000_000  # microseconds
STORE: Final = ObservedMember("s", "store", "alpha")
TOWER: Final = ObservedMember("t", "tower", "tower")


def topic(name: str, end: int, lag: int | None = None) -> ObservedTopic:
    readers = () if lag is None else (ObservedReader("team", "group", lag),)
    return ObservedTopic(name, 1, end, end, 10 * end, readers=readers)


def observed(*looks: tuple[float, ObservedPart]) -> SystemObserver:
    """An observer that has had these looks of one source, at seconds."""
    made = SystemObserver()
    for at, part in looks:
        made.take("log", part, at, int(at * S))
    return made


def test_a_rate_is_what_a_counter_rose_in_the_last_seconds() -> None:
    observer = observed(*((float(n), ObservedPart(topics=(topic("a", 100 * n),))) for n in range(11)))

    assert observer.snapshot(10.0, 0).topics[0].per_s == pytest.approx(100)
    assert observer.snapshot(60.0, 0).topics[0].per_s == 0


def test_a_counter_that_fell_is_no_negative_rate() -> None:
    observer = observed((0.0, ObservedPart(topics=(topic("a", 1000),))), (1.0, ObservedPart(topics=(topic("a", 10),))))

    assert observer.snapshot(1.0, 0).topics[0].per_s == 0


def test_lines_show_rates_and_lags_of_the_last_minutes() -> None:
    observer = observed(*((float(n), ObservedPart(topics=(topic("a", 50 * n, lag=n),))) for n in range(21)))

    rates = observer.rate_line("a", 20.0)
    lags = observer.lag_line("a", "team", 20.0)

    assert [value for _, value in rates] == [pytest.approx(50)] * len(rates)
    assert len(rates) == 10  # steps of two seconds
    assert lags[-1] == (0.0, 20)
    assert lags[0] == (-20.0, 0)
    assert observer.lag_line("a", "nobody", 20.0) == []


def test_a_small_line_has_heights_relative_to_the_highest_and_idle_topics_have_none() -> None:
    looks = (
        (float(n), ObservedPart(topics=(topic("a", 10 * n if n < 60 else 600 + 40 * (n - 60)),))) for n in range(121)
    )
    observer = observed((0.0, ObservedPart(topics=(topic("idle", 7),))), *looks)

    assert observer.spark("a", 120.0) == "444444fggggg"  # looks are a second apart, before the ends of steps
    assert observer.spark("idle", 120.0) == ""
    assert observer.spark("unknown", 120.0) == ""
    assert len(observer.spark("a", 300.0)) <= 31


def test_what_was_seen_stays_when_a_source_fails_and_a_problem_says_why() -> None:
    observer = observed((0.0, ObservedPart(members=(STORE, TOWER))), (10.0, ObservedPart(members=(STORE, TOWER))))

    observer.fail("log", "Nobody answers.", "Start it.", 11 * S)

    seen = observer.snapshot(11.0, 11 * S)
    assert [each.name for each in seen.members] == ["alpha", "tower"]
    assert [(each.text, each.mend, each.since) for each in seen.problems] == [("Nobody answers.", "Start it.", 11 * S)]


def test_a_problem_keeps_the_time_it_began_and_its_end_is_in_the_history() -> None:
    wrong = ObservedPart(problems=(HealthProblem("store x", "failed", "It does not answer.", "Start it."),))
    observer = observed((0.0, ObservedPart()), (10.0, wrong), (20.0, wrong))

    assert [each.since for each in observer.snapshot(20.0, 0).problems] == [10 * S]
    observer.take("log", ObservedPart(), 30.0, 30 * S)
    after = observer.snapshot(30.0, 30 * S)
    assert after.problems == ()
    assert [(each.at, each.text) for each in after.history] == [
        (30 * S, "over: It does not answer."),
        (10 * S, "It does not answer."),
    ]


def test_nothing_is_called_wrong_while_everybody_is_still_being_met() -> None:
    alone = ObservedPart(members=(TOWER,))
    observer = observed((0.0, alone), (1.0, alone))

    assert observer.snapshot(1.0, 0).problems == ()
    observer.take("log", alone, 9.0, GRACE_US)
    assert [each.key for each in observer.snapshot(9.0, 0).problems] == ["no store"]


def test_history_tells_who_came_who_left_and_whose_status_changed() -> None:
    silent = ObservedMember("s", "store", "alpha", status="does not answer", level="failed")
    observer = observed((0.0, ObservedPart(members=(TOWER,))), (1.0, ObservedPart(members=(TOWER, STORE))))
    observer.take("log", ObservedPart(members=(TOWER, silent)), 2.0, 2 * S)
    observer.take("log", ObservedPart(members=(silent,)), 3.0, 3 * S)

    told = [(each.who, each.text, each.level) for each in observer.snapshot(3.0, 3 * S).history]

    assert told == [
        ("tower tower", "left", "warning"),
        ("store alpha", "does not answer", "failed"),
        ("store alpha", "came", "good"),
    ]


def test_short_visits_are_one_change_that_counts_them_and_servers_are_told_one_by_one() -> None:
    observer = observed((0.0, ObservedPart(members=(TOWER,))))
    for n in range(12):
        command = ObservedMember(f"p{n}", "producers", "produce")
        other = ObservedMember(f"u{n}", "member", f"port {4000 + n}", named=False)
        observer.take("log", ObservedPart(members=(TOWER, command, other, STORE)), 2.0 * n + 1, (2 * n + 1) * S)
        observer.take("log", ObservedPart(members=(TOWER,)), 2.0 * n + 2, (2 * n + 2) * S)

    history = [each for each in observer.snapshot(30.0, 30 * S).history if each.kind != "health"]

    assert len(history) == 2 + 24
    visits = {each.who: (each.text, each.times, each.since, each.at) for each in history if each.kind != "store"}
    assert visits == {
        "producers produce": ("came and left", 12, 2 * S, 24 * S),
        "member without a name": ("came and left", 12, 2 * S, 24 * S),
    }
    assert [each.at for each in history] == sorted((each.at for each in history), reverse=True)


def test_who_stays_came_and_left_and_a_visit_long_after_the_last_one_is_counted_anew() -> None:
    long, short = (ObservedMember(each, "producers", "produce") for each in ("long", "short"))
    observer = observed((0.0, ObservedPart()), (1.0, ObservedPart(members=(long,))), (60.0, ObservedPart()))
    observer.take("log", ObservedPart(members=(short,)), 70.0, 70 * S)
    observer.take("log", ObservedPart(), 71.0, 71 * S)
    observer.take("log", ObservedPart(members=(short,)), 700.0, 700 * S)
    observer.take("log", ObservedPart(), 701.0, 701 * S)

    told = [(each.at // S, each.text, each.times) for each in observer.snapshot(701.0, 701 * S).history]

    assert told == [(701, "came and left", 1), (71, "came and left", 1), (60, "left", 1), (1, "came", 1)]


def test_a_link_to_nobody_is_left_out_and_counters_of_links_become_rates() -> None:
    links = [
        (
            float(n),
            ObservedPart(
                members=(STORE, TOWER), links=(ObservedLink(("s", "t"), "mesh", 10 * n, 20 * n, sent_bytes=5 * n),)
            ),
        )
        for n in range(6)
    ]
    observer = observed(*links)
    observer.take("mesh", ObservedPart(links=(ObservedLink(("s", "gone"), "mesh"),)), 5.0, 5 * S)

    (link,) = observer.snapshot(5.0, 5 * S).links

    assert link.sent_per_s == pytest.approx(10)
    assert link.received_per_s == pytest.approx(20)
    assert link.sent_bytes_per_s == pytest.approx(5)
    assert link.received_bytes_per_s is None


def test_of_a_hundred_thousand_topics_those_that_changed_last_are_listed_and_search_finds_the_others() -> None:
    many = tuple(topic(f"topic-{n:06}", n) for n in range(100_000))
    observer = observed((0.0, ObservedPart(topics=many)), (1.0, ObservedPart(topics=(topic("topic-000007", 99),))))

    seen = observer.snapshot(2.0, 2 * S)

    assert len(seen.topics) == TOPICS_SHOWN
    assert seen.topics_total == 100_000
    assert seen.topics[0].name == "topic-000007"
    assert any("search finds the others" in note for note in seen.notes)
    assert observer.names()[:2] == ["topic-000007", "topic-099999"]
    assert len(observer.names()) == 100_000
    assert len(to_json(seen)) < 1_000_000


def test_every_table_has_a_bound_and_what_is_beyond_it_is_said() -> None:
    crowd = tuple(ObservedMember(f"m{n}", "endpoint", f"m{n}") for n in range(MEMBERS_MAX + 3))
    wrong = tuple(HealthProblem(f"p{n}", "warning", "Wrong.", "Mend it.") for n in range(PROBLEMS_MAX + 50))
    observer = observed((0.0, ObservedPart()), (10.0, ObservedPart(members=crowd, problems=wrong)))
    names = (f"t{n}" for n in range(TOPICS_MAX + 2))
    observer.take("topics", ObservedPart(topics=tuple(topic(each, 1) for each in names)), 11.0, 11 * S)

    seen = observer.snapshot(11.0, 11 * S)

    assert len(seen.members) == MEMBERS_MAX
    assert len(seen.problems) == PROBLEMS_MAX
    assert "50 problems beyond the first 200 are not listed" in seen.notes
    assert len(seen.history) <= HISTORY_MAX
    assert seen.topics_total == TOPICS_MAX + 2
    assert any("3 members beyond" in note for note in seen.notes)
    assert any("2 topics beyond" in note for note in seen.notes)


def test_topics_that_are_gone_are_forgotten() -> None:
    observer = observed((0.0, ObservedPart(topics=(topic("a", 1), topic("b", 1)))), (1.0, ObservedPart(gone=("a",))))

    assert [each.name for each in observer.snapshot(1.0, 0).topics] == ["b"]
    assert observer.topic("a", 1.0) is None


def test_health_says_in_sentences_what_is_wrong_and_what_mends_it() -> None:
    slow = ObservedQuery("q", 3, lag=(ObservedLag("b", 900, 120.0),))
    part = ObservedPart(
        members=(TOWER, STORE),
        links=(ObservedLink(("t", "s"), "mesh", waiting=5_000),),
        topics=(topic("a", 200_000, lag=150_000),),
        keepings=(ObservedStore("data store", "prices", (), ("e1",)),),
        pipelines=(ObservedPipeline("p", "running", 1, "", "", "", queries=(slow,)),),
    )
    observer = observed((0.0, part), (10.0, part))

    texts = {each.text: each.mend for each in observer.snapshot(10.0, 10 * S).problems}

    assert set(texts) == {
        "Group team is 150,000 records behind in topic a.",
        "5,000 messages wait at tower tower for store alpha.",
        "Query q of pipeline p is 120 s behind.",
        "Data store prices has clones and no master in reach: it can be read, not written.",
    }
    assert all(mend.endswith((".", "prices")) or ":" in mend for mend in texts.values())


def test_a_snapshot_goes_to_json_and_says_everything() -> None:
    observer = observed((0.0, ObservedPart(members=(STORE,), topics=(topic("<b>", 3, lag=1),), notes=("sampled",))))

    found = json.loads(to_json(observer.snapshot(1.0, 7)))

    assert found["at"] == 7
    assert found["members"][0] == {
        "id": "s", "kind": "store", "name": "alpha", "address": "", "status": "there", "level": "good", "facts": [],
        "named": True,
    }  # fmt: skip
    assert found["topics"][0]["name"] == "<b>"
    assert found["topics"][0]["readers"] == [
        {"name": "team", "kind": "group", "lag": 1, "position": None, "left_out": 0}
    ]
    assert found["notes"] == ["sampled"]


def test_a_query_reads_the_topics_that_it_tells_of_and_the_stores_that_keep_them() -> None:
    query = ObservedQuery("q", 3, lag=(ObservedLag("a", 30, None), ObservedLag("unknown", 1, None)))
    member = ObservedMember("pipeline p", "pipeline", "p")
    kept = msgspec.structs.replace(topic("a", 40, lag=7), stores=("s",))
    observer = observed((0.0, ObservedPart(members=(STORE, member), topics=(kept,), pipelines=(pipeline(query),))))

    seen = observer.snapshot(1.0, S)

    assert [(each.name, each.kind, each.lag) for each in seen.topics[0].readers] == [
        ("team", "group", 7),
        ("p: q", "pipeline", 30),
    ]
    assert [(each.ends, each.kind) for each in seen.links] == [(("s", "pipeline p"), "reads")]
    assert observer.lag_line("a", "p: q", 2.0)[-1][1] == 30

    observer.take("log", ObservedPart(members=(STORE,)), 3.0, 3 * S)
    assert [each.name for each in observer.snapshot(3.0, 3 * S).topics[0].readers] == ["team"]


def pipeline(query: ObservedQuery) -> ObservedPipeline:
    return ObservedPipeline("p", "running", 1, "", "", "", queries=(query,))


def test_sources_are_awaited_until_they_have_looked_and_met_everybody() -> None:
    observer = SystemObserver(["log", "mesh"])
    assert observer.snapshot(0.0, 0).awaited == ("log", "mesh")

    observer.take("log", ObservedPart(), 1.0, 1 * S)
    assert observer.snapshot(1.0, 1 * S).awaited == ("log", "mesh")

    observer.take("log", ObservedPart(), 5.0, 1 * S + GRACE_US)
    assert observer.snapshot(5.0, 5 * S).awaited == ("mesh",)

    observer.fail("mesh", "Nobody answers.", "", 6 * S)
    assert observer.snapshot(6.0, 6 * S).awaited == ()
