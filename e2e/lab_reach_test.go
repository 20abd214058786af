//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/balefire/balefire/internal/lab"
	"github.com/balefire/balefire/internal/lab/netfilter"
	"github.com/balefire/balefire/wire"
)

// A natLab is a network like the internet: public relays, and two machines, a and b, each
// behind a router.
//
//	relay1 11.0.0.1   relay2 11.0.0.2
//	      └──────┬───────────┘
//	   office .101   home .102
//	        │           │
//	        a           b
type natLab struct {
	public       *lab.Net
	office, home *lab.Router
	relays       []*machine
	a, b         *machine
	laptop       *lab.Host // the host that a runs on
}

// A plan configures a natLab.
type plan struct {
	office, home netfilter.NAT
	relays       int    // default 1
	net          string // YAML below net: of all machines
	tcp          bool   // over TCP alone
}

// newNATLab builds the network and pairs the machines; a and b are stopped, the
// relays run. The first relay founds the mesh.
func newNATLab(t *testing.T, p plan) *natLab {
	t.Helper()
	f := &natLab{public: lab.New(t).Net("public", "11.0.0.0/24")}
	c := config{engine: "nutsdb", net: "  mdns: off\n" + p.net}
	if p.tcp {
		c.listen = []string{"/ip4/0.0.0.0/tcp/4001"}
	}
	for i := range max(p.relays, 1) {
		name := fmt.Sprintf("relay%d", i+1)
		h := f.public.Host(name, lab.Attachment{Addr: fmt.Sprintf("11.0.0.%d", i+1)})
		m := newMachine(t, name, i == 0, place(h, c))
		if i > 0 {
			m.join(f.relays[0])
		}
		m.start()
		f.relays = append(f.relays, m)
	}
	f.office = f.public.Router("office", lab.Attachment{Addr: "11.0.0.101"}, "192.168.1.0/24", p.office)
	f.home = f.public.Router("home", lab.Attachment{Addr: "11.0.0.102"}, "192.168.2.0/24", p.home)
	f.laptop = f.office.LAN.Host("a", lab.Attachment{Addr: "192.168.1.2"})
	f.a = newMachine(t, "a", false, place(f.laptop, c))
	f.b = newMachine(t, "b", false, place(f.home.LAN.Host("b", lab.Attachment{Addr: "192.168.2.2"}), c))
	f.a.join(f.relays[0])
	f.b.join(f.relays[0])
	return f
}

func direct(p wire.Peer) bool  { return p.Direct }
func relayed(p wire.Peer) bool { return p.Relay != "" }

// flowing submits marks from a to b, ten every 50 ms, until enough returns true, and
// returns what was acknowledged.
func (f *natLab) flowing(ctx context.Context, enough func(sent int) bool) *acknowledged {
	p := newAcknowledged()
	for ctx.Err() == nil && !enough(p.count()) {
		p.submit(ctx, f.a, 10, wire.Request{Target: "b", Kind: "mark"})
		pause(50 * time.Millisecond)
	}
	return p
}

// TestConesReachEachOther checks S41: two nodes behind cone NATs are connected directly
// within 5 s of the first contact, over QUIC and over TCP alone, and none of 1000 tasks
// that are sent meanwhile fails or runs twice.
func TestConesReachEachOther(t *testing.T) {
	for _, tcp := range []bool{false, true} {
		t.Run(map[bool]string{false: "quic", true: "tcp"}[tcp], func(t *testing.T) {
			f := newNATLab(t, plan{tcp: tcp})
			both(func(m *machine) { m.start() }, f.a, f.b)
			var sending sync.WaitGroup
			var p *acknowledged
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			sending.Go(func() { p = f.flowing(ctx, func(sent int) bool { return sent >= either(200, 1000) }) })
			f.a.meets("b", anyhow)
			began := time.Now()
			got := f.a.meets("b", direct)
			took := time.Since(began)
			t.Logf("the direct path: %s", got.Path)
			within(t, "direct after the first contact", took, 5*time.Second)
			sending.Wait()
			p.checkAllEnd(t, f.a, "SUCCESS")
			if again := p.checkMarks(t, f.b); again > 0 {
				t.Errorf("I6: %d tasks ran twice", again)
			}
		})
	}
}

// TestSymmetricStaysRelayed checks that nodes behind symmetric NATs, where hole punching
// fails, keep working through a relay, also for a body of 50 MB (S39).
func TestSymmetricStaysRelayed(t *testing.T) {
	f := newNATLab(t, plan{office: netfilter.Symmetric, home: netfilter.Symmetric})
	both(func(m *machine) { m.start() }, f.a, f.b)
	f.a.meets("b", relayed)
	p := newAcknowledged()
	p.submit(t.Context(), f.a, 100, wire.Request{Target: "b", Kind: "mark"})
	p.checkAllEnd(t, f.a, "SUCCESS")
	file, want := largeFile(t, 50_000_000)
	began := time.Now()
	if got := f.a.must("send", "b", "sum", "@"+file, "--wait"); got != want {
		t.Errorf("the digest of 50 MB is %s, want %s", got, want)
	}
	t.Logf("50 MB in %s", time.Since(began))
	if got, err := f.a.Peer(t.Context(), "b"); err != nil || got.Direct || got.Relay != "relay1" {
		t.Errorf("b is reached by %+v, %v", got, err)
	}
}

// TestLaptopInTheCafe moves a node from the office to a network behind two NATs:
// its peer reaches it there within 10 s (S42).
func TestLaptopInTheCafe(t *testing.T) {
	f := newNATLab(t, plan{})
	provider := f.public.Router("provider", lab.Attachment{Addr: "11.0.0.103"}, "100.64.0.0/16", netfilter.Cone)
	cafe := provider.LAN.Router("cafe", lab.Attachment{Addr: "100.64.0.9"}, "192.168.1.0/24", netfilter.Cone)
	both(func(m *machine) { m.start() }, f.a, f.b)
	f.b.meets("a", anyhow)
	f.laptop.Move(cafe.LAN, lab.Attachment{Addr: "192.168.1.77"})
	within(t, "the first task is accepted after the move", f.b.accepted("a", time.Now()), 10*time.Second)
}
