package transport

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/event"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/p2p/discovery/mdns"

	"github.com/balefire/balefire/proto"
)

// joinService is where nodes without a mesh and nodes of any mesh see each other.
const joinService = "_balefire-join._udp"

const (
	lanTick      = time.Second
	lanPause     = 2 * time.Second  // between two starts, for changes that come in a row
	lanRetry     = 10 * time.Second // after a start that failed
	lanRenewal   = 5 * time.Minute  // it finds each node once: a restart finds it again, and forgets what others filled it with
	lanMemory    = 3 * lanRenewal   // after it a node that is not seen again is gone
	lanMaxRetry  = 30 * time.Second // between two dials of a member
	lanQueue     = 64               // sights that wait
	lanMaxDials  = 4                // dials
	watcherQueue = 64               // what a caller of FindMeshes may be behind
)

// A lan announces this node on the LAN by mDNS and looks who else does. A member
// that is seen is dialled at once. With others a hello is tried: one who was
// introduced elsewhere is a member as well. A node that is in no mesh waits for
// somebody to ask for it.
//
//	mesh's service ──┐            known ──▶ dial
//	                 ├─▶ sights ─ unknown ─▶ hello ─ welcome ▶ connected
//	join service  ───┘                            └ refused ▶ Seen, later again
type lan struct {
	t     *Transport
	start func(name string) (io.Closer, error)
	found chan peer.AddrInfo
	slots chan struct{}

	mu       sync.Mutex
	state    string // up, or why not
	watchers map[*watcher]bool
}

func newLAN(t *Transport) *lan {
	l := &lan{
		t: t, found: make(chan peer.AddrInfo, lanQueue), slots: make(chan struct{}, lanMaxDials),
		state: "not started", watchers: make(map[*watcher]bool),
	}
	l.start = l.startMDNS
	return l
}

func (l *lan) startMDNS(name string) (io.Closer, error) {
	s := mdns.NewMdnsService(l.t.host, name, l)
	if err := s.Start(); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// HandlePeerFound takes a sight from mDNS. It never blocks.
func (l *lan) HandlePeerFound(info peer.AddrInfo) {
	select {
	case l.found <- info:
	default:
	}
}

// services returns the names under which this node is on the LAN.
func (l *lan) services() []string {
	if l.t.gate.Hello() == nil {
		return []string{joinService}
	}
	return []string{"_bf" + meshName(l.t.cfg.MeshTag) + "._udp", joinService}
}

// run is on the LAN until ctx ends.
func (l *lan) run(ctx context.Context) {
	var up []io.Closer
	defer func() {
		closeAll(up)
		l.closeWatchers()
	}()
	changes := l.addressChanges(ctx)
	tick := time.NewTicker(lanTick)
	defer tick.Stop()
	var due time.Duration // of the next start
	for {
		if now := l.t.cfg.Clock.Mono(); now >= due {
			closeAll(up)
			var err error
			up, err = l.startAll()
			due = now + lanRenewal
			if err != nil {
				due = now + lanRetry
			}
		}
		select {
		case <-ctx.Done():
			return
		case info := <-l.found:
			l.addFound(info)
		case _, ok := <-changes:
			if !ok {
				changes = nil
			} else {
				due = min(due, l.t.cfg.Clock.Mono()+lanPause)
			}
		case <-tick.C:
		}
		l.dialDue()
	}
}

// addressChanges tells when this machine got other addresses: mDNS announces
// those that it found at its start.
func (l *lan) addressChanges(ctx context.Context) <-chan any {
	sub, err := l.t.host.EventBus().Subscribe(new(event.EvtLocalAddressesUpdated))
	if err != nil {
		return nil
	}
	context.AfterFunc(ctx, func() { sub.Close() })
	return sub.Out()
}

// startAll starts all services or none.
func (l *lan) startAll() (up []io.Closer, err error) {
	for _, name := range l.services() {
		var s io.Closer
		if s, err = l.start(name); err != nil {
			closeAll(up)
			up = nil
			break
		}
		up = append(up, s)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	state := "up"
	if err != nil {
		state = err.Error()
	}
	if state != l.state {
		l.t.log.Info("looking around on the LAN", "state", state)
	}
	l.state = state
	return up, err
}

func closeAll(up []io.Closer) {
	for _, s := range up {
		s.Close()
	}
}

// status returns up, or why this node is not on the LAN.
func (l *lan) status() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state
}

// addFound remembers a sight.
func (l *lan) addFound(info peer.AddrInfo) {
	p, err := fromLibp2p(info.ID)
	if err != nil || p == l.t.self || l.t.gate.Blocked(p) {
		return
	}
	addrs := addrStrings(plausible(l.t.host.Addrs(), info.Addrs))
	if len(addrs) == 0 || l.t.Connected(p) {
		return
	}
	d := &l.t.disc
	d.mu.Lock()
	x := d.strangers.note(p, l.t.cfg.Clock.Mono())
	x.Addrs, x.Seen, x.onLAN = addrs, l.t.cfg.Clock.Now(), true
	d.mu.Unlock()
	l.notifyWatchers(Found{p, addrs})
}

// dialDue dials whom it is time to dial.
func (l *lan) dialDue() {
	if l.t.gate.Hello() == nil {
		return // nothing to show yet
	}
	now := l.t.cfg.Clock.Mono()
	d := &l.t.disc
	d.mu.Lock()
	due := d.strangers.due(now)
	d.mu.Unlock()
	for _, s := range due {
		select {
		case l.slots <- struct{}{}:
			if !l.t.group.start(func(ctx context.Context) {
				defer func() { <-l.slots }()
				l.greet(ctx, s)
			}) {
				<-l.slots
			}
		default:
			return
		}
	}
}

// greet says hello to a node that was seen, and tells of it if that fails.
func (l *lan) greet(ctx context.Context, s Stranger) {
	known := l.t.isMember(s.Peer) || l.t.knownPeers()[s.Peer]
	ctx, cancel := context.WithTimeout(ctx, maxDial)
	defer cancel()
	err := l.t.tryHello(ctx, s.Peer, s.Addrs)
	switch {
	case err == nil && known:
		l.t.met.lanFinds.WithLabelValues("member").Inc()
	case err == nil:
		l.t.met.lanFinds.WithLabelValues("new member").Inc()
	case !known && !errors.Is(err, context.Canceled):
		l.report(s.Peer)
	}
}

// report says who was seen, now and then.
func (l *lan) report(p proto.PeerID) {
	d := &l.t.disc
	d.mu.Lock()
	x := d.strangers[p]
	if x == nil || x.trying || !x.shouldReport(l.t.cfg.Clock.Mono()) {
		d.mu.Unlock()
		return
	}
	s := x.Stranger
	d.mu.Unlock()
	l.t.met.lanFinds.WithLabelValues("stranger").Inc()
	if l.t.cfg.Seen != nil {
		l.t.cfg.Seen(s)
	}
}

// Found is a node on the LAN that may be able to let this one into its mesh.
type Found struct {
	Peer  proto.PeerID
	Addrs []string
}

// A watcher is one call of FindMeshes.
type watcher struct {
	found    chan Found
	reported map[proto.PeerID]bool
}

// FindMeshes returns the nodes that are seen on the LAN, each once, until ctx or
// the transport ends and the channel is closed. Ask one with [Transport.RequestJoin]
// and an empty ticket; another node without a mesh refuses. Config.MDNS must be set.
func (t *Transport) FindMeshes(ctx context.Context) <-chan Found {
	w := &watcher{found: make(chan Found, watcherQueue), reported: make(map[proto.PeerID]bool)}
	l := t.disc.lan
	if l == nil {
		close(w.found)
		return w.found
	}
	t.disc.mu.Lock()
	seen := t.disc.strangers.list()
	t.disc.mu.Unlock()
	l.mu.Lock()
	if l.watchers == nil {
		l.mu.Unlock()
		close(w.found)
		return w.found
	}
	l.watchers[w] = true
	for _, s := range seen {
		w.notify(Found{s.Peer, s.Addrs})
	}
	l.mu.Unlock()
	context.AfterFunc(ctx, func() { l.closeWatcher(w) })
	return w.found
}

// notify hands f on, once. The caller holds the lan's mu.
func (w *watcher) notify(f Found) {
	if w.reported[f.Peer] || len(w.reported) >= maxStrangers {
		return
	}
	select {
	case w.found <- f:
		w.reported[f.Peer] = true
	default:
	}
}

func (l *lan) notifyWatchers(f Found) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for w := range l.watchers {
		w.notify(f)
	}
}

func (l *lan) closeWatcher(w *watcher) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.watchers[w] {
		delete(l.watchers, w)
		close(w.found)
	}
}

func (l *lan) closeWatchers() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for w := range l.watchers {
		close(w.found)
	}
	l.watchers = nil
}

var _ mdns.Notifee = (*lan)(nil)
