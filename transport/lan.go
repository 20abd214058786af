package transport

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/p2p/discovery/mdns"

	"github.com/balefire/balefire/proto"
)

// joinService is the mDNS service on which nodes without a mesh and nodes of any mesh
// find each other.
const joinService = "_balefire-join._udp"

const (
	lanTick      = time.Second
	lanPause     = 2 * time.Second  // between two starts, to collect successive changes
	lanRetry     = 10 * time.Second // after a failed start
	lanRenewal   = 5 * time.Minute  // mDNS reports each node once; a restart reports it again, and clears entries made by others
	lanMemory    = 3 * lanRenewal   // a node not seen for this long is gone
	lanMaxRetry  = 30 * time.Second // between two dials of a member
	lanQueue     = 64               // queued sightings
	lanMaxDials  = 4                // concurrent dials
	watcherQueue = 64               // buffer of a FindMeshes caller
)

// A lan announces this node on the LAN by mDNS and finds others. A member is dialed at
// once. For unknown nodes a hello is tried, as a node introduced elsewhere may be a
// member too. A node without a mesh waits until it is asked.
//
//	mesh's service ──┐            known ──▶ dial
//	                 ├─▶ found ── unknown ─▶ hello ─ welcome ▶ connected
//	join service  ───┘                            └ refused ▶ Seen, retried later
type lan struct {
	host      host.Host
	local     *localAddrs
	cfg       Config
	log       *slog.Logger
	met       *metrics
	group     *taskGroup
	peers     *peerTable
	members   *members
	strangers *foundPeers
	start     func(name string) (io.Closer, error)
	found     chan peer.AddrInfo
	slots     chan struct{}
	moved     chan struct{} // the addresses of this machine have changed

	mu       sync.Mutex
	state    string // "up", or the reason why not
	watchers map[*watcher]bool
}

func newLAN(d *discovery, h host.Host, local *localAddrs) *lan {
	l := &lan{
		host: h, local: local, cfg: d.cfg, log: d.log, met: d.met, group: d.group, peers: d.peers, members: d.members, strangers: d.found,
		found: make(chan peer.AddrInfo, lanQueue), slots: make(chan struct{}, lanMaxDials), moved: make(chan struct{}, 1),
		state: "not started", watchers: make(map[*watcher]bool),
	}
	l.start = l.startMDNS
	return l
}

func (l *lan) startMDNS(name string) (io.Closer, error) {
	s := mdns.NewMdnsService(lanHost{l.host, l.local}, name, l)
	if err := s.Start(); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// HandlePeerFound handles a sighting by mDNS. It never blocks.
func (l *lan) HandlePeerFound(info peer.AddrInfo) {
	select {
	case l.found <- info:
	default:
	}
}

// services returns the mDNS services that this node announces.
func (l *lan) services() []string {
	if l.members.gate.Hello() == nil {
		return []string{joinService}
	}
	return []string{"_bf" + meshName(l.cfg.MeshTag) + "._udp", joinService}
}

// run announces and finds nodes until ctx is done.
func (l *lan) run(ctx context.Context) {
	var up []io.Closer
	defer func() {
		closeAll(up)
		l.closeWatchers()
	}()
	tick := l.cfg.Clock.Ticker(lanTick)
	defer tick.Stop()
	var due time.Duration // of the next start
	for {
		if now := l.cfg.Clock.Mono(); now >= due {
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
		case <-l.moved:
			due = min(due, l.cfg.Clock.Mono()+lanPause)
		case <-tick.C:
		}
		l.dialDue()
	}
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
		l.log.Info("LAN discovery", "state", state)
	}
	l.state = state
	return up, err
}

func closeAll(up []io.Closer) {
	for _, s := range up {
		s.Close()
	}
}

// status returns "up", or why LAN discovery is not running.
func (l *lan) status() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state
}

// addFound records a sighting.
func (l *lan) addFound(info peer.AddrInfo) {
	p, err := fromLibp2p(info.ID)
	if err != nil || p == l.members.self || l.members.gate.Blocked(p) {
		return
	}
	addrs := addrStrings(plausible(l.host.Addrs(), info.Addrs))
	if len(addrs) == 0 || l.peers.connected(p) {
		return
	}
	l.strangers.seen(p, addrs)
	l.notifyWatchers(Found{p, addrs})
}

// dialDue dials the nodes that are due.
func (l *lan) dialDue() {
	if l.members.gate.Hello() == nil {
		return // no certificate yet
	}
	for _, s := range l.strangers.due() {
		select {
		case l.slots <- struct{}{}:
			if !l.group.start(func(ctx context.Context) {
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

// greet exchanges hellos with a sighted node, and reports the node if that fails.
func (l *lan) greet(ctx context.Context, s Stranger) {
	known := l.members.isKnown(s.Peer)
	ctx, cancel := context.WithTimeout(ctx, maxDial)
	defer cancel()
	err := l.strangers.tryHello(ctx, s.Peer, s.Addrs)
	switch {
	case err == nil && known:
		l.met.lanFinds.WithLabelValues("member").Inc()
	case err == nil:
		l.met.lanFinds.WithLabelValues("new member").Inc()
	case !known && !errors.Is(err, context.Canceled):
		l.report(s.Peer)
	}
}

// report reports a sighted stranger, at a limited rate.
func (l *lan) report(p proto.PeerID) {
	s, ok := l.strangers.toReport(p)
	if !ok {
		return
	}
	l.met.lanFinds.WithLabelValues("stranger").Inc()
	if l.cfg.Seen != nil {
		l.cfg.Seen(s)
	}
}

// Found is a node on the LAN that may be able to admit this one to its mesh.
type Found struct {
	Peer  proto.PeerID
	Addrs []string
}

// A watcher is one call of FindMeshes.
type watcher struct {
	found    chan Found
	reported map[proto.PeerID]bool
}

// FindMeshes returns the nodes seen on the LAN, each once, until ctx is done or the
// transport stops and the channel is closed. Ask one with [Transport.RequestJoin] and an
// empty ticket; a node without a mesh refuses. Config.MDNS must be set.
func (t *Transport) FindMeshes(ctx context.Context) <-chan Found {
	w := &watcher{found: make(chan Found, watcherQueue), reported: make(map[proto.PeerID]bool)}
	l := t.disc.lan
	if l == nil {
		close(w.found)
		return w.found
	}
	seen := t.disc.found.list()
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

// notify sends f, once. The caller holds the lan's mu.
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
