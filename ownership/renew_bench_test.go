package ownership

import (
	"testing"
	"time"

	"github.com/balefire/balefire/ownership/dispatch"
	"github.com/balefire/balefire/proto"
)

// BenchmarkRenewals measures one heartbeat of 50 000 long leases that five owners have from
// one home: the work of both sides without the network, and the share of a core it takes.
// An operation is a whole heartbeat.
func BenchmarkRenewals(b *testing.B) {
	const owners, leases = 5, 50_000
	now := Now{Wall: 1_700_000_000_000, Mono: time.Hour, Boot: time.Hour}
	h := NewHome(homePeer, 1, Config{})
	h.Begin(now)
	all := map[proto.PeerID]*Owner{}
	for i := range owners {
		p := peerOf(i + 1)
		all[p] = NewOwner(proto.BootID{byte(i + 1)}, Config{})
		all[p].Begin(func(proto.TaskID) Policy { return PolicyRetry }, now)
		h.SetNode(Node{Member: dispatch.Member{Peer: p, Alive: true, Kinds: []string{"k"}, Slots: leases / owners}}, now)
	}
	for i := range leases {
		o := h.Add(Task{ID: testTaskID(i), Queue: "q", Kind: "k", NotAfter: now.Wall + 1e9}, now)
		for _, s := range o.Sends {
			x := all[s.To]
			for _, t := range x.OnGrant(homePeer, s.Body.(*proto.Grant), 0, now).Sends {
				h.OnGranted(s.To, t.Body.(*proto.Granted), now)
			}
			x.Ready(proto.TaskID(s.Body.(*proto.Grant).Claim.Task), false, now)
		}
	}
	if n := len(h.tasks); n != leases {
		b.Fatalf("%d leases, want %d", n, leases)
	}
	var atHome, atOwners time.Duration
	messages, bytes := 0, 0
	for b.Loop() {
		now.Wall, now.Mono, now.Boot = now.Wall+2000, now.Mono+2*time.Second, now.Boot+2*time.Second
		for p, o := range all {
			begin := time.Now()
			sends := o.Tick(now).Sends
			wire := make([][]byte, len(sends))
			for i, s := range sends {
				wire[i], _ = proto.Encode(nil, s.Body)
				bytes += len(wire[i])
			}
			atOwners += time.Since(begin)
			messages += len(sends)
			for _, w := range wire {
				begin = time.Now()
				m := new(proto.Renew)
				if err := proto.Decode(w, m); err != nil {
					b.Fatal(err)
				}
				answer := h.OnRenew(p, m, now).Sends[0].Body.(*proto.Renewed)
				atHome += time.Since(begin)
				begin = time.Now()
				o.OnRenewed(homePeer, answer, now)
				atOwners += time.Since(begin)
			}
		}
		begin := time.Now()
		h.Tick(now)
		atHome += time.Since(begin)
	}
	beats := float64(b.N) * Config{}.withDefaults().Heartbeat.Seconds()
	b.ReportMetric(100*atHome.Seconds()/beats, "%core-home")
	b.ReportMetric(100*atOwners.Seconds()/beats/owners, "%core-owner")
	b.ReportMetric(float64(messages)/float64(b.N), "messages/op")
	b.ReportMetric(float64(bytes)/float64(b.N)/1024, "KiB/op")
}
