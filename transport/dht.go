package transport

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	dht "github.com/libp2p/go-libp2p-kad-dht"
	pb "github.com/libp2p/go-libp2p-kad-dht/pb"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	"github.com/libp2p/go-libp2p/p2p/discovery/routing"
	"github.com/libp2p/go-libp2p/p2p/discovery/util"
	ma "github.com/multiformats/go-multiaddr"
	"github.com/multiformats/go-multihash"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport/admit"
)

const (
	lookupTimeout = 5 * time.Second  // for one DHT query
	dhtEvery      = 2 * time.Second  // between two checks of the routing table
	gossipFirst   = 10 * time.Second // before the first search for all members, if there is gossip
	firstSearch   = 5 * time.Second  // between two while new ones are found
	searchEvery   = 30 * time.Minute // maximum between two
	maxAskPause   = 10 * time.Minute // maximum between two queries for a lost peer
	announceEvery = time.Hour        // between two announcements, which expire after a day
	announceRetry = 30 * time.Second // after a failed announcement
)

// A memberDHT is this node's part of the mesh's own Kademlia DHT. Only members take part
// and may query it. Its answers are hints: a peer found there must present its
// certificate like any other.
type memberDHT struct {
	cfg     Config
	log     *slog.Logger
	met     *metrics
	group   *taskGroup
	members *members
	rates   *rates
	gossip  func() *gossipTopic // nil: the topic is not joined
	host    *memberHost
	dht     *dht.IpfsDHT
	finder  *routing.RoutingDiscovery
	name    string // key under which all members announce themselves
	key     []byte // of that name

	protocol protocol.ID

	began                    time.Duration // monotonic
	lastSearch, lastAnnounce time.Duration // monotonic; 0: never
	vain                     int           // searches in a row that found nobody new
	announced                bool
}

// joinDHT begins to take part.
func (d *discovery) joinDHT() (*memberDHT, error) {
	prefix := protocol.ID("/balefire/" + meshName(d.cfg.MeshTag))
	w := &memberDHT{
		cfg: d.cfg, log: d.log, met: d.met, group: d.group, members: d.members, rates: d.rates, gossip: d.topic.Load, host: d.host,
		began: d.cfg.Clock.Mono(), name: "balefire/members/" + meshName(d.cfg.MeshTag), protocol: prefix + "/kad/1.0.0",
	}
	sum := sha256.Sum256([]byte(w.name))
	var err error
	if w.key, err = multihash.Encode(sum[:], multihash.SHA2_256); err != nil {
		return nil, err
	}
	w.dht, err = dht.New(d.host,
		dht.Mode(dht.ModeServer),
		dht.ProtocolPrefix(prefix),
		dht.DisableValues(),
		dht.DisableAutoRefresh(),      // the table has the members that are connected: nearly all
		dht.LookupCheckConcurrency(0), // adopt adds them: they need not prove that they answer, by kilobytes each
		dht.RoutingTableFilter(func(_ any, p peer.ID) bool { return w.members.verified(p) }),
		dht.QueryFilter(func(_ any, info peer.AddrInfo) bool { return w.askable(info.ID) }),
		dht.AddressFilter(w.plausible),
		dht.OnRequestHook(w.inspect),
	)
	if err != nil {
		return nil, err
	}
	w.finder = routing.NewRoutingDiscovery(w.dht)
	return w, nil
}

// close closes the DHT. The host must still be open.
func (w *memberDHT) close() {
	if err := w.dht.Close(); err != nil {
		w.log.Debug("closing the DHT", "why", err)
	}
}

// askable reports whether a lookup may proceed to p, which another member returned.
func (w *memberDHT) askable(id peer.ID) bool {
	p, err := fromLibp2p(id)
	return err == nil && !w.members.gate.Blocked(p)
}

// plausible returns the addresses that can lead to another machine.
func (w *memberDHT) plausible(addrs []ma.Multiaddr) []ma.Multiaddr {
	return plausible(w.host.Addrs(), addrs)
}

// inspect checks a request before it is served. If the peer exceeds its rate, or stores
// under a key that no member uses, the request's key is removed, so that the DHT rejects
// it.
func (w *memberDHT) inspect(_ context.Context, s network.Stream, req *pb.Message) {
	p, err := fromLibp2p(s.Conn().RemotePeer())
	switch {
	case err != nil || !w.rates.allow(p, admit.Lookup):
		req.Key = nil
		w.met.refused.Inc()
	case req.GetType() == pb.Message_ADD_PROVIDER && string(req.GetKey()) != string(w.key):
		req.Key = nil
		w.group.start(func(context.Context) {
			w.rates.offend(p, "dht", fmt.Errorf("%w: a provider record under an unknown key", ErrProtocol))
		})
	case len(req.GetProviderPeers()) > 1:
		req.ProviderPeers = req.ProviderPeers[:1]
	}
}

// run maintains the routing table, announces this node and searches for unknown members,
// until ctx is done.
func (w *memberDHT) run(ctx context.Context) {
	tick := w.cfg.Clock.Ticker(dhtEvery)
	defer tick.Stop()
	for {
		w.sweep()
		w.adopt()
		if w.dht.RoutingTable().Size() > 0 {
			w.maintain(ctx)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// sweep removes peers that are no longer members.
func (w *memberDHT) sweep() {
	rt := w.dht.RoutingTable()
	for _, id := range rt.ListPeers() {
		if p, err := fromLibp2p(id); err != nil || !w.members.activeMember(p) {
			rt.RemovePeer(id)
		}
	}
}

// adopt adds the connected members that take part in the DHT to the routing table.
func (w *memberDHT) adopt() {
	rt := w.dht.RoutingTable()
	for _, id := range w.host.Network().Peers() {
		if found, err := w.host.Peerstore().SupportsProtocols(id, w.protocol); err == nil && len(found) > 0 {
			rt.TryAddPeer(id, true, false) // fails if its bucket is full
		}
	}
	w.met.tableSize.Set(float64(rt.Size()))
}

// maintain announces this node and searches for others when due.
func (w *memberDHT) maintain(ctx context.Context) {
	now := w.cfg.Clock.Mono()
	gossip := w.gossip()
	if gossip != nil && now-w.began < gossipFirst {
		return // it tells of most members at no cost
	}
	told := gossip != nil && len(gossip.topic.ListPeers()) >= maxDials
	pause := time.Duration(0)
	switch {
	case w.announced:
		pause = announceEvery
	case w.lastAnnounce > 0:
		pause = announceRetry
	case told:
		pause = searchEvery
	}
	if now-max(w.lastAnnounce, w.began) >= pause {
		w.lastAnnounce = now
		_, err := w.finder.Advertise(ctx, w.name)
		w.announced = err == nil
		if err != nil && ctx.Err() == nil {
			w.log.Debug("DHT announcement failed", "why", err)
		}
	}
	pause = searchPause(w.vain)
	if told {
		pause = searchEvery
	}
	if now-max(w.lastSearch, w.began) >= pause || w.lastSearch == 0 && gossip == nil {
		w.lastSearch = now
		w.vain++
		if w.search(ctx) > 0 {
			w.vain = 0
		}
	}
}

// searchPause returns the time to the next search after this many in a row that found
// nobody new. Each one asks many members, and almost always gossip has told of all.
func searchPause(vain int) time.Duration { return min(searchEvery, firstSearch<<min(2*vain, 10)) }

// search finds the members that announce themselves, sends a hello to unknown ones and
// returns their number.
func (w *memberDHT) search(ctx context.Context) (unknown int) {
	ctx, cancel := context.WithTimeout(ctx, 4*lookupTimeout)
	defer cancel()
	found, err := util.FindPeers(ctx, w.finder, w.name)
	if err != nil {
		return 0
	}
	known := w.members.known()
	var wg sync.WaitGroup
	defer wg.Wait()
	slots := make(chan struct{}, maxDials)
	for _, info := range found {
		p, err := fromLibp2p(info.ID)
		if err != nil || known[p] || p == w.host.self {
			continue
		}
		unknown++
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			w.host.Connect(ctx, info)
		})
	}
	return unknown
}

// ErrNoDHT is returned by [Transport.FindAddrs] without a DHT.
var ErrNoDHT = errors.New("transport: no DHT: the transport is not running, or the DHT is disabled")

// FindAddrs asks the members for p's addresses. A peer that is found is dialed in the
// process. The addresses are unverified and need not lead to p.
func (t *Transport) FindAddrs(ctx context.Context, p proto.PeerID) ([]string, error) {
	w := t.disc.dht.Load()
	if w == nil {
		return nil, ErrNoDHT
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	id := toLibp2p(p)
	_, err := w.dht.FindPeer(ctx, id)
	if err != nil && ctx.Err() == nil {
		// A peer in this node's own table whose addresses were forgotten is not found the
		// first time, which removes it from the table.
		_, err = w.dht.FindPeer(ctx, id)
	}
	addrs := w.plausible(t.host.Peerstore().Addrs(id))
	if len(addrs) == 0 {
		return nil, fmt.Errorf("find %s: %w", p.Short(), errors.Join(err, errNoAddr))
	}
	return addrStrings(addrs), nil
}

var errNoAddr = errors.New("no member knows its address")
