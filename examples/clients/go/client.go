// A producer and a consumer of one topic, in Go over libzmq.
//
//	client produce HOST:PORT:PORT TOPIC < lines    ends when a store has all of them on disk
//	client consume HOST:PORT:PORT TOPIC [COUNT]    from the beginning; ends after COUNT records, or never
//
// HOST:PORT:PORT are the two ports of a tower. Written from docs/reference/protocol.md.
package main

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"strings"
	"time"

	zmq "github.com/pebbe/zmq4"
)

const (
	window        = 1000 // records of a producer that no store has acknowledged
	piece         = 1000 // records of one FETCH
	membersMax    = 1024
	partitionsMax = 4096
	silent        = 4 * time.Second
	headsEvery    = 10 * time.Second
	retry         = time.Second
	tries         = 5 // after so many a person is told
)

type client struct {
	self, topic, port string
	towerIn, towerOut *zmq.Socket
	in, out           *zmq.Socket // connected to members, bound for them
	poller            *zmq.Poller
	members           map[string]time.Time // endpoints, and when they were heard of
	towerHeard        time.Time
	second            time.Time
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "client:", err)
		os.Exit(1)
	}
}

// -- messages ---------------------------------------------------------------------------------------------

// header makes the first frame of a message: of strings, numbers of 8 octets (uint64) and counts of 4 (uint32).
func header(id byte, to string, fields ...any) []byte {
	made := append([]byte{id}, to...)
	made = append(made, 0, 1) // the version
	for _, field := range fields {
		switch value := field.(type) {
		case string:
			made = append(append(made, byte(len(value))), value...)
		case uint64:
			made = binary.BigEndian.AppendUint64(made, value)
		case uint32:
			made = binary.BigEndian.AppendUint32(made, value)
		}
	}
	return made
}

// fields are what follows topic and version of a header; a field that is cut off empties it and sets cut.
type fields struct {
	rest []byte
	cut  bool
}

func read(header []byte) *fields {
	nul := bytes.IndexByte(header, 0)
	if nul < 1 || nul+1 >= len(header) || header[nul+1] != 1 {
		return &fields{nil, true}
	}
	return &fields{header[nul+2:], false}
}

func (f *fields) take(size int) []byte {
	if size > len(f.rest) {
		f.rest, f.cut = nil, true
		return make([]byte, size)
	}
	taken := f.rest[:size]
	f.rest = f.rest[size:]
	return taken
}

func (f *fields) text() string   { return string(f.take(int(f.take(1)[0]))) }
func (f *fields) number() uint64 { return binary.BigEndian.Uint64(f.take(8)) }
func (f *fields) count() uint32  { return binary.BigEndian.Uint32(f.take(4)) }

func (c *client) publish(frames ...[]byte) {
	parts := make([]any, len(frames))
	for n, each := range frames {
		parts[n] = each
	}
	_, err := c.out.SendMessage(parts...)
	check(err)
}

// receive returns the frames of the next message, or nil if there is none.
func receive(socket *zmq.Socket) [][]byte {
	frames, err := socket.RecvMessageBytes(zmq.DONTWAIT)
	if err != nil {
		return nil
	}
	return frames
}

// -- towers and members -----------------------------------------------------------------------------------

func start(tower, topic string, publisher zmq.Type) *client {
	parts := strings.Split(tower, ":")
	if len(parts) != 3 {
		check(errors.New("the tower is HOST:PORT:PORT"))
	}
	random := make([]byte, 16)
	_, err := rand.Read(random)
	check(err)
	c := &client{self: fmt.Sprintf("%X", random), topic: topic, poller: zmq.NewPoller(), members: map[string]time.Time{}}
	for _, each := range []struct {
		place **zmq.Socket
		kind  zmq.Type
	}{{&c.towerIn, zmq.SUB}, {&c.towerOut, zmq.PUB}, {&c.in, zmq.SUB}, {&c.out, publisher}} {
		*each.place, err = zmq.NewSocket(each.kind)
		check(err)
		check((*each.place).SetLinger(time.Second))
		check((*each.place).SetSndhwm(10_000))
	}
	check(c.out.Bind("tcp://127.0.0.1:*"))
	endpoint, err := c.out.GetLastEndpoint()
	check(err)
	c.port = endpoint[strings.LastIndex(endpoint, ":")+1:]
	check(c.towerIn.SetSubscribe("B"))
	check(c.towerOut.Connect("tcp://" + parts[0] + ":" + parts[1]))
	check(c.towerIn.Connect("tcp://" + parts[0] + ":" + parts[2]))
	c.poller.Add(c.towerIn, zmq.POLLIN)
	c.poller.Add(c.in, zmq.POLLIN)
	if publisher == zmq.XPUB {
		c.poller.Add(c.out, zmq.POLLIN)
	}
	return c
}

// beacon says "B" once a second and "G" at the end; an empty host stands for where the tower sees us.
func (c *client) beacon(kind string) {
	_, err := c.towerOut.SendMessage(kind, c.self, "", c.port)
	check(err)
}

// hearBeacons connects members. They share endpoints, so these are what is connected. Our own beacon comes too.
func (c *client) hearBeacons(now time.Time) {
	for frames := receive(c.towerIn); frames != nil; frames = receive(c.towerIn) {
		if now.Sub(c.towerHeard) > silent { // without a tower nobody is heard: that is no reason to drop them
			for endpoint := range c.members {
				c.members[endpoint] = now
			}
		}
		c.towerHeard = now
		if len(frames) < 3 || string(frames[1]) == c.self {
			continue
		}
		endpoint := string(frames[2])
		_, known := c.members[endpoint]
		if !strings.HasPrefix(endpoint, "tcp://") || (!known && len(c.members) == membersMax) {
			continue
		}
		if known || c.in.Connect(endpoint) == nil {
			c.members[endpoint] = now
		}
	}
}

// tick does what is done once a second, and returns whether it was time for it.
func (c *client) tick(now time.Time) bool {
	if now.Sub(c.second) < time.Second {
		return false
	}
	c.second = now
	c.beacon("B")
	for endpoint, heard := range c.members {
		if c.towerHeard.Sub(heard) > silent {
			check(c.in.Disconnect(endpoint))
			delete(c.members, endpoint)
		}
	}
	return true
}

func (c *client) stop() {
	c.beacon("G")
	for _, each := range []*zmq.Socket{c.towerOut, c.towerIn, c.in, c.out} {
		each.Close()
	}
	zmq.Term() // once everything is sent, or after the time to linger
}

// -- producer ---------------------------------------------------------------------------------------------

func readLines(lines chan<- []byte) {
	input := bufio.NewReader(os.Stdin)
	for {
		line, err := input.ReadBytes('\n')
		if err != nil && err != io.EOF {
			check(err)
		}
		if len(line) > 0 {
			lines <- bytes.TrimSuffix(line, []byte("\n"))
		}
		if err == io.EOF {
			close(lines)
			return
		}
	}
}

func (c *client) produce() {
	lines := make(chan []byte, window)
	go readLines(lines)
	check(c.in.SetSubscribe("K" + c.self))
	check(c.in.SetSubscribe("F" + c.self))
	kept := [][]byte{} // those from stored on, for whoever missed them
	var stored, next uint64
	var head time.Time
	for ended := false; !ended || stored < next; {
		_, err := c.poller.Poll(10 * time.Millisecond)
		check(err)
		now := time.Now()
		c.hearBeacons(now)
		for frames := receive(c.in); frames != nil; frames = receive(c.in) {
			asked, requester := read(frames[0]), ""
			fetch := !asked.cut && frames[0][0] == 'F'
			if fetch {
				requester = asked.text()
			}
			subject, sequence, count := asked.text(), asked.number(), uint32(0)
			if fetch {
				count = asked.count()
			}
			switch {
			case asked.cut || subject != c.topic:
			case !fetch:
				for ; stored < next && stored <= sequence; stored++ {
					kept = kept[1:]
				}
			case sequence >= stored: // what comes before is to be had from stores
				for ; count > 0 && sequence < next; count, sequence = count-1, sequence+1 {
					c.publish(header('D', requester, c.self, c.topic, sequence), kept[sequence-stored])
				}
			}
		}
		for more := true; more && !ended && len(kept) < window; {
			select {
			case line, open := <-lines:
				if ended = !open; open {
					kept = append(kept, line)
					c.publish(header('M', c.topic, c.self, c.topic, next), line)
					next++
				}
			default:
				more = false
			}
		}
		c.tick(now)
		pause := time.Second
		if ended {
			pause /= 10
		}
		if next > 0 && now.Sub(head) >= pause { // a store that missed records asks for them; others acknowledge
			c.publish(header('H', c.topic, c.self, c.topic, next-1))
			head = now
		}
	}
}

// -- consumer ---------------------------------------------------------------------------------------------

type partition struct {
	next, head, asked uint64
	askedAt           time.Time
	tries             int
}

func (c *client) consume(wanted uint64) {
	output := bufio.NewWriter(os.Stdout)
	for _, prefix := range []string{"D" + c.self, "E" + c.self, "L" + c.self, "M" + c.topic, "H" + c.topic} {
		check(c.in.SetSubscribe(prefix))
	}
	partitions := map[string]*partition{}
	heads := time.Now()
	for wanted > 0 {
		_, err := c.poller.Poll(100 * time.Millisecond)
		check(err)
		now := time.Now()
		c.hearBeacons(now)
		for frames := receive(c.out); frames != nil; frames = receive(c.out) {
			if strings.HasPrefix(string(frames[0]), "\x01W") { // a subscription: a store that listens to W is there
				c.greet(string(frames[0][2:]))
			}
		}
		for wanted > 0 {
			frames := receive(c.in)
			if frames == nil {
				break
			}
			if c.take(frames, partitions, now) {
				output.Write(frames[1])
				output.WriteByte('\n')
				wanted--
			}
		}
		check(output.Flush())
		if c.tick(now) {
			for address, each := range partitions {
				c.fetch(address, each, now)
			}
		}
		if now.Sub(heads) >= headsEvery { // a DIRECT-HEAD that was lost is not sent again unasked
			c.publish(header('G', c.topic, c.self))
			heads = now
		}
	}
}

// take returns whether the message is the next record of its partition. Others come again, or too early: then they
// are fetched.
func (c *client) take(frames [][]byte, partitions map[string]*partition, now time.Time) bool {
	told := read(frames[0])
	address := told.text()
	if told.cut {
		return false
	}
	id := frames[0][0]
	if id == 'L' {
		c.greet(address)
		return false
	}
	subject, sequence, record := told.text(), told.number(), id == 'M' || id == 'D'
	if told.cut || subject != c.topic || (record && len(frames) < 2) {
		return false
	}
	each, known := partitions[address]
	if !known {
		if len(partitions) == partitionsMax {
			check(errors.New("the topic has more partitions than this program takes"))
		}
		each = &partition{}
		partitions[address] = each
	}
	if id != 'D' && sequence >= each.head {
		each.head = sequence + 1
	}
	expected := record && sequence == each.next
	if expected {
		each.next, each.tries, each.askedAt = each.next+1, 0, now
	}
	c.fetch(address, each, now)
	return expected
}

// fetch asks for what is missing, a piece at a time, unless the answer to the last question is still arriving.
func (c *client) fetch(address string, each *partition, now time.Time) {
	answering := each.next < each.asked
	if each.next >= each.head || (answering && now.Sub(each.askedAt) < retry) {
		return
	}
	if !answering {
		each.tries = 0
	} else if each.tries++; each.tries == tries {
		fmt.Fprintln(os.Stderr, "client: no answer yet for record", each.next, "of", address)
	}
	count := each.head - each.next
	if count > piece {
		count = piece
	}
	c.publish(header('F', address, c.self, c.topic, each.next, uint32(count)))
	each.asked, each.askedAt = each.next+count, now
}

// greet makes a store answer with a DIRECT-HEAD for each partition. The topic is a longstr: its size has 4 octets.
func (c *client) greet(store string) {
	c.publish(append(header('W', store, c.self, uint32(1), uint32(len(c.topic))), c.topic...))
}

func main() {
	args := os.Args[1:]
	producing := len(args) == 3 && args[0] == "produce"
	if !producing && !(len(args) >= 3 && len(args) <= 4 && args[0] == "consume") {
		check(errors.New("client produce|consume HOST:PORT:PORT TOPIC [COUNT]"))
	}
	if producing {
		c := start(args[1], args[2], zmq.PUB)
		c.produce()
		c.stop()
		return
	}
	wanted := uint64(math.MaxUint64)
	if len(args) == 4 {
		var err error
		wanted, err = strconv.ParseUint(args[3], 10, 64)
		check(err)
	}
	c := start(args[1], args[2], zmq.XPUB)
	c.consume(wanted)
	c.stop()
}
