package transport

import (
	"encoding/binary"
	"sync"
	"time"

	pb "github.com/libp2p/go-libp2p-pubsub/pb"
	"github.com/libp2p/go-libp2p/core/network"
	"google.golang.org/protobuf/proto"

	"github.com/balefire/balefire/clock"
)

// Rumors are hints: a member that misses some learns the same from probes and by comparison.
// So few are sent where the round trips have become much longer: there they fill a queue,
// behind which probes, heartbeats and tasks wait.

// Bounds of the rumors on one connection.
const (
	rumorDelay = 400 * time.Millisecond // by which a round trip is longer than the shortest one where rumors are withheld
	rumorShare = 8                      // one of so many is sent all the same: the path may have become longer
	rumorBytes = 2 << 10                // of rumors after which a round trip is measured
	rumorPing  = 3 * time.Second        // between two measurements, at least
	rumorLong  = 5 * time.Minute        // after which a path is as long as all its round trips since
)

// A rumorPace decides which rumors are sent on a connection.
type rumorPace struct {
	clock clock.Clock
	ping  func() // measures a round trip

	mu       sync.Mutex
	shortest time.Duration // round trip; 0: not known
	delayed  bool          // the last one was much longer, or still goes on
	since    time.Duration // when the first of these was measured
	least    time.Duration // the shortest of these
	asked    time.Duration // when the last measurement began; 0: never
	awaited  bool          // it goes on
	bytes    int           // of rumors since it began
	withheld int           // writes in a row
}

// measured records a round trip.
func (p *rumorPace) measured(rtt time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.awaited = false
	if p.shortest == 0 || rtt < p.shortest {
		p.shortest = rtt
	}
	if p.delayed = rtt-p.shortest > rumorDelay; !p.delayed {
		p.least = 0
		return
	}
	if p.least == 0 {
		p.since, p.least = p.clock.Mono(), rtt
	}
	if p.least = min(p.least, rtt); p.clock.Mono()-p.since >= rumorLong {
		p.shortest, p.least, p.delayed = p.least, 0, false
	}
}

// send reports whether rumors of so many bytes are sent now.
func (p *rumorPace) send(bytes int) bool {
	now := p.clock.Mono()
	p.mu.Lock()
	p.delayed = p.delayed || p.awaited && now-p.asked > p.shortest+rumorDelay
	p.withheld++
	send := !p.delayed || p.withheld >= rumorShare
	if send {
		p.withheld, p.bytes = 0, p.bytes+bytes
	}
	ask := p.asked == 0 || (p.delayed || p.bytes >= rumorBytes) && now-p.asked >= rumorPing
	if ask {
		p.asked, p.bytes, p.awaited = max(now, 1), 0, true
	}
	p.mu.Unlock()
	if ask {
		p.ping()
	}
	return send
}

// A rumorStream is a stream on which gossipsub sends: each Write has one RPC of its protocol.
type rumorStream struct {
	network.Stream
	pace *rumorPace
	met  *metrics
}

// Write writes an RPC, without its rumors if they are withheld.
func (s *rumorStream) Write(b []byte) (int, error) {
	rpc := rumorsOf(b)
	if rpc == nil || s.pace.send(len(b)) {
		return s.Stream.Write(b)
	}
	s.met.rumors.WithLabelValues("withheld").Add(float64(len(rpc.GetPublish())))
	if rpc.Publish = nil; proto.Size(rpc) == 0 {
		return len(b), nil
	}
	rest, err := proto.MarshalOptions{}.MarshalAppend(binary.AppendUvarint(nil, uint64(proto.Size(rpc))), rpc)
	if err == nil {
		_, err = s.Stream.Write(rest)
	}
	if err != nil {
		return 0, err
	}
	return len(b), nil
}

// rumorsOf returns the RPC in b if it has rumors, otherwise nil.
func rumorsOf(b []byte) *pb.RPC {
	size, n := binary.Uvarint(b)
	rpc := new(pb.RPC)
	if n <= 0 || size != uint64(len(b)-n) || proto.Unmarshal(b[n:], rpc) != nil || len(rpc.GetPublish()) == 0 {
		return nil
	}
	return rpc
}
