"""What each feature keeps and asks for at most, as a value that is handed to its cores: one class for each feature.

The defaults are for programs; tests and the simulator hand in smaller ones, so that every bound is met within seconds.
What is part of a wire format is not a limit: that stands in ``defaults``, and so do numbers that others need, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from chappe import defaults
from chappe.defaults import KIB, MIB


@dataclass(frozen=True, slots=True)
class LogLimits:
    """Of producers, consumers and stores of the log."""

    # -- producer
    batch_bytes: int = defaults.BATCH_BYTES
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
    reads_max: int = 32  # of a consumer under way at once; each may bring read_bytes and a batch
    asks_max: int = 64  # of a store under way at once; likewise
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
    staged_bytes_max: int = 32 * MIB  # received, not yet written; then reading pauses
    small_batch_bytes: int = 8 * KIB  # neighbours smaller than this are merged before they are written
    maintain_s: float = 10.0  # retention runs this often
    commit_chunk_bytes: int = 32 * MIB  # of a sink's commit in memory at once
    staged_forget_s: float = defaults.STAGED_FORGET_S
    damage_reports_max: int = 20  # holes reported at once: whoever reads the log is to see something else, too


@dataclass(frozen=True, slots=True)
class KvLimits:
    """Of masters and clones of data stores, and their channels; see ``defaults`` for what each is."""

    # -- both: the channels
    ack_events: int = defaults.CHANNEL_ACK_EVENTS
    nack_max: int = defaults.CHANNEL_NACK_MAX
    held_max: int = defaults.CHANNEL_HELD_MAX

    # -- master
    events_max: int = defaults.CHANNEL_EVENTS_MAX
    clones_max: int = defaults.STORE_CLONES_MAX
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

    # -- clone
    window: int = defaults.CLONE_WINDOW
    writes_max: int = defaults.CLONE_WRITES_MAX
    staged_events_max: int = defaults.CLONE_STAGED_EVENTS_MAX
    staged_bytes_max: int = defaults.CLONE_STAGED_BYTES_MAX


@dataclass(frozen=True, slots=True)
class MeshLimits:
    """Of endpoints of the mesh; what waits for a peer is an option of its own."""

    seen_max: int = 32_768  # publications of one origin remembered, so many to twice that; what is older is not taken
    seen_total_max: int = 8 * 32_768  # of all origins together: about 20 MiB
    doubts_max: int = 256  # link states from where their endpoint is not, kept for each neighbour; the oldest give way
    routes_max: int = 16_384  # topics for which it is remembered who wants them; then all are found out again


@dataclass(frozen=True, slots=True)
class GatewayLimits:
    """Of gateways between domains of the mesh."""

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


LOG_LIMITS: Final = LogLimits()  # those of programs
KV_LIMITS: Final = KvLimits()
MESH_LIMITS: Final = MeshLimits()
GATEWAY_LIMITS: Final = GatewayLimits()
