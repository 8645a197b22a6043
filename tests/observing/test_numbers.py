"""Numbers for Prometheus, of a snapshot."""

from __future__ import annotations

from chappe.observing.numbers import LINKS_TOLD, of_pipelines, of_snapshot
from chappe.observing.observer import SystemObserver
from chappe.observing.snapshot import (
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
    SystemSnapshot,
)


def seen(part: ObservedPart) -> SystemSnapshot:
    observer = SystemObserver()
    observer.take("all", part, 0.0, 0)
    observer.take("all", part, 10.0, 10_000_000)
    return observer.snapshot(10.0, 10_000_000)


def numbers(snapshot: SystemSnapshot) -> dict[str, dict[tuple[str, ...], float]]:
    return {each.name: dict(each.samples) for each in of_snapshot(snapshot)}


def test_everything_that_pages_show_a_number_of_is_a_number_here_under_the_same_names() -> None:
    ill = ObservedMember("b", "endpoint", "b", level="warning")
    found = numbers(
        seen(
            ObservedPart(
                members=(ObservedMember("t", "tower", "t"), ObservedMember("a", "endpoint", "a"), ill),
                links=(
                    ObservedLink(("a", "b"), "mesh", 5, 6, received_bytes=9, waiting=7, waiting_back=8),
                    ObservedLink(("t", "a"), "introduces"),
                ),
                topics=(
                    ObservedTopic(
                        "x",
                        1,
                        10,
                        12,
                        99,
                        readers=(ObservedReader("team", "group", 3, 9), ObservedReader("far", "consumer", 4)),
                    ),
                ),
                keepings=(ObservedStore("data store", "s", ("a",), ("b", "t"), 4, ages=(0.5, None)),),
                problems=(HealthProblem("p", "failed", "Wrong.", "Mend it."),),
            )
        )
    )

    assert found["chappe_members"] == {
        ("endpoint", "good"): 1, ("endpoint", "warning"): 1, ("tower", "good"): 1,
    }  # fmt: skip
    assert found["chappe_link_frames"] == {("mesh", "a", "b"): 5, ("mesh", "b", "a"): 6}
    assert found["chappe_link_bytes"] == {("mesh", "b", "a"): 9}
    assert found["chappe_link_waiting"] == {("mesh", "a", "b"): 7, ("mesh", "b", "a"): 8}
    assert found["chappe_topic_records"] == {("x",): 10}
    assert found["chappe_topic_written"] == {("x",): 12}
    assert found["chappe_reader_lag_records"] == {("x", "team"): 3, ("x", "far"): 4}
    assert found["chappe_reader_position"] == {("x", "team"): 9}
    assert found["chappe_entries"] == {("data store", "s"): 4}
    assert found["chappe_clone_age_seconds"] == {("s", "b"): 0.5}
    assert found["chappe_problems"][("failed",)] == 1


def test_of_many_links_those_with_the_most_frames_are_told() -> None:
    members = tuple(ObservedMember(f"m{n}", "endpoint", f"m{n}") for n in range(LINKS_TOLD + 50))
    links = tuple(ObservedLink(("m0", f"m{n}"), "mesh", n, n) for n in range(1, LINKS_TOLD + 50))

    found = numbers(seen(ObservedPart(members=members, links=links)))["chappe_link_frames"]

    assert len(found) == 2 * LINKS_TOLD
    assert ("mesh", "m0", "m1") not in found


def test_a_pipeline_tells_of_each_query_and_of_each_topic_how_far_it_is_behind() -> None:
    query = ObservedQuery("q", rows=10, batches=11, lag=(ObservedLag("t", 9, None), ObservedLag("u", 0, 0.5, 70)))
    pipeline = ObservedPipeline("p", "running", 1, "", "", "", queries=(query,))
    found = {each.name: dict(each.samples) for each in of_pipelines([pipeline])}

    assert found["chappe_pipeline_up"] == {("p",): 1.0}
    assert found["chappe_pipeline_rows"] == {("p", "q"): 10.0}
    assert found["chappe_pipeline_batches"] == {("p", "q"): 11.0}
    assert found["chappe_pipeline_lag_records"] == {("p", "q", "t"): 9.0, ("p", "q", "u"): 0.0}
    assert found["chappe_pipeline_lag_bytes"] == {("p", "q", "t"): 0.0, ("p", "q", "u"): 70.0}
    assert found["chappe_pipeline_lag_seconds"] == {("p", "q", "u"): 0.5}
