"""The bounds of each feature, as a value that is handed to its cores: one class for each feature.

The defaults are for programs; tests and the simulator hand in smaller ones, so that every bound is met within seconds.
A number of a wire format is not a limit: it stands in ``defaults``, as do numbers that others need, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from chappe import defaults
from chappe.defaults import KIB, MIB


@dataclass(frozen=True, slots=True)
class LogLimits:
    """Bounds of producers, consumers and stores of the log."""

    # -- producer
    batch_bytes: int = defaults.BATCH_BYTES
    bulk_bytes: int = defaults.BULK_BYTES
    producer_ring_bytes: int = 16 * MIB  # min_acks=0: the newest records kept for those who missed them
    # A partition that goes on after a restart: so long new records are held until stores say how far they hold it.
    # Stores are found within 1 s; three of the original's heartbeats, as a store may be busy. Then they are published.
    resume_wait_s: float = 3.0

    # -- whoever answers: producer and store
    read_bytes_max: int = 8 * MIB  # most that is answered to one READ or FETCH (at least one batch)
    heads_page: int = defaults.HEADS_PAGE  # partitions in one answer
    fetch_records_max: int = defaults.FETCH_RECORDS_MAX
    answer_records: int = 1_000  # single records for an original in one go: some 30 ms of work
    answers_max: int = 1_000  # such answers under way; further ones are dropped, and asked for again at the next HEAD

    # -- whoever asks: consumer and store
    read_bytes: int = defaults.READ_BYTES
    reads_max: int = 16  # of a consumer under way at once; each may bring read_bytes and a batch
    asks_max: int = 32  # of a store under way at once; likewise
    look_max: int = 256  # partitions that miss something, looked at in one go
    stores_max: int = 1_000  # other stores that a member asks; one that never answered gives way to a further one
    held_bytes_max: int = 16 * MIB  # batches kept while an older gap is filled; newer are dropped, fetched later
    # Partitions that were only spoken of, and of which nothing came: further ones are not remembered until these are
    # found or given up. Producers speak of theirs once a second.
    unknown_partitions_max: int = 10_000
    missing_told_s: float = 5.0  # a consumer reports a gap that is not filled by then, long before it is passed over
    # Before a gap that nobody can fill is passed over: its producer, or a store that restarts, may still fill it.
    give_up_s: float = 60.0  # at a store
    pass_over_s: float = 90.0  # at a consumer, where there are or were stores: longer than they wait for one another

    # -- consumer
    consumer_queue_bytes: int = 32 * MIB  # delivered but not taken by the user; then reading pauses
    # So many of a node ask stores for news themselves; where there are more, the node asks for all.
    apart_max: int = 15
    settled_s: float = 60.0  # a partition silent for this long is kept as its position alone, a tenth of the memory
    # Such positions; beyond it those go first that no store lists: nothing of them can come but from their producer.
    settled_max: int = 200_000
    listed_partitions_max: int = 1_000_000  # taken from one store, some 500 bytes each; the rest is reported

    # -- store
    catalogue_topics_max: int = defaults.CATALOGUE_TOPICS_MAX
    catalogue_floors_max: int = defaults.CATALOGUE_FLOORS_MAX
    catalogue_wait_s: float = defaults.CATALOGUE_WAIT_S
    staged_bytes_max: int = 32 * MIB  # received, not yet written; then reading pauses
    small_batch_bytes: int = 8 * KIB  # neighbours smaller than this are merged before they are written
    maintain_s: float = 10.0  # retention runs this often
    commit_chunk_bytes: int = 32 * MIB  # of a sink's commit in memory at once
    staged_forget_s: float = defaults.STAGED_FORGET_S
    last_bytes_max: int = 64 * MIB  # the newest record of each key, of all topics that somebody asked for
    last_piece_bytes: int = 256 * KIB  # read for that in one go: some 10 ms
    # While somebody publishes, a store asks it for its clock at most this often, or never (infinity): it may be gone
    # when a consumer wants to know how old its records are. Clocks are set rarely.
    clock_pause_s: float = 60.0
    damage_reports_max: int = 20  # holes reported at once: whoever reads the log is to see something else, too


@dataclass(frozen=True, slots=True)
class KvLimits:
    """Bounds of masters and clones of data stores, and their channels; ``defaults`` explains each."""

    # -- both: the channels
    ack_events: int = defaults.CHANNEL_ACK_EVENTS
    nack_max: int = defaults.CHANNEL_NACK_MAX
    held_max: int = defaults.CHANNEL_HELD_MAX

    # -- master
    events_max: int = defaults.CHANNEL_EVENTS_MAX
    clones_max: int = defaults.STORE_CLONES_MAX
    told_together: int = defaults.STORE_TOLD_TOGETHER
    told_bytes: int = defaults.STORE_TOLD_BYTES
    outcomes_max: int = defaults.STORE_OUTCOMES_MAX
    commit_operations: int = defaults.STORE_COMMIT_OPERATIONS
    commit_bytes: int = defaults.STORE_COMMIT_BYTES
    piece_bytes: int = defaults.STORE_PIECE_BYTES
    pieces_ahead: int = defaults.STORE_PIECES_AHEAD
    pieces_kept_bytes: int = defaults.STORE_PIECES_KEPT_BYTES
    snapshots_max: int = defaults.STORE_SNAPSHOTS_MAX
    snapshot_shared_events: int = defaults.STORE_SNAPSHOT_SHARED_EVENTS
    snapshot_bytes_max: int = defaults.STORE_SNAPSHOT_BYTES_MAX
    snapshot_bytes_near: int = defaults.STORE_SNAPSHOT_BYTES_NEAR
    snapshots_bytes_max: int = defaults.STORE_SNAPSHOTS_BYTES_MAX
    recent_keys: int = defaults.STORE_RECENT_KEYS_MAX
    recent_bytes: int = defaults.STORE_RECENT_BYTES_MAX
    history_bytes: int = defaults.STORE_HISTORY_BYTES_MAX
    history_erased: int = defaults.STORE_HISTORY_ERASED_MAX

    # -- clone
    window: int = defaults.CLONE_WINDOW
    writes_max: int = defaults.CLONE_WRITES_MAX
    staged_events_max: int = defaults.CLONE_STAGED_EVENTS_MAX
    staged_bytes_max: int = defaults.CLONE_STAGED_BYTES_MAX


@dataclass(frozen=True, slots=True)
class MeshLimits:
    """Bounds of endpoints of the mesh; the queue for a peer is an option of its own."""

    seen_max: int = 32_768  # publications of one origin remembered, so many to twice that; what is older is not taken
    seen_total_max: int = 8 * 32_768  # of all origins together: about 20 MiB
    doubts_max: int = 256  # link states from where their endpoint is not, kept for each neighbour; the oldest give way
    ahead_max: int = defaults.AHEAD_MAX
    ahead_bytes: int = defaults.AHEAD_BYTES
    routes_max: int = 16_384  # topics for which it is remembered who wants them; then all are found out again


@dataclass(frozen=True, slots=True)
class GatewayLimits:
    """Bounds of gateways between domains of the mesh."""

    # Both sides have somebody for so long before a gateway takes part: link states of all others are there by then.
    hold_s: float = 1.0
    # So long it says that it will, and listens to those who do the same; only then others count on it.
    listen_s: float = 0.5
    # It waits so long for others to stop feeding what it is to feed; they do as soon as they hear of it.
    feeder_wait_s: float = 5.0
    tell_pause_s: float = 0.05  # what is wanted is told at most so often
    depth_max: int = defaults.GATEWAY_DEPTH_MAX
    wanted_max: int = defaults.GATEWAY_WANTED_MAX
    wanted_bytes_max: int = defaults.GATEWAY_WANTED_BYTES_MAX
    gateways_max: int = 1_024  # in one domain; further ones are taken for endpoints like any other
    seen_max: int = 4_096  # gateways whose marks are remembered; those not heard of for longest give way


@dataclass(frozen=True, slots=True)
class MapLimits:
    """Bounds of servers and clients of shared maps; ``kv`` are those of their data stores."""

    kv: KvLimits = KvLimits()

    # -- between ends of chappe
    window: int = 16  # messages under way to one client; then it has to say that it took some
    piece_bytes: int = 256 * KIB  # of a snapshot or of changes in one message; one entry may pass it
    piece_looks: int = 50_000  # entries looked at for one piece: of a small subtree it may have few
    # Further clients are refused, and try again. Each takes 1 KiB here, its connections some 60 KiB of ZeroMQ's.
    streams_max: int = 65_536
    streams_bytes: int = 256 * MIB  # under way to all; beyond it each gets a message when it has taken all others
    stream_silent_s: float = 10.0  # a client that says nothing for this long is given up; it says something each second

    peer_silent_s: float = 0.75  # the same of the other one of two servers, which says something four times a second

    # -- server
    recent_max: int = 65_536  # updates kept for those who missed them; who is further behind takes a snapshot
    recent_bytes: int = 64 * MIB  # the same in bytes
    takers_max: int = 64  # clients of a kind, chappe's or others, that take a snapshot at once; others wait
    views_max: int = 4  # states of the map that are being sent at once; who asks meanwhile waits
    taker_s: float = 30.0  # a client that takes nothing of what is sent for so long gets no more
    view_shared_s: float = 1.0  # one so young serves further clients
    listened_max: int = 1_024  # subtrees that subscribers are asked about; of more, all updates are published
    sessions_max: int = 100_000  # writers whose last step is remembered; the one not heard of for longest goes
    outcomes_max: int = 131_072  # steps of all writers of which it is remembered that they failed, or may be told soon
    session_values_max: int = 65_536  # values that end with the client that wrote them; a further one is refused
    steps_max: int = 65_536  # steps of one writer that are not confirmed yet; beyond it the stream ends
    undurable_max: int = 262_144  # changes of all that a backend has not committed; then writers are not read ...
    undurable_bytes: int = 256 * MIB  # ... or so many bytes

    # -- server, to other clients than chappe's
    asks_max: int = 65_536  # requests for a snapshot that wait, one of each client; further ones are dropped
    ask_pause_s: float = (
        0.05  # a request waits so long, as the client's subscription is on its way on another connection
    )
    chunk: int = 256  # messages offered at once

    # -- the passive one of two servers
    pending_max: int = 65_536  # updates that came from clients and not from the active server; the oldest go
    pending_bytes: int = 64 * MIB
    pending_s: float = 2.0  # and those that the active, heard since, did not pass on for so long: it never got them

    # -- client
    writes_max: int = 65_536  # steps that are not confirmed; further ones are refused
    writes_bytes: int = 32 * MIB
    writes_window: int = 8_192  # of them sent
    erased_max: int = 65_536  # keys it erased lately: who comes back at a server that lost that is told which are back
    erased_bytes: int = 8 * MIB  # the same in bytes of keys
    queued_max: int = 65_536  # updates that wait until the snapshot is there, from other servers than chappe's
    attempt_s: float = 1.0  # a server that does not answer for so long gives way to the next


@dataclass(frozen=True, slots=True)
class ChainLimits:
    """Bounds of servers of a chain and their clients."""

    beat_s: float = 0.1  # servers tell each other of themselves so often
    silent_s: float = 0.4  # who is not heard for so long is taken for dead: four beats
    slow_s: float = 5.0  # a member that has not synced what another had so long ago is taken out
    ack_s: float = 0.002  # a predecessor is told at most so often how far its successor is
    again_s: float = 0.2  # entries that were not acknowledged are sent again
    window: int = 65_536  # commands that are not committed; the head takes no more, and clients ask again
    window_bytes: int = 32 * MIB  # the same in bytes
    ahead_bytes: int = 16 * MIB  # entries that a successor was sent and has not acknowledged; one message may pass it
    append_bytes: int = 1 * MIB  # entries in one message, and in one write; one entry may pass it
    log_bytes: int = 64 * MIB  # kept behind a snapshot, or as much as that has; then the next one is made
    made_bytes: int = 1 * MIB  # of a snapshot, made in one step; other work runs between steps
    piece_bytes: int = 256 * KIB  # of a snapshot in one message
    pieces_ahead: int = 8  # of them under way
    state_bytes_max: int = 9 << 28  # larger snapshots are refused: 2.25 GiB
    sessions_max: int = 10_000  # clients that are remembered; ``chain.origins`` evicts
    session_s: float = 3_600.0  # a client that has sent nothing for so long is forgotten
    pause_s: float = 60.0  # the time from one command to the next counts as so long at most, where sessions get older
    results_bytes: int = 64 * MIB  # of results that clients may not have, of all; then the oldest ones are forgotten
    session_window: int = 1_024  # steps of one client whose results it may not have; further ones wait
    reads_max: int = 10_000  # that wait to be confirmed; further ones are not answered, and are asked again
    reads_bytes: int = 32 * MIB  # the same in bytes


LOG_LIMITS: Final = LogLimits()  # those of programs
KV_LIMITS: Final = KvLimits()
MESH_LIMITS: Final = MeshLimits()
GATEWAY_LIMITS: Final = GatewayLimits()
MAP_LIMITS: Final = MapLimits()
CHAIN_LIMITS: Final = ChainLimits()
