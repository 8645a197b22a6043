"""Every number of chappe that ``limits`` does not hand to cores: unit, reason, and what happens at the limit."""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

# -- towers (Dafka's ports, protocols of the original) ------------------------------------------
TOWER_HOST: Final = "127.0.0.1"
TOWER_SUB_PORT: Final = 5556  # nodes publish their beacons to it
TOWER_PUB_PORT: Final = 5557  # nodes hear the beacons of others from it
FORWARDER_PORT: Final = 5560  # what is published goes there; 5561 is listened to, 5562 is asked

# -- discovery ------------------------------------------------------------------------------------
BEACON_INTERVAL_S: Final = 1.0  # as the original
BEACON_TIMEOUT_S: Final = 4.0  # as the original: a silent peer is disconnected after this
BEACONS_MAX: Final = (
    10_000  # endpoints known to one node, each a socket; further ones are ignored until some are silent
)
IDENTITY_BEACONS_MAX: Final = 1_000  # ... and of one identity, where connections have keys
DIALS_AT_ONCE: Final = 1_000  # new members that are dialled and answered at once, and then ...
DIALS_RATE: Final = 200  # ... so many a second: a socket and a message to everybody each
ENDPOINT_BYTES_MAX: Final = 255
INFO_S: Final = 5.0  # a store repeats STORE-INFO: a node that was too slow for the first one must not miss it for ever
STORE_SILENT_S: Final = 3 * INFO_S  # a store that no beacon names is gone after this: STORE-INFO may be lost twice

# -- records and batches --------------------------------------------------------------------------
RECORD_BYTES_MAX: Final = 8 * MIB  # value + key + headers; larger is RecordTooLarge
BATCH_BYTES: Final = 128 * KIB  # a producer seals a batch here: what each costs is spread over a thousand records
BULK_BYTES: Final = 512 * KIB  # ... and here if it is given many at once: readers, too, have fewer to look at
BATCH_RECORDS_MAX: Final = 65_536  # records in one batch
BATCH_BYTES_MAX: Final = 9 * MIB  # largest encoded batch: one record of the largest size and its columns
MESSAGE_BYTES_MAX: Final = 16 * MIB  # larger messages make libzmq close the connection
TOPIC_BYTES_MAX: Final = 255  # Dafka's subject is a string of at most 255 octets
ADDRESS_BYTES_MAX: Final = 255
HEADERS_MAX: Final = 256  # headers of one record
SUBJECTS_MAX: Final = 65_536  # topics in one CONSUMER-HELLO

# -- producer -------------------------------------------------------------------------------------
HEAD_INTERVAL_S: Final = 1.0  # as the original
HEAD_IDLE_S: Final = 30.0  # each time twice as long up to this, while every store that listens has everything
HEAD_HURRY_S: Final = 0.1  # while somebody waits in flush() and nothing is acknowledged
# Not yet acknowledged; then block or BufferFull. Less than the queues to a store and in it hold together, so that a
# slow disk slows the producer down rather than make it lose batches on the way.
PRODUCER_BUFFER_BYTES: Final = 32 * MIB
DELIVERIES_MAX: Final = 1_000_000  # records of a producer that somebody waits for, some 500 bytes each
PRODUCER_TOPICS_MAX: Final = 256  # of one producer: each has a HEAD a second; with an identity, three open files
IDLE_S: Final = 0.000_03  # nothing sent for this long: the next record leaves at once
KEYS_COME_S: Final = 10.0  # keys of a group are waited for so long: whoever has them hands them on within seconds

# -- sockets --------------------------------------------------------------------------------------
# Per peer and direction; with full batches at most 25 MiB. ZeroMQ reports room only when half of a full queue
# was taken, so a long queue would make a merely slow peer look stuck.
QUEUE_MESSAGES_MAX: Final = 200
FULL_PEER_WAIT_S: Final = 0.5  # how long a publisher waits for a full peer before it lets it lose ...
FULL_PEER_WAIT_LIVE_S: Final = 3.0  # the same where no store keeps what is lost: min_acks=0
FULL_PEER_LOSSY_S: Final = 1.0  # ... for this long, and twice as long each time that it is still full, up to ...
FULL_PEER_LOSSY_MAX_S: Final = 30.0  # ... this; it fetches later what it lost
# What waits in a publisher for a full peer: some batches. Beyond it a member takes nothing in and publishes no more.
BACKLOG_BYTES_MAX: Final = 4 * MIB
SUBSCRIPTION_BYTES_MAX: Final = 512  # one subscription: an octet and a topic or address; larger ends the connection
# Subscriptions of one member, each counted as its length and 64: some 7,000 topics. Beyond it the member is cut off.
# libzmq keeps up to a hundred times as much.
SUBSCRIBED_PEER_BYTES_MAX: Final = 2 * MIB
SUBSCRIBED_BYTES_MAX: Final = 8 * MIB  # of all members together; beyond it the one with the most is cut off
HEARTBEAT_S: Final = 2.0  # ZMTP ping; a peer silent for three of them is disconnected and redialled
RECONNECT_S: Final = 0.1
RECONNECT_MAX_S: Final = 1.0

# -- consumer -------------------------------------------------------------------------------------
READ_BYTES: Final = 2 * MIB  # asked of a store in one READ: several batches of what was sent together
FETCH_RECORDS_MAX: Final = 100_000  # Dafka's own limit on one FETCH
RETRY_S: Final = 0.5  # an unanswered FETCH or READ is repeated, elsewhere if possible
POLL_HEADS_S: Final = 1.0  # a consumer or store asks stores what is new since its last question

# -- store ----------------------------------------------------------------------------------------
SEGMENT_BYTES: Final = 128 * MIB  # a segment file is sealed at this size ...
SEGMENT_ENTRIES: Final = 200_000  # ... or at this many blocks, so that recovery stays near a second
MANIFEST_BYTES: Final = 4 * MIB  # appended to the manifest before it is made anew: some 70,000 commits
ASIDE_BYTES_MAX: Final = 1 << 30  # cut off or taken away by recovery and kept: then the oldest goes, never the newest
ASIDE_S: Final = 30 * 86_400.0  # ... and is removed when it is older: long enough to be noticed and looked at
DISK_RETRY_S: Final = 1.0  # after a full disk a write is tried again
EXIT_S: Final = 5.0  # a program that ends: so long all members that it did not close, together, give what they hold ...
EXIT_ERROR_S: Final = 1.0  # ... and so long after an error or Ctrl-C, as ``with`` does
DISK_RESERVE_BYTES: Final = 16 * MIB  # refuse writes below this much free space
SCRUB_BYTES_S: Final = 8 * MIB  # read to find damage: a terabyte takes a day and a half, a disk barely notices
SCRUB_SHARE: Final = 10  # ... and for each second of it so many of rest, where the disk or the processor is slow
SCRUB_PIECE_BYTES: Final = 512 * KIB  # of it at once, and ...
SCRUB_PIECE_BLOCKS: Final = 500  # ... at most so many blocks: some 3 ms of the processor
SCRUB_ROUND_S: Final = 24 * 3600.0  # a round begins so long after the one before, or when that has ended
SCRUB_IDLE_S: Final = 10.0  # between rounds, what could not be read is tried again this often
SCRUB_SAVE_S: Final = 30.0  # where a round has come to is noted this often
SUSPECTS_MAX: Final = 200  # blocks that look wrong are read again so many at once: some 10 ms
HEADS_PAGE: Final = 10_000  # partitions in one answer
HOLES_TOLD_MAX: Final = 1_000  # holes of one partition in it; beyond that all the rest counts as missing

# -- consumer groups ------------------------------------------------------------------------------
GROUPS_MAX: Final = 1_000  # known to one store; a further one is refused
GROUP_MEMBERS_MAX: Final = 1_000  # alive, of one group
GROUP_ROWS_MAX: Final = 100_000  # partitions of one group, some 300 bytes each at every store and member
GROUP_FILTERS_MAX: Final = 1_000  # topics that one member wants
GROUP_PAGE: Final = 1_000  # partitions in one question or answer
GROUP_WAITING_MAX: Final = 10_000  # requests that wait for a store's disk; a further one is told to ask again
GROUP_SESSION_S: Final = 5.0  # a member that is not heard for so long is dead: five beats
GROUP_BEAT_S: Final = 1.0  # members tell stores of themselves so often
# A member that is told to let go of a partition does so when its program asks for more; one that has not asked for so
# long loses it.
GROUP_RELEASE_S: Final = 60.0

# The catalogue of topics, which all stores keep (``log.catalogue``).
CATALOGUE_TOPICS_MAX: Final = 10_000  # that have settings or were deleted or trimmed lately
CATALOGUE_FLOORS_MAX: Final = 1_000  # partitions of one topic whose deleted records are from the store's future
CATALOGUE_SETTINGS_MAX: Final = 32  # of one topic
CATALOGUE_PAGE: Final = 100  # topics in one answer
CATALOGUE_WAITING_MAX: Final = 100  # changes that wait for the disk at once; further ones are refused
# Before a store serves what it finds on its disk: other stores are found within 1 s, and may be as busy as it is.
CATALOGUE_WAIT_S: Final = 5.0
CATALOGUE_HELD_MAX: Final = 10_000  # questions that wait meanwhile; a further one is told to ask again
CLOCK_AHEAD_S: Final = 60.0  # a change whose stamp is further ahead of a store's clock is not taken there
DELETIONS_KEPT_S: Final = 30 * 24 * 3600.0  # so long a store may be away and still learn of what was deleted

# -- exactly-once sinks ---------------------------------------------------------------------------
SINK_NAME_MAX: Final = 255  # characters in the name of a sink or a run
SINKS_MAX: Final = 10_000  # known to one store; a further one is refused
RUNS_MAX: Final = 1_000  # fenced runs of one sink that are remembered
ATTEMPTS_MAX: Final = 65_536  # tasks of one batch, and attempts of one sink that are staged
SINK_HEADS_S: Final = 5.0  # heads of a committed batch are told so long: who missed the first one hears the next
STAGED_FORGET_S: Final = 24 * 3600.0  # staged rows of a sink that nobody used so long are removed
SINK_FORGET_S: Final = 7 * 24 * 3600.0  # a sink that need not last is forgotten after this

# -- typed values (the original has no such bounds: its decoder recurses and allocates as it is told) -----------
VALUE_DEPTH_MAX: Final = 100  # containers in containers; Zeek's own nest below 10, Python's stack holds about 300
VALUE_BYTES_MAX: Final = 64 * MIB  # one value in any form; a whole table in one event is still smaller
VALUE_ELEMENTS_MAX: Final = 1_000_000  # in one value, at every depth together: at most about 200 MB of objects

# -- mesh (Zeek Broker's protocol) ----------------------------------------------------------------
HANDSHAKE_FRAME_BYTES_MAX: Final = 64 * KIB  # a filter is the only part that varies; larger frames end the connection
LOST_AFTER: Final = 3  # heartbeats of silence, and a peer is lost
HANDSHAKE_TIMEOUT_S: Final = 5.0  # from connected to established; the original waits for ever
MESH_PORT: Final = 9999  # of an endpoint that the command line runs, as the original's default
MESH_MESSAGE_BYTES_MAX: Final = 64 * MIB  # body of one frame; the original takes 2 GiB
# A frame that has begun is finished within FRAME_S and a second for each FRAME_BYTES_S of it: 64 MiB within 18 minutes.
FRAME_S: Final = 30.0
FRAME_BYTES_S: Final = 64 * KIB
UNFINISHED_BYTES_MAX: Final = 160 * MIB  # of all begun frames of an endpoint: two of the largest, and many small ones
MESH_TOPIC_BYTES_MAX: Final = 65_535  # its length has 16 bits
TTL: Final = 16  # hops; what the original writes (and never counts down)
FILTER_TOPICS_MAX: Final = 65_536  # prefixes in one filter; a longer one is refused
FILTER_BYTES_MAX: Final = 1 * MIB  # bytes of one filter on the wire; a larger one is refused
ENDPOINTS_MAX: Final = 10_000  # neighbours in one link state, and endpoints known to one; further ones are refused
NETWORK_LINKS_MAX: Final = 250_000  # in one picture of the network; more are counted
LINK_STATE_BYTES_MAX: Final = 1 * MIB  # filters of an endpoint and of the originals beside it; larger is refused
LINK_STATES_BYTES_MAX: Final = 24 * MIB  # of all endpoints together: less than a new peer can be told at once
LINK_STATE_KEPT_S: Final = 60.0  # of an endpoint without a path, which may come back
LINK_STATE_OFFERED_S: Final = 10.0  # of such an endpoint, to others: far more than what it waits for is on its way
EXPIRE_S: Final = 1.0  # at most so often those that were kept long enough are looked for, unless links end
# Microseconds: so much, 142 years, clocks differ at most; of what is told as its version.
LINK_STATE_AHEAD: Final = 2**52
LINK_STATE_STEP_MAX: Final = 2**20  # a step of versions that is taken in any case
LIFE_NUMBERS: Final = 2**44  # publications of one life of an endpoint: 200,000 a second for two years and nine months
NUMBER_MAX: Final = 2**63  # of publications; this and larger ones are refused
DOUBT_S: Final = 1.0  # so often at most a doubt is sent to its endpoint again, and that outdoes what others told of it
DOUBTS_BYTES_MAX: Final = 1 * MIB  # the same in bytes; one may be larger
FILTERS_TOPICS_MAX: Final = 65_536  # of all behind one neighbour; where they are more, everything is sent there
# A link that comes or goes is told at once, but not sooner after the last one than this for each that lately did, ...
TELL_PAUSE_S: Final = 0.005
TELL_FEW: Final = 16  # ... and with more neighbours than these for each of them: telling n of n costs n * n ...
TELL_PAUSE_MAX_S: Final = 1.0  # ... up to this
COMPARE_S: Final = 60.0  # so often an endpoint compares its link states with those of one neighbour, each in turn
COMPARE_PAUSE_S: Final = 1.0  # not more often it looks for what one neighbour lacks
ROUTES_BYTES_MAX: Final = 4 * MIB  # the same in bytes of these topics
ECHO_S: Final = 2.0  # what was sent to an original and comes back from another so soon may have run in a loop
ECHOES_MAX: Final = 8_192  # contents remembered for that
ECHO_CONTENTS: Final = 3  # so many different ones are a loop ...
ECHO_REPEATS: Final = 64  # ... or one more often than this
ECHO_OWN_REPEATS: Final = 16  # or one that was published here more often than this
ECHO_DOUBTFUL: Final = 16  # while it is not settled who speaks with originals, more copies of one are not taken
BLOCK_S: Final = 60.0  # then one of the two originals is cut off; each time twice as long ...
BLOCK_MAX_S: Final = 3600.0  # ... up to this
UNPEER_S: Final = 3.0  # as the original: a peer has this long to answer a goodbye
HOOKS_HOLD_S: Final = 5.0  # so long publications wait for hooks of their endpoint: many times what one that works takes
HOOKS_WAITING_MAX: Final = (
    20_000  # statuses that wait for hooks: all endpoints of a mesh may come at once, and be linked
)
DROPS_REPORT_S: Final = 1.0  # how often dropped messages are reported
LOSSES_MAX: Final = 1_024  # kinds of losses that wait to be told: by peer, origin and reason; then by peer and reason
TREES_MAX: Final = 256  # of one origin in use: as many sets of receivers; beyond it trees are made and told anew
TREES_BYTES_MAX: Final = 64 * MIB  # in memory, of the trees that one neighbour tells of; it is refused further ones
TREES_TOLD_BYTES_MAX: Final = 48 * MIB  # the same of those that it is told of; less, as it forgets a little later
KEPT_BYTES_MAX: Final = 32 * MIB  # put for one peer and not confirmed; beyond it the oldest cannot be sent again
CONFIRM_S: Final = 0.1  # a receiver confirms what it got so often, ...
CONFIRM_MESSAGES: Final = 1_024  # ... or after so many frames, where each KiB counts as one more
# What is published at once shares one head: so many messages at most, as a u8 counts them, ...
MESH_BATCH_MESSAGES_MAX: Final = 256
MESH_BATCH_BYTES_MAX: Final = 32 * KIB  # ... with payloads of so many bytes: about as often somebody else has a turn
MESH_BATCH_SHARE: Final = 16  # where a box drops messages, a batch is no larger than this part of it
EARLY_S: Final = 3.0  # a message waits so long for the news that its origin is behind who brings it
EARLY_MAX: Final = 1_024  # messages that do, and batches
EARLY_BYTES_MAX: Final = 4 * MIB
DETOURS_MAX: Final = 32  # so often one message is sent another way; then the network is changing too fast for it
ORDER_BYTES_MAX: Final = 16 * MIB  # of memory wait until what was published before has arrived: publishers wait
ORDER_S: Final = 5.0  # so long nothing of that arrives: the order is given up, as it is at twice the bytes
REFUSALS_MAX: Final = 10_000  # identities and verbs by which refusals are counted; beyond it by verb alone
RULES_LOOK_S: Final = 1.0  # how often an endpoint looks whether other permissions are in force, as the log does
BINDINGS_MAX: Final = 10_000  # endpoint ids whose certificates are remembered, of each kind; the oldest are forgotten
DEFECT_FRAME_BYTES: Final = 256  # of a frame that met a defect: so much is reported, to find it
PING_BYTES_MAX: Final = 4 * KIB  # we send 11 and answer up to this
PAUSED_MAX: Final = 16  # further connections to a peer that is being connected already; those beyond are refused
# What waits for one peer. The original keeps 2,048 messages; at its rate that is a hundredth of a second.
PEER_MESSAGES_MAX: Final = 16_384
PEER_BYTES_MAX: Final = 32 * MIB
# A full peer that takes nothing is waited for this long; then what others send to it is dropped.
ROOM_LOOK_S: Final = 0.02  # what waited to keep its order, and now waits for room, looks for it so often
PASS_ON_WAIT_S: Final = 0.5
HOLD_S: Final = 0.25  # how often who is full tells those who publish for it that it gets on
LANES_MAX: Final = 128  # topics that get trees of their own, as others with the same receivers fill somebody
CLAIM_S: Final = 0.25  # who does not read, as a subscriber is full, says so often that it gets on: half of that
CLAIMS_MAX: Final = 1_024  # endpoints whose last claim is remembered; then the oldest is forgotten
# A peer is pinged after so many bytes: one that never pings is heard within three heartbeats at 6 kB/s.
PROBE_BYTES: Final = 32 * KIB
PROBES_MAX: Final = 4_096  # pings on the way to one peer: what two kernels and a line hold of PROBE_BYTES
# Beside them, for routing and pings: a new peer is told of all endpoints at once. Beyond it the peer is disconnected.
CONTROL_FRAMES_MAX: Final = 16_384
CONTROL_BYTES_MAX: Final = 32 * MIB
LAST_VALUES_BYTES_MAX: Final = 64 * MIB  # topics and payloads of the last values that one endpoint keeps
LAST_QUESTIONS_MAX: Final = 256  # subscribers elsewhere that are owed last values at once; others ask again
LAST_ASKED_AGAIN_S: Final = 5.0  # whoever does not answer a question for last values is asked again ...
LAST_TRIES: Final = 3  # ... so often in all
LAST_HAD_MAX: Final = 65_536  # pairs of publisher and topic of one subscriber; with more it gets no further last values
LAST_ROOM_S: Final = 0.02  # until last values that a peer had no room for are tried again
SUBSCRIBER_MESSAGES_MAX: Final = 16_384  # what waits for one subscriber; then its policy
SUBSCRIBER_BYTES_MAX: Final = 32 * MIB
COLUMNS_MAX: Final = 100  # arguments of an event that ``read_arrow`` makes columns of
COLUMNS_BYTES_MAX: Final = 256 * MIB  # of payloads in one record batch
# A full subscriber that blocks takes what is on its way until all who publish have heard of it: so much beyond its
# bounds from everybody, and from those who wait as much again before nothing is read any more.
SURPLUS_MESSAGES_MAX: Final = 32_768
SURPLUS_BYTES_MAX: Final = 32 * MIB
# Whoever publishes waits for confirmations when so many messages of a tree are under way: less than the surplus ...
AHEAD_MAX: Final = 24_576
AHEAD_BYTES: Final = 512 * KIB  # ... and so many bytes of all trees that begin with the same peer
OVERRUN_MAX: Final = 4 * SURPLUS_MESSAGES_MAX  # messages behind a hold: more than what boxes on the way have

# -- requests and queues of the mesh ---------------------------------------------------------------
REQUEST_S: Final = 5.0  # an answer is waited for so long by default
REQUESTS_MAX: Final = 65_536  # of one endpoint that wait for answers; a further one is refused
REQUEST_ANSWERS_MAX: Final = 10_000  # that one request may ask for ...
REQUEST_ANSWERS_BYTES_MAX: Final = 64 * MIB  # ... and so many bytes of them end it
REQUEST_INBOX_BYTES_MAX: Final = 255  # of the topic of an inbox, and of the id of who answers
REQUEST_ERROR_MAX: Final = 1_000  # characters of a responder's error that reach the originator
REQUESTS_SEEN_MAX: Final = (
    16_384  # that a responder remembers, so that it answers none twice; then the oldest are forgotten
)
# A member of a queue that dies beyond an original is believed in for the lease: three announcements.
QUEUE_ANNOUNCE_S: Final = 2.0
QUEUE_LEASE_S: Final = 6.0
QUEUE_MEMBERS_MAX: Final = (
    1_024  # of one queue; further ones are not counted by others, and take messages that others take
)
QUEUE_NAME_BYTES_MAX: Final = 255
QUEUE_ANNOUNCEMENT_BYTES_MAX: Final = 64 * KIB  # numbers and prefixes of the members of one queue at one endpoint

# -- WebSocket face of the mesh --------------------------------------------------------------------
WEBSOCKET_FRAME_BYTES_MAX: Final = 4 * MIB  # of a client; one message as JSON, which takes tenfold as objects
WEBSOCKET_MESSAGES_MAX: Final = 16_384  # what waits for one client. The original's 512 come with a single read
WEBSOCKET_BYTES_MAX: Final = 8 * MIB
MAP_SERVER_FILES: Final = 131_072  # descriptors of a map server with all the clients that it takes, two for each
WEBSOCKET_CLIENTS_MAX: Final = 1_000  # beyond it the silent and those of the greediest host give way to others
WEBSOCKET_SPEAK_S: Final = 10.0  # so long a client may take to become one, and to say what it subscribes to
WEBSOCKET_PING_S: Final = 20.0
WEBSOCKET_STUCK_S: Final = 60.0  # a client that takes nothing for this long is cut off
WEBSOCKET_CLOSE_S: Final = 2  # closing the server: so long clients may take to say goodbye

# -- channels and data stores (Zeek Broker's protocol) --------------------------------------------
CHANNEL_TICK_S: Final = 0.1  # the unit of a heartbeat interval on the wire
CHANNEL_HEARTBEAT_S: Final = 1.0  # the original's is 0.5: half the idle traffic, and what is lost is noticed earlier
CHANNEL_HURRY_S: Final = 0.25  # the first heartbeat after an event, so that a lost last one is noticed
CHANNEL_CALM_S: Final = 2.4  # heartbeats and acknowledgements with nothing new to say; MASTER_SILENT_S has four
CHANNEL_CALM_AFTER: Final = 3  # so many of them in a row, each as soon as any other: one that is lost is made up for
CHANNEL_NACK_S: Final = 0.2  # as the original: no progress for this long with a gap known
CHANNEL_NACK_MAX: Final = 1_024  # numbers in one nack; the rest is asked for when these have come
CHANNEL_NACK_BYTES: Final = 4 * MIB  # sent again for one nack, or one event; the rest is asked for when these have come
CHANNEL_ACK_EVENTS: Final = 256  # a consumer acknowledges at least every so many events
CHANNEL_SILENT_S: Final = 50.0  # as the original: a consumer silent this long is dropped
CHANNEL_EVENTS_MAX: Final = 65_536  # not yet acknowledged by the slowest consumer, which is then dropped
CHANNEL_BYTES_MAX: Final = 64 * MIB  # the same in bytes
CHANNEL_HELD_MAX: Final = 8_192  # events beyond a gap; further ones are dropped and come again
STORE_NAME_BYTES_MAX: Final = 1_024
STORE_ENTRY_BYTES_MAX: Final = 16 * MIB  # key and value encoded; larger is refused
STORE_SNAPSHOT_BYTES_MAX: Final = 60 * MIB  # a master with more refuses clones of originals: one message carries it all
STORE_SNAPSHOT_BYTES_NEAR: Final = 48 * MIB  # from here on a master that has clones of originals warns
STORE_SNAPSHOT_MEASURE_S: Final = 60.0  # a master with clones of originals measures its store so often at most
STORE_SNAPSHOT_PAUSE_S: Final = 10.0  # an original asks five times a second for this long, and then gives up
STORE_SNAPSHOTS_BYTES_MAX: Final = 128 * MIB  # on their way to clones of originals; a further clone has to ask again
STORE_PIECE_BYTES: Final = 256 * KIB  # of a snapshot, to a clone of chappe; one entry may pass it. A few ms of work
STORE_PIECES_AHEAD: Final = 4  # sent before the clone says that it has them
STORE_PIECES_KEPT_BYTES: Final = 4 * MIB  # encoded pieces of one snapshot, kept for others who take it at the same time
STORE_SNAPSHOTS_MAX: Final = 4  # states of a store that are being sent at once; a further clone has to ask again
STORE_SNAPSHOT_SHARED_S: Final = 10.0  # a snapshot this young serves another clone ...
STORE_SNAPSHOT_SHARED_EVENTS: Final = 1_024  # ... if no more events than one nack asks for have followed it
STORE_TAKERS_MAX: Final = 4  # clones of one endpoint that take a snapshot at once; a further one has to ask again
STORE_OFFERS_PER_S: Final = 8  # snapshots that the clones of one endpoint are offered in a second
STORE_TOLD_TOGETHER: Final = 64  # changes in one message of a master, if all its clones are of chappe and take that ...
STORE_TOLD_BYTES: Final = 64 * KIB  # ... and their bytes; the last one may pass them
STORE_TOLD_GAP_S: Final = 0.0001  # a change that follows so soon belongs to a sequence, which is told together ...
STORE_TOLD_LATER_S: Final = 0.001  # ... so long after its first one at the latest
STORE_CLONES_MAX: Final = 4_096  # that follow one master; a further one is refused
CLONE_STAGED_EVENTS_MAX: Final = 262_144  # events that a clone keeps until its snapshot is whole; beyond it begins anew
CLONE_STAGED_BYTES_MAX: Final = 256 * MIB  # the same in bytes
STORE_CHANGES_MAX: Final = 16_384  # changes that an engine remembers for those who ask what is new
STORE_CHANGES_BYTES_MAX: Final = 64 * MIB  # that these hold in large values, about; then fewer are remembered
MASTER_SILENT_S: Final = 10.0  # a clone that hears nothing for this long has lost its master
CLONE_RESYNC_S: Final = 10.0  # longest pause between two attempts to find a master; the first is CHANNEL_NACK_S
CLONE_STALE_S: Final = 300.0  # as the original's documents: without a master for longer, reads are refused
CLONE_BUFFER_S: Final = 120.0  # as the original's documents: writes are kept this long without a master
CLONE_BUFFER_MAX_S: Final = 12 * 3600.0  # less than a master remembers writers, so that nothing is applied twice
CLONE_WRITES_MAX: Final = 65_536  # writes of a clone that its master has not confirmed; further ones are refused
CLONE_WRITES_BYTES_MAX: Final = 32 * MIB  # the same in bytes
CLONE_WINDOW: Final = 8_192  # writes under way at once
STORE_WRITERS_MAX: Final = 100_000  # clones whose last write a master remembers; a further one is refused
STORE_WRITER_FORGET_S: Final = 24 * 3600.0  # a clone not heard of for longer is forgotten
STORE_OUTCOMES_MAX: Final = 4_096  # failures not yet confirmed by the clone that wrote; then it has to wait
STORE_COMMIT_OPERATIONS: Final = 8_192  # in one commit of a backend
STORE_COMMIT_BYTES: Final = 16 * MIB  # the same in bytes; one operation may pass it
STORE_RECENT_KEYS_MAX: Final = (
    65_536  # that changed last, so that a clone from before a takeover need not take everything
)
STORE_RECENT_BYTES_MAX: Final = 8 * MIB  # the same in bytes of keys
STORE_HISTORY_MAX: Final = 64  # changes of one key that a master keeps; what is asked for beyond it is refused
STORE_HISTORY_BYTES_MAX: Final = 64 * MIB  # of all keys; beyond it the oldest change of any key is forgotten
STORE_HISTORY_ERASED_MAX: Final = 10_000  # keys that are not there any more and whose history is kept
STORE_HISTORY_ASKS_MAX: Final = 1_024  # questions of one clone for the history of keys that wait for their answers
STORE_ASKS_MAX: Final = 4_096  # clones that ask while nobody serves, and are answered first
MASTER_CONFLICT_S: Final = 60.0  # how often two masters of one name are reported
CONFLICTS_MAX: Final = 1_000  # other masters remembered for that; further ones are not reported
CONNECT_TIMEOUT_S: Final = 5.0  # to one address of a host; then the next one is tried. The original: 1 s
CLOSE_FLUSH_S: Final = 1.0  # a connection that we close gets this long to take what was sent before
CLOSE_S: Final = 4.0  # closing an endpoint: so long its peers may take to say goodbye
HANDSHAKES_MAX: Final = 256  # accepted and not yet established; then nobody is accepted until there are fewer ...
HANDSHAKE_SPARED_S: Final = 1.0  # ... and the oldest of them gives way to new ones, once it takes longer than this
GATEWAY_CHOSEN_MAX: Final = 256  # prefixes that a gateway may pass from a domain; all topics are 255 of them
GATEWAY_CHOSEN_BYTES_MAX: Final = 16 * KIB
GATEWAY_WANTED_MAX: Final = 512  # prefixes that a gateway asks of a domain; beyond it those that it may pass
GATEWAY_WANTED_BYTES_MAX: Final = 32 * KIB
GATEWAY_DEPTH_MAX: Final = 128  # gateways between a domain and the root of their tree; a message passes twice as many

# -- values with a schema --------------------------------------------------------------------------
SCHEMA_BYTES_MAX: Final = 256 * KIB  # of one schema; those of people have a few KiB, generated ones some tens
SCHEMA_DEPTH_MAX: Final = 64  # levels of a schema that is JSON: what reads it calls itself
SCHEMA_STEPS_MAX: Final = 100_000  # of a comparison of two schemas, which a server does while others wait: a second
SCHEMAS_MAX: Final = 100_000  # of one server
SCHEMA_VERSIONS_MAX: Final = 1_000  # of one subject: a transitive rule compares with each
SCHEMA_SUBJECT_MAX: Final = 300  # characters: a topic and what ends it
SCHEMAS_PORT: Final = 8081  # Confluent's, which its clients' examples name
SCHEMAS_PATIENCE_S: Final = 10.0  # a server of schemas answers, or it is not there
AVRO_DEPTH_MAX: Final = (
    256  # levels of a value whose Avro schema is within itself: fastavro has no bound, and C a stack
)

# -- shared maps (Clustered Hashmap Protocol) ------------------------------------------------------
MAP_PORT: Final = 5570  # snapshots; updates go out on the next one, writes come in on the one after; the tower has 5556
WITNESS_PORT: Final = 5576  # of pairs of servers
MAP_KEY_BYTES_MAX: Final = 16 * KIB  # the Guide's programs tell keys apart up to 255
MAP_SUBTREE_BYTES_MAX: Final = 480  # what a subscription can be (SUBSCRIPTION_BYTES_MAX), with what ZeroMQ adds
MAP_PROPERTIES_BYTES_MAX: Final = 64 * KIB
MAP_BODY_BYTES_MAX: Final = 16 * MIB - 128 * KIB  # with key and properties less than any socket refuses
MAP_NAME_CHARACTERS_MAX: Final = 200
MAP_STEP_BYTES_MAX: Final = 15 * MIB  # of a step of several keys, each with 64 bytes beside its own
MAP_BEAT_S: Final = 0.25  # HUGZ of a server of chappe; the Guide's is a second
MAP_BEAT_CROWDED_S: Final = 1.0  # the longest interval, at a server that many hear: the Guide's clients give up after 5
MAP_BEATS_MAX: Final = 8_000  # HUGZ a second to all who hear it; beyond 2,000 of them it comes less often
MAP_BEATS_LOST: Final = 3  # so many missed, and the server is lost
MAP_SILENT_S: Final = 5.0  # the same for other servers, as in the Guide
MAP_SESSION_S: Final = 10.0  # values that end with their client are deleted when it was silent for so long

# -- pairs of servers (Binary Star) -----------------------------------------------------------------
STAR_HEARTBEAT_S: Final = 0.25  # of each server of a pair; the original's is 1 s
STAR_MISSED_MAX: Final = 3  # a partner that lets so many of its heartbeats pass is silent: another may take over
# The same of an original, as there; and so long a server waits for its partner at first.
STAR_ORIGINAL_SILENT_S: Final = 2.0
