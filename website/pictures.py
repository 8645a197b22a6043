"""The pictures of the documentation that are drawn from here: ``python -m website.pictures`` makes their files anew."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Final

from website.drawing import BLUE, DECIDES, GREY, KEEPS, MOVES, PLAIN, RED, USED, Drawing, Sequence

DOCS: Final = Path(__file__).resolve().parent.parent / "docs"


def overview() -> Drawing:
    """Both halves, and what leads from one to the other."""
    d = Drawing(900, 420, "Records go from producers to stores and consumers, events among endpoints of the mesh")
    d.frame(20, 20, 560, 380, "the log: durable topics")
    d.frame(620, 20, 260, 380, "the mesh: live, typed events")
    tower = d.box(300, 80, "tower", "introduces members; carries no records", fill=MOVES)
    producer = d.box(95, 195, "producer", "your program", w=110)
    store = d.box(300, 195, "store", "on disk, then said", w=120, fill=KEEPS)
    consumer = d.box(505, 195, "consumer", "your program", w=110)
    d.box(300, 355, "Spark", "DataFrames, streams, SQL")
    for member in (producer, store, consumer):
        d.link(member, tower, colour=GREY, ends="<>", dashed=True)
    d.line([(150, 188), (238, 188)])
    d.label(194, 176, "records")
    d.line([(240, 203), (152, 203)], colour=BLUE)
    d.label(194, 216, "stored", colour=BLUE)
    d.line([(360, 195), (448, 195)])
    d.label(404, 183, "missed ones")
    d.line([(95, 219), (95, 262), (505, 262), (505, 221)])
    d.label(185, 262, "records, live")
    d.line([(285, 219), (285, 330)])
    d.line([(315, 330), (315, 221)], colour=BLUE)
    d.label(242, 300, "bulk reads")
    d.label(382, 300, "exactly-once writes", colour=BLUE)
    sensor = d.box(700, 90, "endpoint", "a sensor, or Zeek")
    middle = d.box(815, 185, "endpoint", "passes on", w=90)
    analyst = d.box(690, 265, "endpoint", "an analyst")
    d.link(sensor, middle, ends="<>")
    d.link(middle, analyst, ends="<>")
    d.link(sensor, analyst, ends="<>")
    recorder = d.box(795, 355, "recorder", "events into a topic", fill=MOVES)
    d.link(middle, recorder)
    d.line([(recorder.x - recorder.w / 2, 355), (582, 355)])
    d.label(672, 343, "records")
    return d


def commit() -> Drawing:
    """What a store does with a batch, and what is on disk when."""
    d = Drawing(980, 0, "A commit: what a store does with batches, and what is on disk after each step")
    d.text(20, 20, "Time goes down. On the right: what is there if the store is killed, or the power cut, just then.")
    s = Sequence(
        d,
        {
            "producer": (80, "producer", USED),
            "core": (250, "log/store", DECIDES),
            "worker": (430, "worker", MOVES),
            "disk": (590, "disk", KEEPS),
        },
        top=58,
    )
    x = 690
    s.say("producer", "core", "batch")
    s.aside(x, "nothing; the producer keeps it and sends it again")
    s.note("core", "in order, no gap, no repeat;", "gathers while a write runs", fill=DECIDES)
    s.say("core", "worker", "Write(all of it)")
    s.say("worker", "disk", "blocks, to segments")
    s.aside(
        x, "killed: whole blocks are kept, once synced", "power cut: a torn end, kept aside", "nobody was told", up=10
    )
    s.say("worker", "disk", "sync of each segment", colour=BLUE, h=48)
    s.aside(x, "all of it, whatever happens from here on", colour=BLUE)
    s.say("worker", "disk", "entry in the manifest")
    s.aside(
        x, "where each topic ends: tells a torn end from", "damage to what was acknowledged. Synced", "every 10 s", up=4
    )
    s.say("worker", "core", "written", h=44)
    s.say("core", "producer", "stored up to offset", colour=BLUE)
    s.aside(x, "what the producer was told is on disk", colour=BLUE)
    s.note("core", "consumers and readers", "are shown it now", fill=DECIDES)
    s.note("worker", "the next write begins,", "with all that came meanwhile", fill=MOVES)
    s.note("producer", "kept until then,", "then forgotten", fill=USED)
    return s.end()


def handshake() -> Drawing:
    """How two endpoints of the mesh come to know each other."""
    d = Drawing(900, 0, "The handshake of two endpoints of the mesh, from the connection to the first message")
    d.text(
        20,
        20,
        "Here the one that dialled has the smaller id, so it leads (the originator); otherwise the other leads.",
    )
    s = Sequence(
        d,
        {
            "a": (200, "endpoint\ndialled", USED),
            "b": (520, "endpoint\naccepted", USED),
        },
        top=65,
    )
    x = 640
    s.say("a", "b", "TCP; TLS 1.3, a certificate from each", colour=BLUE)
    s.aside(x, "a stranger gets no further")
    s.say("a", "b", "hello: its id, versions 1 to 2")
    s.say("b", "a", "probe: nothing, so that a fault shows early")
    s.note("b", "is the id that of the certificate?", "do the permissions know it?", fill=DECIDES)
    s.say("b", "a", "hello: its id, versions 1 to 2")
    s.note("a", "the same questions;", "whose id is smaller? is there a", "connection to it already?", fill=DECIDES)
    s.aside(x, "of two connections dialled at once", "one is closed with a reason", up=40)
    s.say("a", "b", "version select: 2")
    s.say("a", "b", "syn: the prefixes that it wants")
    s.say("b", "a", "syn-ack: the prefixes that it wants")
    s.say("a", "b", "ack")
    s.aside(x, "established on both sides")
    s.say("a", "b", "link states: who wants what, and where", colour=BLUE, h=34)
    s.say("b", "a", "link states, then messages", colour=BLUE)
    s.note("a", "all within 5 s and frames of 64 KiB,", "or the connection ends", fill=PLAIN)
    s.note("b", "who refuses says why: drop_conn", "with a reason, then the end", fill=PLAIN)
    return s.end()


def failover() -> Drawing:
    """How the second server of a pair takes over."""
    d = Drawing(
        960, 0, "A failover: the active server of a pair dies, the passive one takes over, the dead one comes back"
    )
    d.text(20, 20, "A pair of map servers. The witness is optional.")
    s = Sequence(
        d,
        {
            "client": (110, "client", USED),
            "a": (330, "primary", KEEPS),
            "b": (570, "backup", KEEPS),
            "w": (800, "witness", MOVES),
        },
        top=58,
    )
    s.note("a", "active, term 1", fill=DECIDES)
    s.y -= 41
    s.note("b", "passive", fill=PLAIN)
    s.say("client", "a", "write")
    s.say("a", "b", "the commit's rows")
    s.say("b", "a", "has them", colour=BLUE)
    s.say("a", "client", "confirmed: both have it", colour=BLUE)
    s.say("client", "a", "another write")
    s.note("a", "dies: its heartbeats stop", fill="#f8d7d0")
    s.say("client", "b", "silence there: asks here, which is a vote", colour=RED, h=36)
    s.note("b", "three heartbeats of 250 ms missing,", "and a client that asks: both are needed", fill=DECIDES)
    s.say("b", "w", "may I, in term 2?")
    s.say("w", "b", "yes; kept on its disk first", colour=BLUE)
    s.note("b", "active, term 2, alone", fill=DECIDES)
    s.say("client", "b", "the write again, with its number", h=32)
    s.say("b", "client", "confirmed: done once", colour=BLUE)
    s.note("a", "comes back: hears term 2,", "is passive, gives up what only it had", fill=PLAIN)
    s.say("b", "a", "what it missed, or everything")
    s.note("b", "paired again: confirms only what both have", fill=DECIDES)
    return s.end()


def ways_in() -> Drawing:
    """Which page comes after which."""
    d = Drawing(920, 220, "Where to begin, and what comes next")
    new = d.box(70, 110, "new here", fill=PLAIN)
    first = d.box(210, 110, "first topic")
    python = d.box(370, 110, "the library")
    sensors = d.box(370, 45, "sensors")
    shell = d.box(370, 175, "the command line")
    mesh = d.box(550, 45, "build a mesh")
    spark = d.box(550, 110, "read with Spark")
    store = d.box(550, 175, "run a store for good")
    monitor = d.box(690, 175, "watch it", w=80)
    trouble = d.box(825, 175, "troubleshooting", w=130)
    for start, end in (
        (new, first), (first, sensors), (first, python), (first, shell), (sensors, mesh), (python, spark),
        (shell, store), (store, monitor), (monitor, trouble),
    ):  # fmt: skip
        d.link(start, end)
    return d


def world_of_tests() -> Drawing:
    """What a test of a user's program is made of."""
    d = Drawing(760, 190, "A test writes into a log, and the program reads and writes there")
    d.frame(20, 20, 720, 150, "one process, one test, one clock")
    test = d.box(110, 100, "the test")
    log = d.box(370, 100, "tower and store", fill=KEEPS)
    program = d.box(640, 100, "your program")
    for start, end, up, what in (
        (test, log, -12, "write"), (log, test, 12, "wait_for"), (log, program, -12, "records"),
        (program, log, 12, "send, flush"),
    ):  # fmt: skip
        left, right = min(start.x, end.x), max(start.x, end.x)
        a = left + (start.w if start.x == left else end.w) / 2
        b = right - (start.w if start.x == right else end.w) / 2
        d.line([(a, 100 + up), (b, 100 + up)] if start.x < end.x else [(b, 100 + up), (a, 100 + up)])
        d.label((a + b) / 2, 100 + up + math.copysign(13, up), what)
    return d


def nothing_arrives() -> Drawing:
    """What to ask when nothing arrives."""
    d = Drawing(900, 330, "Nothing arrives: ask for a tower first, then for the topic")
    start = d.box(110, 40, "nothing arrives", fill=PLAIN)
    tower = d.box(330, 40, "does chappe doctor", "find a tower?", fill=DECIDES)
    up = d.box(720, 40, "start one", "chappe up")
    topics = d.box(330, 150, "does chappe topics", "list the topic?", fill=DECIDES)
    store = d.box(720, 150, "start a store", "with the same --tower")
    producer = d.box(
        190, 280, "look at the producer", "the same tower? does it listen on", "an address that others reach?"
    )
    consumer = d.box(560, 280, "look at the consumer", "how it spells the topic, where it", "begins, the same tower?")
    d.link(start, tower)
    d.link(tower, up, "no")
    d.link(tower, topics, "yes")
    d.link(topics, store, "it knows no store")
    d.link(topics, producer, "not the topic")
    d.link(topics, consumer, "yes, and it grows")
    return d


def mesh() -> Drawing:
    """Nodes in a ring, and who is connected to them."""
    d = Drawing(820, 260, "Three nodes in a ring; a sensor, an analyst and a recorder are peers of one each")
    sensor = d.box(80, 70, "sensor", "Zeek")
    east = d.box(270, 70, "node east", fill=MOVES)
    west = d.box(480, 70, "node west", fill=MOVES)
    south = d.box(375, 190, "node south", fill=MOVES)
    analyst = d.box(700, 70, "analyst")
    recorder = d.box(560, 190, "recorder", fill=MOVES)
    log = d.box(730, 190, "a topic", "of the log", fill=KEEPS)
    d.link(sensor, east)
    d.link(east, west, ends="<>")
    d.link(west, south, ends="<>")
    d.link(south, east, ends="<>")
    d.link(west, analyst)
    d.link(south, recorder)
    d.link(recorder, log)
    return d


def gateways() -> Drawing:
    """Two meshes, and two gateways between them."""
    d = Drawing(860, 280, "Two meshes joined by gateways, of which one passes and one stands by")
    d.frame(20, 20, 290, 240, "office")
    d.frame(550, 20, 290, 240, "plant")
    analyst = d.box(90, 90, "analyst")
    n1 = d.box(240, 90, "node", fill=MOVES)
    n2 = d.box(240, 200, "node", fill=MOVES)
    p1 = d.box(620, 90, "node", fill=MOVES)
    p2 = d.box(620, 200, "node", fill=MOVES)
    press = d.box(770, 90, "press")
    robot = d.box(770, 200, "robot")
    g1 = d.box(430, 90, "gateway", "passes", fill=DECIDES)
    g2 = d.box(430, 200, "gateway", "stands by", fill=PLAIN)
    for start, end in ((analyst, n1), (n1, n2), (p1, press), (p1, p2), (p2, robot), (n1, g1), (g1, p1)):
        d.link(start, end, ends="")
    d.link(n2, g2, ends="", dashed=True)
    d.link(g2, p2, ends="", dashed=True)
    d.line([(810, 200), (826, 200), (826, 52), (90, 52), (90, 72)], colour=BLUE, dashed=True)
    d.label(430, 52, "/alarms/arm", colour=BLUE)
    return d


def what_tells() -> Drawing:
    """What each part tells of itself."""
    d = Drawing(820, 300, "What each part of a system tells of itself, and by what")
    you = d.box(740, 150, "you", fill=PLAIN)
    for number, (name, told) in enumerate(
        {
            "tower": "chappe doctor",
            "store": "chappe topics: sizes, heads, last check; what it logs",
            "consumer": "lag(), events()",
            "node of the mesh": "chappe node: rates, drops",
            "pipeline": "chappe pipeline: numbers for Prometheus",
        }.items()
    ):
        y = 35 + number * 57
        made = d.box(90, y, name, w=130, fill=KEEPS if name == "store" else MOVES)
        right = (made.x + made.w / 2, y)
        d.line([right, (630, y), you.edge(560, y)], colour=BLUE)
        d.label(390, y, told, colour=BLUE)
    return d


def certificates() -> Drawing:
    """Who signs what."""
    d = Drawing(820, 210, "An authority signs a certificate for each program; the two check each other")
    authority = d.box(130, 105, "authority.key", "stays where it was made", fill=KEEPS)
    sensor = d.box(590, 45, "sensor.pem, sensor.key", "for 10.0.0.5")
    analyst = d.box(590, 165, "analyst.pem, analyst.key", "for 10.0.0.7")
    d.link(authority, sensor, "signs")
    d.link(authority, analyst, "signs")
    d.link(sensor, analyst, "TLS 1.3: each checks the other with authority.pem", ends="<>", colour=BLUE)
    return d


def chain() -> Drawing:
    """Which way a command and its answer take."""
    d = Drawing(920, 300, "A chain: commands go from the head to the tail, which answers; any member answers reads")
    writer = d.box(90, 110, "client", "writes")
    reader = d.box(460, 30, "client", "reads")
    head = d.box(290, 110, "a: head", "numbers commands", fill=DECIDES)
    middle = d.box(500, 110, "b: middle", "sends them on", fill=DECIDES)
    tail = d.box(710, 110, "c: tail", "commits, answers", fill=DECIDES)
    d.link(writer, head, "command")
    d.link(head, middle)
    d.link(middle, tail)
    d.link(reader, middle, "any member", colour=BLUE, ends="<>")
    for x, name in ((290, "a"), (500, "b"), (710, "c")):
        disk = d.box(x, 195, f"log and state of {name}", "the same bytes", fill=KEEPS)
        d.line([(x, 134), (x, disk.y - disk.h / 2)])
    d.line([(775, 110), (880, 110), (880, 262), (90, 262), (90, 134)], colour=BLUE)
    d.label(480, 262, "answer: it is on disk at all members", colour=BLUE)
    d.text(
        20, 290, "Who is in, in which order: a numbered configuration that a majority of all named servers votes for."
    )
    return d


def chain_store() -> Drawing:
    """Servers of a chain whose head is the master of a data store, and its clones."""
    d = Drawing(920, 300, "A data store on a chain: clones write to the head, whose commits go through the chain first")
    clones = [d.box(x, 30, "clone", "all data, in memory") for x in (130, 460, 790)]
    head = d.box(210, 150, "a: head", "endpoint, master", fill=DECIDES)
    middle = d.box(460, 150, "b: middle", "endpoint, copy", fill=DECIDES)
    tail = d.box(710, 150, "c: tail", "endpoint, copy", fill=DECIDES)
    d.link(clones[0], head, "writes, events", colour=BLUE, ends="<>")
    d.link(clones[1], head, colour=BLUE, ends="<>")
    d.link(clones[2], head, colour=BLUE, ends="<>")
    d.link(head, middle, "commits")
    d.link(middle, tail)
    d.line([(710, 174), (710, 222), (210, 222), (210, 174)], colour=RED)
    d.label(460, 222, "committed: now it counts", colour=RED)
    d.text(20, 260, "When a dies, b is the head: it says so in the log, and is master with all that was committed.")
    d.text(20, 284, "Clones take from it what they lack, and repeat what was not confirmed; each write is done once.")
    return d


def sealed() -> Drawing:
    """Who can read what of a record on its way."""
    d = Drawing(920, 290, "Each hop has keys of its own; a sealed record is opened by its group alone")
    authority = d.box(460, 30, "permissions.toml", "signed by the authority, held by all", fill=KEEPS)
    producer = d.box(110, 140, "producer", "seals, signs")
    store = d.box(460, 140, "store", "asks the rules, keeps", fill=MOVES)
    consumer = d.box(810, 140, "consumer", "checks, opens")
    d.link(authority, producer, colour=GREY, dashed=True)
    d.link(authority, store, "who may do what", colour=GREY, dashed=True)
    d.link(authority, consumer, colour=GREY, dashed=True)
    d.link(producer, store, "CURVE", "of this hop", colour=BLUE)
    d.link(store, consumer, "CURVE", "of this hop", colour=BLUE)
    d.line([(110, 164), (110, 225), (810, 225), (810, 164)], colour=RED)
    d.label(460, 225, "sealed with the key of the group's epoch: the store cannot read it", colour=RED)
    d.text(20, 270, "Without a group the store can read what it keeps; strangers on the way can read neither.")
    return d


PICTURES: Final[dict[str, Callable[[], Drawing]]] = {
    "overview.svg": overview,
    "ways-in.svg": ways_in,
    "explanation/commit.svg": commit,
    "explanation/handshake.svg": handshake,
    "explanation/failover.svg": failover,
    "explanation/sealed.svg": sealed,
    "how-to/certificates.svg": certificates,
    "how-to/chain.svg": chain,
    "how-to/chain-store.svg": chain_store,
    "how-to/gateways.svg": gateways,
    "how-to/mesh.svg": mesh,
    "how-to/nothing-arrives.svg": nothing_arrives,
    "how-to/what-tells.svg": what_tells,
    "how-to/world-of-tests.svg": world_of_tests,
}

if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (DOCS / name).write_text(draw().svg(), encoding="utf-8")
