/* A producer and a consumer of one topic, in C over libzmq alone.

     client produce HOST:PORT:PORT TOPIC < lines        ends when a store has all of them on disk
     client consume HOST:PORT:PORT TOPIC [COUNT]        from the beginning; ends after COUNT records, or never

   HOST:PORT:PORT are the two ports of a tower. Written from docs/reference/protocol.md. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <zmq.h>

enum { WINDOW = 1000,           /* records of a producer that no store has acknowledged */
       PIECE = 1000,            /* records of one FETCH */
       MEMBERS = 1024, PARTITIONS = 4096,
       SILENT_MS = 4000, HEADS_MS = 10000, RETRY_MS = 1000, TRIES = 5 };

typedef struct { uint8_t bytes[1024]; size_t size; } header_t;
typedef struct { const uint8_t *at, *end; bool cut; } reader_t;
typedef struct { char *text; size_t size; } line_t;
typedef struct { char endpoint[256]; int64_t heard; } member_t;
typedef struct { char name[256]; uint64_t next, head, asked; int64_t asked_at; int tries; } partition_t;

static void *context, *tower_in, *tower_out, *in, *out; /* in, out: connected to members, bound for them */
static char self[33], port[6], topic[256];
static member_t members[MEMBERS];
static int members_count;
static int64_t tower_heard;

static void fail (const char *what) { fprintf (stderr, "client: %s\n", what); exit (1); }
static int64_t now_ms (void) {
    struct timespec t;
    clock_gettime (CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000LL + t.tv_nsec / 1000000;
}

/* -- messages ---------------------------------------------------------------------------------------- */

static void put_number (header_t *h, uint64_t value, int size) {
    while (size--) h->bytes[h->size++] = (uint8_t) (value >> 8 * size);
}
static void put_string (header_t *h, const char *text, int size) { /* size: octets of its length */
    put_number (h, strlen (text), size);
    memcpy (h->bytes + h->size, text, strlen (text));
    h->size += strlen (text);
}
static header_t head_of (char id, const char *to) {
    header_t h = {{(uint8_t) id}, 1};
    memcpy (h.bytes + 1, to, strlen (to));
    h.size += strlen (to);
    h.bytes[h.size++] = 0;
    h.bytes[h.size++] = 1; /* the version */
    return h;
}
static header_t record_or_head (char id, const char *to, uint64_t sequence) { /* M, D, H: the same fields */
    header_t h = head_of (id, to);
    put_string (&h, self, 1);
    put_string (&h, topic, 1);
    put_number (&h, sequence, 8);
    return h;
}
static void publish (header_t h) { zmq_send (out, h.bytes, h.size, 0); }
static void publish_record (char id, const char *to, uint64_t sequence, line_t content) {
    header_t h = record_or_head (id, to, sequence);
    zmq_send (out, h.bytes, h.size, ZMQ_SNDMORE);
    zmq_send (out, content.text, content.size, 0);
}

static uint64_t get_number (reader_t *r, int size) {
    uint64_t value = 0;
    if (r->end - r->at < size) { r->cut = true; return 0; }
    while (size--) value = value << 8 | *r->at++;
    return value;
}
static void get_string (reader_t *r, char text[256]) {
    size_t size = get_number (r, 1);
    if ((size_t) (r->end - r->at) < size) { r->cut = true; size = 0; }
    memcpy (text, r->at, size);
    text[size] = 0;
    r->at += size;
}
/* All frames of the next message, of which there are at most `most`; 0 if there is no message. */
static int receive (void *socket, zmq_msg_t *frames, int most) {
    int count = 0, more = 1;
    while (more) {
        zmq_msg_t spare, *frame = count < most ? &frames[count] : &spare;
        zmq_msg_init (frame);
        if (zmq_msg_recv (frame, socket, ZMQ_DONTWAIT) < 0) return 0; /* a message comes whole: this is its first frame */
        more = zmq_msg_more (frame);
        if (count++ >= most) zmq_msg_close (frame);
    }
    return count < most ? count : most;
}
static void drop (zmq_msg_t *frames, int count) { while (count--) zmq_msg_close (&frames[count]); }

/* -- towers and members ------------------------------------------------------------------------------ */

static void *socket_of (int type) {
    void *socket = zmq_socket (context, type);
    int linger = 1000, queue = 10000;
    zmq_setsockopt (socket, ZMQ_LINGER, &linger, sizeof linger);
    zmq_setsockopt (socket, ZMQ_SNDHWM, &queue, sizeof queue);
    return socket;
}
static void subscribe (char id, const char *to) {
    char prefix[300];
    zmq_setsockopt (in, ZMQ_SUBSCRIBE, prefix, snprintf (prefix, sizeof prefix, "%c%s", id, to));
}
static void beacon (const char *kind) { /* "B" once a second, "G" at the end; an empty host: where the tower sees us */
    zmq_send (tower_out, kind, 1, ZMQ_SNDMORE);
    zmq_send (tower_out, self, 32, ZMQ_SNDMORE);
    zmq_send (tower_out, "", 0, ZMQ_SNDMORE);
    zmq_send (tower_out, port, strlen (port), 0);
}
static void start (char *tower, int publisher) {
    char host[256], endpoint[512];
    int hears, tells;
    if (sscanf (tower, "%255[^:]:%d:%d", host, &hears, &tells) != 3) fail ("the tower is HOST:PORT:PORT");
    context = zmq_ctx_new ();
    in = socket_of (ZMQ_SUB), out = socket_of (publisher), tower_in = socket_of (ZMQ_SUB), tower_out = socket_of (ZMQ_PUB);
    if (zmq_bind (out, "tcp://127.0.0.1:*")) fail (zmq_strerror (zmq_errno ()));
    size_t size = sizeof endpoint;
    zmq_getsockopt (out, ZMQ_LAST_ENDPOINT, endpoint, &size);
    snprintf (port, sizeof port, "%s", strrchr (endpoint, ':') + 1);
    uint8_t random[16];
    FILE *source = fopen ("/dev/urandom", "rb");
    if (!source || fread (random, 1, 16, source) != 16) fail ("no random numbers");
    fclose (source);
    for (int n = 0; n < 16; n++) sprintf (self + 2 * n, "%02X", random[n]);
    zmq_setsockopt (tower_in, ZMQ_SUBSCRIBE, "B", 1);
    snprintf (endpoint, sizeof endpoint, "tcp://%s:%d", host, hears);
    if (zmq_connect (tower_out, endpoint)) fail ("the tower is HOST:PORT:PORT");
    snprintf (endpoint, sizeof endpoint, "tcp://%s:%d", host, tells);
    if (zmq_connect (tower_in, endpoint)) fail ("the tower is HOST:PORT:PORT");
}
/* Beacons: kind, address, endpoint. Members share endpoints, so these are what is connected. Our own beacon comes too. */
static void hear_beacons (int64_t now) {
    zmq_msg_t frames[3];
    int count, n;
    while ((count = receive (tower_in, frames, 3))) {
        char endpoint[256] = "";
        if (count == 3 && zmq_msg_size (&frames[2]) < sizeof endpoint)
            memcpy (endpoint, zmq_msg_data (&frames[2]), zmq_msg_size (&frames[2]));
        bool own = count > 1 && zmq_msg_size (&frames[1]) == 32 && !memcmp (zmq_msg_data (&frames[1]), self, 32);
        drop (frames, count);
        if (now - tower_heard > SILENT_MS) /* without a tower nobody is heard: that is no reason to drop them */
            for (n = 0; n < members_count; n++) members[n].heard = now;
        tower_heard = now;
        if (own || strncmp (endpoint, "tcp://", 6)) continue;
        for (n = 0; n < members_count && strcmp (members[n].endpoint, endpoint); n++) ;
        if (n == MEMBERS || (n == members_count && zmq_connect (in, endpoint))) continue;
        if (n == members_count) strcpy (members[members_count++].endpoint, endpoint);
        members[n].heard = now;
    }
}
static void once_a_second (void) {
    beacon ("B");
    for (int n = members_count - 1; n >= 0; n--)
        if (tower_heard - members[n].heard > SILENT_MS) {
            zmq_disconnect (in, members[n].endpoint);
            members[n] = members[--members_count];
        }
}
static void stop (void) {
    beacon ("G");
    zmq_close (tower_out), zmq_close (tower_in), zmq_close (in), zmq_close (out);
    zmq_ctx_term (context);
}

/* -- producer ---------------------------------------------------------------------------------------- */

static void produce (void) {
    static line_t kept[WINDOW]; /* those from `stored` to `next`, for whoever missed them */
    uint64_t next = 0, stored = 0;
    bool ended = false;
    int64_t second = 0, head = 0;
    subscribe ('K', self), subscribe ('F', self);
    setvbuf (stdin, NULL, _IONBF, 0); /* so that poll sees all that there is to read */
    while (!ended || stored < next) {
        zmq_pollitem_t items[] = {{tower_in, 0, ZMQ_POLLIN, 0}, {in, 0, ZMQ_POLLIN, 0}, {NULL, 0, ZMQ_POLLIN, 0}};
        zmq_poll (items, !ended && next - stored < WINDOW ? 3 : 2, 100);
        int64_t now = now_ms ();
        hear_beacons (now);
        zmq_msg_t frame;
        while (receive (in, &frame, 1)) {
            uint8_t *bytes = zmq_msg_data (&frame);
            reader_t r = {bytes + 35, bytes + zmq_msg_size (&frame), zmq_msg_size (&frame) < 35 || bytes[34] != 1}; /* behind our address */
            char requester[256] = "", subject[256] = "";
            if (!r.cut && bytes[0] == 'F') get_string (&r, requester);
            if (!r.cut) get_string (&r, subject);
            uint64_t sequence = r.cut ? 0 : get_number (&r, 8), count = !r.cut && bytes[0] == 'F' ? get_number (&r, 4) : 0;
            if (r.cut || strcmp (subject, topic)) ;
            else if (bytes[0] == 'K')
                for (; stored < next && stored <= sequence; stored++) free (kept[stored % WINDOW].text);
            else if (sequence >= stored) /* what comes before is to be had from stores */
                for (; count && sequence < next; count--, sequence++)
                    publish_record ('D', requester, sequence, kept[sequence % WINDOW]);
            drop (&frame, 1);
        }
        if (items[2].revents) {
            line_t line = {NULL, 0};
            size_t room = 0;
            ssize_t size = getline (&line.text, &room, stdin);
            if (size < 0) { ended = true; free (line.text); continue; }
            line.size = (size_t) size - (line.text[size - 1] == '\n');
            kept[next % WINDOW] = line;
            publish_record ('M', topic, next++, line);
        }
        if (now - second >= 1000) { once_a_second (); second = now; }
        if (next && now - head >= (ended ? 100 : 1000)) { /* a store that missed records asks; one that has all says so */
            publish (record_or_head ('H', topic, next - 1));
            head = now;
        }
    }
}

/* -- consumer ---------------------------------------------------------------------------------------- */

static partition_t partitions[PARTITIONS];
static int partitions_count;

static partition_t *partition_of (const char *name) {
    int n = 0;
    while (n < partitions_count && strcmp (partitions[n].name, name)) n++;
    if (n == PARTITIONS) fail ("the topic has more partitions than this program takes");
    if (n == partitions_count) strcpy (partitions[partitions_count++].name, name);
    return &partitions[n];
}
/* Ask for what is missing, a piece at a time, unless the answer to the last question is still arriving. */
static void fetch (partition_t *p, int64_t now) {
    if (p->next >= p->head || (p->next < p->asked && now - p->asked_at < RETRY_MS)) return;
    if (p->next >= p->asked) p->tries = 0;
    else if (++p->tries == TRIES)
        fprintf (stderr, "client: no answer yet for record %" PRIu64 " of %s\n", p->next, p->name);
    uint64_t count = p->head - p->next < PIECE ? p->head - p->next : PIECE;
    header_t h = head_of ('F', p->name);
    put_string (&h, self, 1);
    put_string (&h, topic, 1);
    put_number (&h, p->next, 8);
    put_number (&h, count, 4);
    publish (h);
    p->asked = p->next + count, p->asked_at = now;
}
static void greet (const char *store) { /* it answers with a DIRECT-HEAD for each partition */
    header_t h = head_of ('W', store);
    put_string (&h, self, 1);
    put_number (&h, 1, 4);
    put_string (&h, topic, 4);
    publish (h);
}
static void consume (uint64_t wanted) {
    int64_t second = 0, heads = now_ms ();
    subscribe ('D', self), subscribe ('E', self), subscribe ('L', self), subscribe ('M', topic), subscribe ('H', topic);
    while (wanted) {
        zmq_pollitem_t items[] = {{tower_in, 0, ZMQ_POLLIN, 0}, {in, 0, ZMQ_POLLIN, 0}, {out, 0, ZMQ_POLLIN, 0}};
        zmq_poll (items, 3, 100);
        int64_t now = now_ms ();
        hear_beacons (now);
        zmq_msg_t frames[2];
        int count;
        while ((count = receive (out, frames, 1))) { /* subscriptions: a store that listens to W is there */
            char *bytes = zmq_msg_data (frames), store[256] = "";
            size_t size = zmq_msg_size (frames);
            if (size > 2 && size < 258 && bytes[0] == 1 && bytes[1] == 'W') greet (memcpy (store, bytes + 2, size - 2));
            drop (frames, count);
        }
        while (wanted && (count = receive (in, frames, 2))) {
            uint8_t *bytes = zmq_msg_data (frames), *end = bytes + zmq_msg_size (frames);
            uint8_t *nul = bytes < end ? memchr (bytes, 0, end - bytes) : NULL;
            reader_t r = {nul ? nul + 2 : end, end, !nul || nul + 2 > end || nul[1] != 1};
            char address[256] = "", subject[256] = "", id = r.cut ? 0 : (char) bytes[0];
            if (!r.cut) get_string (&r, address);
            if (id == 'L' && !r.cut) greet (address);
            else if (!r.cut) {
                get_string (&r, subject);
                uint64_t sequence = get_number (&r, 8);
                bool record = id == 'M' || id == 'D';
                if (!r.cut && !strcmp (subject, topic) && count >= (record ? 2 : 1)) {
                    partition_t *p = partition_of (address);
                    if (id != 'D' && sequence >= p->head) p->head = sequence + 1;
                    if (record && sequence == p->next) { /* others come again, or too early: then they are fetched */
                        fwrite (zmq_msg_data (&frames[1]), 1, zmq_msg_size (&frames[1]), stdout);
                        putchar ('\n');
                        p->next++, wanted--, p->tries = 0, p->asked_at = now;
                    }
                    fetch (p, now);
                }
            }
            drop (frames, count);
        }
        if (fflush (stdout)) fail ("cannot write records");
        if (now - second >= 1000) {
            once_a_second ();
            second = now;
            for (int n = 0; n < partitions_count; n++) fetch (&partitions[n], now);
        }
        if (now - heads >= HEADS_MS) { /* a DIRECT-HEAD that was lost is not sent again unasked */
            header_t h = head_of ('G', topic);
            put_string (&h, self, 1);
            publish (h);
            heads = now;
        }
    }
}

int main (int argc, char **argv) {
    bool producing = argc == 4 && !strcmp (argv[1], "produce");
    if (!producing && !((argc == 4 || argc == 5) && !strcmp (argv[1], "consume")))
        fail ("client produce|consume HOST:PORT:PORT TOPIC [COUNT]");
    if (strlen (argv[3]) > 255) fail ("topics have at most 255 octets");
    strcpy (topic, argv[3]);
    start (argv[2], producing ? ZMQ_PUB : ZMQ_XPUB);
    if (producing) produce (); else consume (argc == 5 ? strtoull (argv[4], NULL, 10) : UINT64_MAX);
    stop ();
    return 0;
}
