import java.io.BufferedOutputStream;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.nio.BufferUnderflowException;
import java.nio.ByteBuffer;
import java.util.ArrayDeque;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Iterator;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.ArrayBlockingQueue;

import org.zeromq.SocketType;
import org.zeromq.ZContext;
import org.zeromq.ZMQ;

import static java.nio.charset.StandardCharsets.ISO_8859_1;
import static java.nio.charset.StandardCharsets.UTF_8;

/**
 * A producer and a consumer of one topic, over JeroMQ alone.
 *
 * <pre>
 * Client produce HOST:PORT:PORT TOPIC < lines    ends when a store has all of them on disk
 * Client consume HOST:PORT:PORT TOPIC [COUNT]    from the beginning; ends after COUNT records, or never
 * </pre>
 *
 * HOST:PORT:PORT are the two ports of a tower. Written from docs/reference/protocol.md. Names are octets; a string here
 * has a character for each.
 */
public final class Client implements AutoCloseable {
    private static final int WINDOW = 1000; // records of a producer that no store has acknowledged
    private static final int PIECE = 1000; // records of one FETCH
    private static final int MEMBERS = 1024;
    private static final int PARTITIONS = 4096;
    private static final long SILENT_MS = 4000;
    private static final long HEADS_MS = 10_000;
    private static final long RETRY_MS = 1000;
    private static final int TRIES = 5; // after so many a person is told

    private static final class Partition {
        long next;
        long head;
        long asked;
        long askedAt;
        int tries;
    }

    private final String self = UUID.randomUUID().toString().replace("-", "").toUpperCase();
    private final String topic;
    private final ZContext context = new ZContext();
    private final ZMQ.Socket towerIn;
    private final ZMQ.Socket towerOut;
    private final ZMQ.Socket in; // connected to members
    private final ZMQ.Socket out; // bound for them
    private final ZMQ.Poller poller;
    private final int port;
    private final Map<String, Long> members = new HashMap<>(); // endpoints, and when they were heard of
    private long towerHeard;

    private Client(String tower, String topic, SocketType publisher) {
        this.topic = topic;
        String[] parts = tower.split(":");
        if (parts.length != 3) {
            throw new IllegalArgumentException("the tower is HOST:PORT:PORT");
        }
        context.setLinger(1000);
        towerIn = context.createSocket(SocketType.SUB);
        towerOut = context.createSocket(SocketType.PUB);
        in = context.createSocket(SocketType.SUB);
        out = context.createSocket(publisher);
        out.setSndHWM(10_000);
        port = out.bindToRandomPort("tcp://127.0.0.1");
        towerIn.subscribe("B");
        towerOut.connect("tcp://" + parts[0] + ":" + parts[1]);
        towerIn.connect("tcp://" + parts[0] + ":" + parts[2]);
        poller = context.createPoller(3);
        poller.register(towerIn, ZMQ.Poller.POLLIN);
        poller.register(in, ZMQ.Poller.POLLIN);
        if (publisher == SocketType.XPUB) {
            poller.register(out, ZMQ.Poller.POLLIN);
        }
    }

    // -- messages ------------------------------------------------------------------------------------

    /** A header: an octet string for a name, a Long for a number of 8 octets, an Integer for a count of 4. */
    private static byte[] header(char id, String to, Object... fields) {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        try (DataOutputStream data = new DataOutputStream(bytes)) {
            data.writeByte(id);
            data.write(to.getBytes(ISO_8859_1));
            data.write(new byte[] {0, 1}); // the version
            for (Object field : fields) {
                if (field instanceof Long number) {
                    data.writeLong(number);
                } else if (field instanceof Integer count) {
                    data.writeInt(count);
                } else {
                    byte[] name = ((String) field).getBytes(ISO_8859_1);
                    data.writeByte(name.length);
                    data.write(name);
                }
            }
        } catch (IOException e) {
            throw new AssertionError(e); // memory does not fail
        }
        return bytes.toByteArray();
    }

    private static String name(ByteBuffer fields) {
        byte[] name = new byte[fields.get() & 0xFF];
        fields.get(name);
        return new String(name, ISO_8859_1);
    }

    /** The fields of a header, behind its topic and version. */
    private static ByteBuffer fields(byte[] header) {
        ByteBuffer fields = ByteBuffer.wrap(header);
        while (fields.get() != 0) {
            // the id and the topic
        }
        if (fields.get() != 1) {
            throw new BufferUnderflowException(); // another version: dropped as what is cut off is
        }
        return fields;
    }

    private void publishRecord(char id, String to, long sequence, byte[] content) {
        out.sendMore(header(id, to, self, topic, sequence));
        out.send(content);
    }

    private void subscribe(String prefix) {
        in.subscribe(prefix.getBytes(ISO_8859_1));
    }

    /** All frames of the next message, or null if there is none. */
    private static byte[][] receive(ZMQ.Socket socket) {
        byte[] frame = socket.recv(ZMQ.DONTWAIT);
        if (frame == null) {
            return null;
        }
        byte[][] frames = {frame};
        while (socket.hasReceiveMore()) {
            frames = Arrays.copyOf(frames, frames.length + 1);
            frames[frames.length - 1] = socket.recv();
        }
        return frames;
    }

    // -- towers and members --------------------------------------------------------------------------

    private static long now() {
        return System.nanoTime() / 1_000_000;
    }

    /** "B" once a second, "G" at the end; an empty host stands for where the tower sees us. */
    private void beacon(String kind) {
        towerOut.sendMore(kind);
        towerOut.sendMore(self);
        towerOut.sendMore("");
        towerOut.send(Integer.toString(port));
    }

    /** Beacons: kind, address, endpoint. Members share endpoints, so these are what is connected. Our own comes too. */
    private void hearBeacons(long now) {
        for (byte[][] frames; (frames = receive(towerIn)) != null; ) {
            if (now - towerHeard > SILENT_MS) { // without a tower nobody is heard: that is no reason to drop them
                members.replaceAll((endpoint, heard) -> now);
            }
            towerHeard = now;
            if (frames.length < 3 || new String(frames[1], ISO_8859_1).equals(self)) {
                continue;
            }
            String endpoint = new String(frames[2], ISO_8859_1);
            if (endpoint.startsWith("tcp://") && (members.containsKey(endpoint) || members.size() < MEMBERS)) {
                if (members.put(endpoint, now) == null) {
                    in.connect(endpoint);
                }
            }
        }
    }

    private void onceASecond() {
        beacon("B");
        for (Iterator<Map.Entry<String, Long>> each = members.entrySet().iterator(); each.hasNext(); ) {
            Map.Entry<String, Long> member = each.next();
            if (towerHeard - member.getValue() > SILENT_MS) {
                in.disconnect(member.getKey());
                each.remove();
            }
        }
    }

    @Override
    public void close() {
        beacon("G");
        context.close();
    }

    // -- producer ------------------------------------------------------------------------------------

    private long first; // of those that are kept
    private final ArrayDeque<byte[]> kept = new ArrayDeque<>(); // those no store has, for whoever missed them

    private void produce() throws IOException {
        ArrayBlockingQueue<byte[]> lines = new ArrayBlockingQueue<>(WINDOW);
        Thread reader = new Thread(() -> readLines(lines));
        reader.setDaemon(true);
        reader.start();
        subscribe("K" + self);
        subscribe("F" + self);
        long next = 0;
        long second = 0;
        long head = 0;
        boolean ended = false;
        while (!ended || !kept.isEmpty()) {
            poller.poll(!ended && lines.size() > 0 && kept.size() < WINDOW ? 0 : 10);
            long now = now();
            hearBeacons(now);
            for (byte[][] frames; (frames = receive(in)) != null; ) {
                try {
                    answer(frames[0], next);
                } catch (BufferUnderflowException cutOff) {
                    continue;
                }
            }
            while (!ended && kept.size() < WINDOW) {
                byte[] line = lines.poll();
                if (line == null) {
                    break;
                }
                ended = line == END;
                if (!ended) {
                    kept.add(line);
                    publishRecord('M', topic, next++, line);
                }
            }
            if (now - second >= 1000) {
                onceASecond();
                second = now;
            }
            if (next > 0 && now - head >= (ended ? 100 : 1000)) { // a store that missed records asks; others acknowledge
                out.send(header('H', topic, self, topic, next - 1));
                head = now;
            }
        }
    }

    private void answer(byte[] header, long next) {
        ByteBuffer fields = fields(header);
        boolean fetch = header[0] == 'F';
        String requester = fetch ? name(fields) : "";
        if (!name(fields).equals(topic)) {
            return;
        }
        long sequence = fields.getLong();
        if (!fetch) {
            for (; first < next && first <= sequence; first++) {
                kept.remove();
            }
        } else if (sequence >= first) { // what comes before is to be had from stores
            long end = Math.min(next, sequence + Integer.toUnsignedLong(fields.getInt()));
            Iterator<byte[]> records = kept.iterator();
            for (long each = first; each < end; each++) {
                byte[] content = records.next();
                if (each >= sequence) {
                    publishRecord('D', requester, each, content);
                }
            }
        }
    }

    private static final byte[] END = new byte[0]; // this very object

    private static void readLines(ArrayBlockingQueue<byte[]> lines) {
        try (BufferedReader input = new BufferedReader(new InputStreamReader(System.in, ISO_8859_1))) {
            for (String line; (line = input.readLine()) != null; ) {
                lines.put(line.getBytes(ISO_8859_1));
            }
            lines.put(END);
        } catch (IOException | InterruptedException e) {
            fail("cannot read lines: " + e.getMessage());
        }
    }

    // -- consumer ------------------------------------------------------------------------------------

    private final Map<String, Partition> partitions = new HashMap<>();

    private void consume(long wanted) throws IOException {
        OutputStream output = new BufferedOutputStream(System.out);
        for (String prefix : new String[] {"D" + self, "E" + self, "L" + self, "M" + topic, "H" + topic}) {
            subscribe(prefix);
        }
        long second = 0;
        long heads = now();
        while (wanted > 0) {
            poller.poll(100);
            long now = now();
            hearBeacons(now);
            for (byte[][] frames; (frames = receive(out)) != null; ) { // subscriptions: a store that listens to W is there
                if (frames[0].length > 2 && frames[0][0] == 1 && frames[0][1] == 'W') {
                    greet(new String(frames[0], 2, frames[0].length - 2, ISO_8859_1));
                }
            }
            for (byte[][] frames; wanted > 0 && (frames = receive(in)) != null; ) {
                try {
                    if (take(frames, now)) {
                        output.write(frames[1]);
                        output.write('\n');
                        wanted--;
                    }
                } catch (BufferUnderflowException cutOff) {
                    continue;
                }
            }
            output.flush();
            if (now - second >= 1000) {
                onceASecond();
                second = now;
                partitions.forEach((partition, each) -> fetch(partition, each, now));
            }
            if (now - heads >= HEADS_MS) { // a DIRECT-HEAD that was lost is not sent again unasked
                out.send(header('G', topic, self));
                heads = now;
            }
        }
    }

    /** Whether the message is the next record of its partition. Others come again, or too early: then they are fetched. */
    private boolean take(byte[][] frames, long now) {
        ByteBuffer fields = fields(frames[0]);
        char id = (char) frames[0][0];
        String partition = name(fields);
        if (id == 'L') {
            greet(partition);
            return false;
        }
        boolean record = id == 'M' || id == 'D';
        if (!name(fields).equals(topic) || frames.length < (record ? 2 : 1)) {
            return false;
        }
        long sequence = fields.getLong();
        if (!partitions.containsKey(partition) && partitions.size() == PARTITIONS) {
            fail("the topic has more partitions than this program takes");
        }
        Partition each = partitions.computeIfAbsent(partition, name -> new Partition());
        if (id != 'D') {
            each.head = Math.max(each.head, sequence + 1);
        }
        boolean expected = record && sequence == each.next;
        if (expected) {
            each.next++;
            each.tries = 0;
            each.askedAt = now;
        }
        fetch(partition, each, now);
        return expected;
    }

    /** Ask for what is missing, a piece at a time, unless the answer to the last question is still arriving. */
    private void fetch(String partition, Partition each, long now) {
        boolean answering = each.next < each.asked;
        if (each.next >= each.head || (answering && now - each.askedAt < RETRY_MS)) {
            return;
        }
        each.tries = answering ? each.tries + 1 : 0;
        if (each.tries == TRIES) {
            System.err.println("client: no answer yet for record " + each.next + " of " + partition);
        }
        int count = (int) Math.min(each.head - each.next, PIECE);
        out.send(header('F', partition, self, topic, each.next, count));
        each.asked = each.next + count;
        each.askedAt = now;
    }

    /** A store answers with a DIRECT-HEAD for each partition. The topic is a longstr: its size has 4 octets. */
    private void greet(String store) {
        byte[] hello = header('W', store, self, 1, topic.length());
        byte[] name = topic.getBytes(ISO_8859_1);
        out.send(ByteBuffer.allocate(hello.length + name.length).put(hello).put(name).array());
    }

    private static void fail(String what) {
        System.err.println("client: " + what);
        System.exit(1);
    }

    public static void main(String[] args) throws IOException {
        boolean producing = args.length == 3 && args[0].equals("produce");
        if (!producing && !(args.length >= 3 && args.length <= 4 && args[0].equals("consume"))) {
            fail("Client produce|consume HOST:PORT:PORT TOPIC [COUNT]");
        }
        String topic = new String(args[2].getBytes(UTF_8), ISO_8859_1);
        try (Client client = new Client(args[1], topic, producing ? SocketType.PUB : SocketType.XPUB)) {
            if (producing) {
                client.produce();
            } else {
                client.consume(args.length == 4 ? Long.parseLong(args[3]) : Long.MAX_VALUE);
            }
        } catch (IllegalArgumentException e) {
            fail(e.getMessage());
        }
    }
}
