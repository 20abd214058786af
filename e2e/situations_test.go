//go:build e2e

package e2e

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/balefire/balefire/internal/lab"
	"github.com/balefire/balefire/internal/lab/netfilter"
	"github.com/balefire/balefire/wire"
)

// Sides are the places of a relay and of two members, a and b, in the networks of a
// situation.
//
//	relay 11.0.0.1
//	      └──────┬────────────┐
//	   office .101        home .102
//	        │                 │
//	        a                 b
type sides struct {
	relay, a, b  side
	third        *side // a member next to a; nil: none
	public       *lab.Net
	office, home *lab.Router // in front of a and b; nil where a situation has others
}

// A side is where a member is, and where it listens; nil: at port 4001 of IPv4.
type side struct {
	host   *lab.Host
	listen []string
}

// A situation is a row of TestSituations.
type situation struct {
	name   string
	brief  bool // in the short form too
	build  func(l *lab.Lab) *sides
	end    path
	after  path                             // the work; default end
	within time.Duration                    // from the start of a and b to the end state
	during func(s *sides, more func(n int)) // while a body is under way; more waits for n sixths of it
}

// A path is how two members are connected in the end.
type path string

const (
	overQUIC  path = "direct, QUIC"
	overTCP   path = "direct, TCP"
	overRelay path = "relayed"
	overAny   path = "connected"
)

func (e path) is(p wire.Peer) bool {
	switch e {
	case overQUIC:
		return p.Direct && strings.Contains(p.Path, "/quic-v1")
	case overTCP:
		return p.Direct && strings.Contains(p.Path, "/tcp/")
	case overAny:
		return true
	}
	return !p.Direct && p.Relay == "relay"
}

var situations = []situation{
	{name: "cone and cone", brief: true, build: behind(netfilter.Cone, netfilter.Cone), end: overQUIC, within: 5 * time.Second},
	{name: "full cone and cone", build: behind(netfilter.FullCone, netfilter.Cone), end: overQUIC, within: 5 * time.Second},
	{name: "restricted cone and cone", build: behind(netfilter.RestrictedCone, netfilter.Cone), end: overQUIC, within: 5 * time.Second},
	{name: "address mapping and cone", build: behind(netfilter.AddressMapping, netfilter.Cone), end: overRelay, within: 5 * time.Second},
	{name: "symmetric and symmetric", brief: true, build: behind(netfilter.Symmetric, netfilter.Symmetric), end: overRelay, within: 5 * time.Second},
	{name: "symmetric and cone", build: behind(netfilter.Symmetric, netfilter.Cone), end: overRelay, within: 5 * time.Second},
	{name: "symmetric and full cone", build: behind(netfilter.Symmetric, netfilter.FullCone), end: overQUIC, within: 10 * time.Second},
	{name: "symmetric and restricted cone", build: behind(netfilter.Symmetric, netfilter.RestrictedCone), end: overQUIC, within: 10 * time.Second},
	{name: "routers that accept packets themselves", build: behind(netfilter.AcceptingCone, netfilter.AcceptingCone), end: overRelay, within: 5 * time.Second},
	{name: "two NATs and cone", brief: true, build: behindTwo(1500, false), end: overQUIC, within: 5 * time.Second},
	{name: "one provider without hairpin", build: oneProvider, end: overRelay, within: 5 * time.Second},
	{name: "isolated clients", brief: true, build: isolated, end: overRelay, within: 5 * time.Second},
	{name: "two members on one port", build: twoMembers, end: overQUIC, within: 10 * time.Second},
	{name: "UDP blocked on both sides", brief: true, build: restricted(noUDP, noUDP), end: overTCP, within: 5 * time.Second},
	{name: "UDP rejected on both sides", build: restricted(rejectUDP, rejectUDP), end: overTCP, within: 5 * time.Second},
	{name: "UDP blocked on one side", build: restricted(noUDP, open), end: overTCP, within: 5 * time.Second},
	{name: "UDP blocked and symmetric", build: blockedAndSymmetric, end: overRelay, within: 5 * time.Second},
	{name: "only port 443 on one side, the rest dropped", build: restricted(only443, open), end: overRelay, within: 5 * time.Second},
	{name: "only port 443 on one side, the rest rejected", build: restricted(reject443, open), end: overRelay, within: 5 * time.Second},
	{name: "only port 443 on both sides, the rest dropped", build: restricted(only443, only443), end: overRelay, within: 5 * time.Second},
	{name: "only port 443 on both sides, the rest rejected", brief: true, build: restricted(reject443, reject443), end: overRelay, within: 5 * time.Second},
	{name: "IPv6 behind firewalls", brief: true, build: onlyIPv6, end: overQUIC, within: 5 * time.Second},
	{name: "IPv6 and IPv4", build: sixAndFour, end: overRelay, within: 5 * time.Second},
	{name: "interfaces with an MTU of 1280", build: smallInterfaces, end: overQUIC, within: 5 * time.Second},
	{name: "an MTU of 1280 in the middle", build: behindTwo(1280, false), end: overQUIC, within: 5 * time.Second},
	{name: "an MTU of 1280 in the middle without ICMP", brief: true, build: behindTwo(1280, true), end: overQUIC, within: 5 * time.Second},
	{name: "two wings with an MTU of 1400 between them without ICMP", build: twoWings, end: overQUIC, within: 5 * time.Second},
	{name: "a new address three times in a body", build: behind(netfilter.Cone, netfilter.Cone), end: overQUIC, after: overAny, within: 5 * time.Second, during: newAddresses},
	{name: "a move behind two NATs in a body", build: behind(netfilter.Cone, netfilter.Cone), end: overQUIC, after: overAny, within: 5 * time.Second, during: moveToTheCafe},
}

// TestSituations builds networks as members meet them and checks how two members are
// connected there in the end, and that a small task and a body of 50 MB arrive once and
// undamaged, and in time: a body in several times what it takes on an idle machine. The short
// form has some of the networks and a body of 5 MB.
func TestSituations(t *testing.T) {
	for _, tt := range situations {
		if !long && !tt.brief {
			continue
		}
		t.Run(tt.name, func(t *testing.T) {
			m := newMembers(t, tt.build(lab.New(t)))
			began := time.Now()
			both(func(m *machine) { m.start() }, m.all...)
			m.meet(tt.end)
			within(t, string(tt.end), time.Since(began), tt.within)
			m.work(either[int64](5_000_000, 50_000_000), tt)
			if long && tt.end == overRelay {
				pause(15 * time.Second) // holes are tried three times
			}
			m.meet(cmp.Or(tt.after, tt.end))
		})
	}
}

// Members are the nodes of a situation.
type members struct {
	*sides
	t    *testing.T
	a, b *machine
	all  []*machine // a, b and the third one
}

// newMembers starts the relay and pairs the others with it, which are stopped.
func newMembers(t *testing.T, s *sides) *members {
	t.Helper()
	const net = "  mdns: off\n"
	relay := newMachine(t, "relay", true, place(s.relay.host, config{engine: "nutsdb", net: net, listen: s.relay.listen}))
	relay.start()
	member := func(name string, s side) *machine {
		t.Helper()
		dir := filepath.Join(shortDir(t), name)
		m := newMachine(t, name, false, place(s.host, config{engine: "nutsdb", dir: dir, net: net, listen: s.listen, kinds: receivingHandler(dir)}))
		m.join(relay)
		return m
	}
	m := &members{sides: s, t: t, a: member("a", s.a), b: member("b", s.b)}
	m.all = []*machine{m.a, m.b}
	if s.third != nil {
		m.all = append(m.all, member("third", *s.third))
	}
	return m
}

// receivingHandler is a handler that returns the digest of its body and marks its runs.
func receivingHandler(dir string) string {
	mark := func(what string) string {
		return fmt.Sprintf(`echo "%s $BALEFIRE_TASK_ID $BALEFIRE_ATTEMPT $E2E_LIFE" >> %s`, what, filepath.Join(dir, "marks"))
	}
	return fmt.Sprintf("  - {kind: receive, exec: [/bin/sh, -c, '%s; sha256sum | cut -c 1-64; %s'], allow: ['role:send'], on_crash: retry, env: [E2E_LIFE, PATH]}\n", mark("S"), mark("E"))
}

// meet waits until b is connected with the others like this.
func (m *members) meet(want path) {
	m.t.Helper()
	for _, other := range m.all {
		if other != m.b {
			m.t.Logf("%s: %s", other.name, other.meets("b", want.is).Path)
			m.b.meets(other.name, want.is)
		}
	}
}

// bodyLimit is for how long a body of 50 MB may take.
func (s situation) bodyLimit() time.Duration {
	if s.during != nil {
		return time.Minute
	}
	return 20 * time.Second
}

// work sends b a small task from each other member, and a body from a.
func (m *members) work(size int64, s situation) {
	m.t.Helper()
	for _, other := range m.all {
		if other != m.b {
			p, began := newAcknowledged(), time.Now()
			if errs := p.submit(m.t.Context(), other, 1, wire.Request{Target: "b", Kind: "mark"}); errs != nil {
				m.t.Fatal(errs)
			}
			p.checkAllEnd(m.t, other, "SUCCESS")
			within(m.t, "a small task", time.Since(began), 2*time.Second)
			m.once(p)
		}
	}
	if s.during != nil {
		m.sides.b.host.Port.Rate(8 * size / 10) // it takes ten seconds
	}
	began := time.Now()
	id, want := m.a.submitLarge(size, wire.Request{Target: "b", Kind: "receive"})
	if s.during != nil {
		s.during(m.sides, func(n int) {
			m.t.Helper()
			m.b.until("more of the body is there", func() bool { return arrived(m.b.dir) > size*int64(n)/6 })
			m.t.Logf("%d sixths of the body are there after %s", n, time.Since(began).Round(time.Millisecond))
		})
	}
	p := newAcknowledged()
	p.add(id)
	p.checkAllEnd(m.t, m.a, "SUCCESS")
	within(m.t, fmt.Sprintf("a body of %d MB", size/1_000_000), time.Since(began), s.bodyLimit())
	m.once(p)
	r, _, err := m.a.Result(context.Background(), id)
	if err != nil {
		m.t.Fatal(err)
	}
	defer r.Close()
	if got, err := io.ReadAll(r); err != nil || strings.TrimSpace(string(got)) != want {
		m.t.Errorf("the digest is %q, %v, want %s", got, err, want)
	}
}

// once checks that each task ran once at b.
func (m *members) once(p *acknowledged) {
	m.t.Helper()
	if again := p.checkMarks(m.t, m.b); again > 0 {
		m.t.Errorf("I6: %d tasks ran twice", again)
	}
}

// homes puts a and b behind two routers.
func homes(l *lab.Lab, office, home netfilter.NAT) *sides {
	public := l.Net("public", "11.0.0.0/24")
	s := &sides{
		public: public,
		relay:  side{host: public.Host("relay", lab.Attachment{Addr: "11.0.0.1"})},
		office: public.Router("office", lab.Attachment{Addr: "11.0.0.101"}, "192.168.1.0/24", office),
		home:   public.Router("home", lab.Attachment{Addr: "11.0.0.102"}, "192.168.2.0/24", home),
	}
	s.a.host = s.office.LAN.Host("a", lab.Attachment{Addr: "192.168.1.2"})
	s.b.host = s.home.LAN.Host("b", lab.Attachment{Addr: "192.168.2.2"})
	return s
}

func behind(office, home netfilter.NAT) func(*lab.Lab) *sides {
	return func(l *lab.Lab) *sides { return homes(l, office, home) }
}

var (
	open      = netfilter.Filter{}
	noUDP     = netfilter.Filter{NoUDP: true}
	rejectUDP = netfilter.Filter{NoUDP: true, Reject: true}
	only443   = netfilter.Filter{OnlyTCP: 443}
	reject443 = netfilter.Filter{OnlyTCP: 443, Reject: true}
)

// restricted puts a and b behind cones that do not pass everything. The relay can also be
// reached at port 443.
func restricted(office, home netfilter.Filter) func(*lab.Lab) *sides {
	return func(l *lab.Lab) *sides {
		s := homes(l, netfilter.Cone, netfilter.Cone)
		s.office.Restrict(office)
		s.home.Restrict(home)
		s.relay.listen = []string{"/ip4/0.0.0.0/udp/4001/quic-v1", "/ip4/0.0.0.0/tcp/4001", "/ip4/0.0.0.0/tcp/443"}
		return s
	}
}

func blockedAndSymmetric(l *lab.Lab) *sides {
	s := homes(l, netfilter.Cone, netfilter.Symmetric)
	s.office.Restrict(noUDP)
	return s
}

func smallInterfaces(l *lab.Lab) *sides {
	s := homes(l, netfilter.Cone, netfilter.Cone)
	s.office.LAN.MTU(1280)
	s.home.LAN.MTU(1280)
	return s
}

// twoMembers puts a third member next to a, at the same port.
func twoMembers(l *lab.Lab) *sides {
	s := homes(l, netfilter.Cone, netfilter.Cone)
	s.third = &side{host: s.office.LAN.Host("third", lab.Attachment{Addr: "192.168.1.3"})}
	return s
}

// behindTwo puts a behind a router that is itself behind one, and b behind one router. Between
// the two routers packets are at most this large.
func behindTwo(mtu int, silent bool) func(*lab.Lab) *sides {
	return func(l *lab.Lab) *sides {
		s := homes(l, netfilter.Cone, netfilter.Cone)
		provider, cafe := twoNATs(s.public)
		provider.LAN.MTU(mtu)
		if silent {
			provider.Silence()
			cafe.Silence()
		}
		s.a.host.Move(cafe.LAN, lab.Attachment{Addr: "192.168.1.77"})
		return s
	}
}

// twoNATs builds a provider's NAT and one behind it.
func twoNATs(public *lab.Net) (provider, cafe *lab.Router) {
	provider = public.Router("provider", lab.Attachment{Addr: "11.0.0.103"}, "100.64.0.0/16", netfilter.Cone)
	return provider, provider.LAN.Router("cafe", lab.Attachment{Addr: "100.64.0.9"}, "192.168.1.0/24", netfilter.Cone)
}

// twoWings puts a and b into two private networks of one office, whose routers let everything pass
// but packets that are too large for the cable between them, and tell nobody.
func twoWings(l *lab.Lab) *sides {
	s := homes(l, netfilter.Cone, netfilter.Cone)
	wing := func(name, addr, lan, host string) *lab.Host {
		r := s.office.LAN.Router(name, lab.Attachment{Addr: addr}, lan, netfilter.Firewall)
		if err := r.Do(func() error { return netfilter.Replace(netfilter.Table{Family: netfilter.Inet, Name: "firewall"}) }); err != nil {
			panic(err)
		}
		r.Silence()
		return r.LAN.Host(name+"-host", lab.Attachment{Addr: host})
	}
	s.a.host = wing("first", "192.168.1.11", "10.0.1.0/24", "10.0.1.2")
	s.b.host = wing("second", "192.168.1.12", "10.0.2.0/24", "10.0.2.2")
	s.office.LAN.MTU(1400)
	return s
}

// oneProvider puts a and b behind two routers that are both behind a third one.
func oneProvider(l *lab.Lab) *sides {
	s := homes(l, netfilter.Cone, netfilter.Cone)
	provider, cafe := twoNATs(s.public)
	flat := provider.LAN.Router("flat", lab.Attachment{Addr: "100.64.0.10"}, "192.168.3.0/24", netfilter.Cone)
	s.a.host.Move(cafe.LAN, lab.Attachment{Addr: "192.168.1.77"})
	s.b.host.Move(flat.LAN, lab.Attachment{Addr: "192.168.3.2"})
	return s
}

// isolated puts a and b into one network whose router keeps its clients apart.
func isolated(l *lab.Lab) *sides {
	s := homes(l, netfilter.Cone, netfilter.Cone)
	s.b.host.Move(s.office.LAN, lab.Attachment{Addr: "192.168.1.3"})
	s.office.LAN.Isolate()
	return s
}

var listenIPv6 = []string{"/ip6/::/udp/4001/quic-v1", "/ip6/::/tcp/4001"}

// onlyIPv6 puts a and b behind two firewalls in a network without IPv4.
func onlyIPv6(l *lab.Lab) *sides {
	public := l.Net("public", "2a00:1::/64")
	relay := public.Host("relay", lab.Attachment{Addr: "2a00:1::1"})
	office := public.Router("office", lab.Attachment{Addr: "2a00:1::101"}, "2a00:1:0:1::/64", netfilter.Firewall)
	home := public.Router("home", lab.Attachment{Addr: "2a00:1::102"}, "2a00:1:0:2::/64", netfilter.Firewall)
	return &sides{
		relay: side{relay, listenIPv6},
		a:     side{office.LAN.Host("a", lab.Attachment{Addr: "2a00:1:0:1::2"}), listenIPv6},
		b:     side{home.LAN.Host("b", lab.Attachment{Addr: "2a00:1:0:2::2"}), listenIPv6},
	}
}

// sixAndFour puts a into a network of IPv6 and b into one of IPv4; the relay is in both.
func sixAndFour(l *lab.Lab) *sides {
	s := homes(l, netfilter.Cone, netfilter.Cone)
	six := l.Net("six", "2a00:1::/64")
	s.relay.host.Connect(six, lab.Attachment{Addr: "2a00:1::1"})
	s.relay.listen = append([]string{"/ip4/0.0.0.0/udp/4001/quic-v1", "/ip4/0.0.0.0/tcp/4001"}, listenIPv6...)
	firewall := six.Router("firewall", lab.Attachment{Addr: "2a00:1::101"}, "2a00:1:0:1::/64", netfilter.Firewall)
	s.a = side{firewall.LAN.Host("six-a", lab.Attachment{Addr: "2a00:1:0:1::2"}), listenIPv6}
	return s
}

// newAddresses gives a three other addresses.
func newAddresses(s *sides, more func(n int)) {
	for i := range 3 {
		more(i + 1)
		s.a.host.Readdress(fmt.Sprintf("192.168.1.%d", 31+i))
	}
}

// moveToTheCafe carries a to a network behind two NATs.
func moveToTheCafe(s *sides, more func(n int)) {
	_, cafe := twoNATs(s.public)
	more(2)
	s.a.host.Move(cafe.LAN, lab.Attachment{Addr: "192.168.1.77"})
}
