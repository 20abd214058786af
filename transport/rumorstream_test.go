package transport

import (
	"bytes"
	"encoding/binary"
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/libp2p/go-libp2p-pubsub/pb"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"

	"github.com/balefire/balefire/clock"
)

// TestRumorPace checks that rumors are withheld but for a share while round trips are longer
// than the shortest one, also while one is overdue, and how often they are measured.
func TestRumorPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pings := 0
		p := &rumorPace{clock: clock.Runtime(), ping: func() { pings++ }}
		time.Sleep(time.Second)
		sent := func(size int) (n int) {
			for range 2 * rumorShare {
				if p.send(size) {
					n++
				}
			}
			return n
		}
		want := func(what string, rumors, measured int) {
			t.Helper()
			if n := sent(1); n != rumors || pings != measured {
				t.Errorf("%s: %d of %d rumors are sent, after %d measurements, want %d after %d", what, n, 2*rumorShare, pings, rumors, measured)
			}
		}
		want("nothing is known", 2*rumorShare, 1)
		p.measured(50 * time.Millisecond)
		want("a short round trip", 2*rumorShare, 1)
		time.Sleep(time.Hour)
		want("few bytes later", 2*rumorShare, 1)
		sent(rumorBytes)
		want("many bytes later", 2*rumorShare, 2)
		time.Sleep(50*time.Millisecond + rumorDelay + time.Millisecond)
		want("the second round trip goes on", 2, 2)
		p.measured(60*time.Millisecond + rumorDelay)
		want("it was long", 2, 2)
		time.Sleep(rumorPing)
		want("some seconds later", 2, 3)
		p.measured(40*time.Millisecond + rumorDelay)
		want("the third is only somewhat longer than the first", 2*rumorShare, 3)
		p.measured(time.Second)
		time.Sleep(rumorLong - time.Second)
		p.measured(2 * time.Second)
		want("they are long for some minutes", 2, 4)
		time.Sleep(time.Second)
		p.measured(2 * time.Second)
		want("they stay so: the path is longer", 2*rumorShare, 4)
		if p.shortest != time.Second {
			t.Errorf("its shortest round trip is %v, want 1s", p.shortest)
		}
	})
}

// A sinkStream keeps what is written.
type sinkStream struct {
	network.Stream
	written bytes.Buffer
}

func (s *sinkStream) Write(b []byte) (int, error) { return s.written.Write(b) }

// TestRumorStream checks that of an RPC whose rumors are withheld the rest is sent, if any, and
// that what is no RPC passes.
func TestRumorStream(t *testing.T) {
	met, err := newMetrics(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	rumor := &pb.Message{Data: []byte("a rumor")}
	control := &pb.ControlMessage{Graft: []*pb.ControlGraft{{TopicID: proto.String("topic")}}}
	encoded := func(rpc *pb.RPC) []byte {
		b, err := proto.MarshalOptions{}.MarshalAppend(binary.AppendUvarint(nil, uint64(proto.Size(rpc))), rpc)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	both := encoded(&pb.RPC{Publish: []*pb.Message{rumor, rumor}, Control: control})
	for name, tt := range map[string]struct {
		delayed     bool
		write, want []byte
	}{
		"a link that is fast":        {false, both, both},
		"a rumor and control":        {true, both, encoded(&pb.RPC{Control: control})},
		"rumors alone":               {true, encoded(&pb.RPC{Publish: []*pb.Message{rumor}}), nil},
		"control alone":              {true, encoded(&pb.RPC{Control: control}), encoded(&pb.RPC{Control: control})},
		"a part of an RPC":           {true, both[:len(both)-1], both[:len(both)-1]},
		"more than an RPC":           {true, append(bytes.Clone(both), 0), append(bytes.Clone(both), 0)},
		"no RPC":                     {true, []byte{3, 0xff, 0xff, 0xff}, []byte{3, 0xff, 0xff, 0xff}},
		"nothing, as at its closing": {true, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			sink := new(sinkStream)
			p := &rumorPace{clock: clock.System(), ping: func() {}, delayed: tt.delayed}
			s := &rumorStream{Stream: sink, pace: p, met: met}
			if n, err := s.Write(tt.write); err != nil || n != len(tt.write) || !bytes.Equal(sink.written.Bytes(), tt.want) {
				t.Errorf("wrote %d of %d bytes, %v: %q, want %q", n, len(tt.write), err, sink.written.Bytes(), tt.want)
			}
		})
	}
}
