package transport

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
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
	lookupTimeout = 5 * time.Second  // for one question to the DHT
	dhtEvery      = 2 * time.Second  // between two looks at the table
	searchEvery   = 2 * time.Minute  // between two searches for all members
	firstSearch   = 5 * time.Second  // while it is young; then twice as long each time, if it found few
	maxAskPause   = 10 * time.Minute // between two questions for a peer that is lost for long
	earlySearches = 6                // looks
	announceEvery = time.Hour        // between two announcements: they are kept for a day
	announceRetry = 30 * time.Second // after one that failed
)

// A memberDHT is this node's part of the mesh's own Kademlia DHT. Members alone are
// in it and asked by it. What it answers are hints: who is found there shows its
// certificate like everybody.
type memberDHT struct {
	t      *Transport
	host   *memberHost
	dht    *dht.IpfsDHT
	finder *routing.RoutingDiscovery
	name   string // under which all members announce themselves
	key    []byte // of that name

	lastSearch, lastAnnounce time.Duration // monotonic; 0: never
	searches                 int
	announced                bool
}

func newMemberDHT(t *Transport, c *memberHost) (*memberDHT, error) {
	w := &memberDHT{t: t, host: c, name: "balefire/members/" + meshName(t.cfg.MeshTag)}
	sum := sha256.Sum256([]byte(w.name))
	var err error
	if w.key, err = multihash.Encode(sum[:], multihash.SHA2_256); err != nil {
		return nil, err
	}
	w.dht, err = dht.New(c,
		dht.Mode(dht.ModeServer),
		dht.ProtocolPrefix(protocol.ID("/balefire/"+meshName(t.cfg.MeshTag))),
		dht.DisableValues(),
		dht.BootstrapPeersFunc(w.bootstrapPeers),
		dht.RoutingTableFilter(func(_ any, p peer.ID) bool { return t.verified(p) }),
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

// close ends the DHT. The host must still be there.
func (w *memberDHT) close() {
	if err := w.dht.Close(); err != nil {
		w.t.log.Debug("the DHT ends", "why", err)
	}
}

// bootstrapPeers returns some known members to begin with.
func (w *memberDHT) bootstrapPeers() []peer.AddrInfo {
	if w.t.cfg.Directory == nil {
		return nil
	}
	known := w.t.cfg.Directory.Contacts()
	rand.Shuffle(len(known), func(i, j int) { known[i], known[j] = known[j], known[i] })
	var all []peer.AddrInfo
	for _, c := range known[:min(len(known), maxDials)] {
		if addrs, err := parseAddrs(c.Peer, c.Addrs); err == nil && len(addrs) > 0 {
			all = append(all, peer.AddrInfo{ID: toLibp2p(c.Peer), Addrs: addrs})
		}
	}
	return all
}

// askable reports whether a lookup may go on with p, of whom another member told.
func (w *memberDHT) askable(id peer.ID) bool {
	p, err := fromLibp2p(id)
	return err == nil && !w.t.gate.Blocked(p)
}

// plausible keeps the addresses that can lead to another machine.
func (w *memberDHT) plausible(addrs []ma.Multiaddr) []ma.Multiaddr {
	return plausible(w.t.host.Addrs(), addrs)
}

// inspect looks at a request before it is served. One that is too much, or asks
// to keep what no member asks for, loses its key: the DHT then refuses it.
func (w *memberDHT) inspect(_ context.Context, s network.Stream, req *pb.Message) {
	p, err := fromLibp2p(s.Conn().RemotePeer())
	switch {
	case err != nil || !w.t.allow(p, admit.Lookup):
		req.Key = nil
		w.t.met.refused.Inc()
	case req.GetType() == pb.Message_ADD_PROVIDER && string(req.GetKey()) != string(w.key):
		req.Key = nil
		w.t.group.start(func(context.Context) {
			w.t.offend(p, "dht", fmt.Errorf("%w: a record under a strange key", ErrProtocol))
		})
	case len(req.GetProviderPeers()) > 1:
		req.ProviderPeers = req.ProviderPeers[:1]
	}
}

// run looks after the table, announces this node and looks for members that are
// not known yet, until ctx ends.
func (w *memberDHT) run(ctx context.Context) {
	tick := time.NewTicker(dhtEvery)
	defer tick.Stop()
	for {
		w.sweep()
		if size := w.dht.RoutingTable().Size(); size > 0 {
			w.maintain(ctx, size)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// sweep removes who is no member any more.
func (w *memberDHT) sweep() {
	rt := w.dht.RoutingTable()
	for _, id := range rt.ListPeers() {
		if p, err := fromLibp2p(id); err != nil || !w.t.activeMember(p) {
			rt.RemovePeer(id)
		}
	}
	w.t.met.tableSize.Set(float64(rt.Size()))
}

// maintain announces this node and looks for others, each when it is time.
func (w *memberDHT) maintain(ctx context.Context, size int) {
	now := w.t.cfg.Clock.Mono()
	pause := announceEvery
	if !w.announced {
		pause = announceRetry
	}
	if w.lastAnnounce == 0 || now-w.lastAnnounce >= pause {
		w.lastAnnounce = now
		_, err := w.finder.Advertise(ctx, w.name)
		w.announced = err == nil
		if err != nil && ctx.Err() == nil {
			w.t.log.Debug("not announced in the DHT", "why", err)
		}
	}
	if w.lastSearch == 0 || now-w.lastSearch >= searchPause(w.searches, size) {
		w.lastSearch = now
		w.searches++
		w.search(ctx)
	}
}

// searchPause is how long after the last of so many looks the next one comes, with a
// table of that size: soon while it is young, and in a small mesh later and later.
func searchPause(searches, size int) time.Duration {
	switch {
	case searches < earlySearches:
		return firstSearch
	case size < maxDials:
		return min(searchEvery, firstSearch<<min(searches-earlySearches, 10))
	}
	return searchEvery
}

// search finds the members that announce themselves and says hello to those who
// are not known.
func (w *memberDHT) search(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 4*lookupTimeout)
	defer cancel()
	found, err := util.FindPeers(ctx, w.finder, w.name)
	if err != nil {
		return
	}
	known := w.t.knownPeers()
	var wg sync.WaitGroup
	defer wg.Wait()
	slots := make(chan struct{}, maxDials)
	for _, info := range found {
		p, err := fromLibp2p(info.ID)
		if err != nil || known[p] || p == w.t.self {
			continue
		}
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			w.host.Connect(ctx, info)
		})
	}
}

// knownPeers returns whom the directory has addresses of.
func (t *Transport) knownPeers() map[proto.PeerID]bool {
	all := make(map[proto.PeerID]bool)
	if t.cfg.Directory != nil {
		for _, c := range t.cfg.Directory.Contacts() {
			all[c.Peer] = true
		}
	}
	return all
}

// ErrNoDHT is returned by [Transport.FindAddrs] without a DHT.
var ErrNoDHT = errors.New("transport: no DHT: the transport does not run, or it is switched off")

// FindAddrs asks the members where p is. Who is found is dialled on the way. The
// answer is hearsay: the addresses need not lead to p.
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
		// A peer in the own table whose addresses were forgotten is not found
		// once, and thrown out of the table by that.
		_, err = w.dht.FindPeer(ctx, id)
	}
	addrs := w.plausible(t.host.Peerstore().Addrs(id))
	if len(addrs) == 0 {
		return nil, fmt.Errorf("find %s: %w", p.Short(), errors.Join(err, errNoAddr))
	}
	return addrStrings(addrs), nil
}

var errNoAddr = errors.New("no member knows where it is")

// shouldAskDHT reports whether the DHT is asked, at now, for a peer that is dialled for so
// long in vain: after two failures, then at each try, and later and later when the
// peer is lost for long.
func (d redialState) shouldAskDHT(now time.Duration) bool {
	return d.tries >= 2 && (d.asked == 0 || now-d.asked >= min(maxAskPause, (now-d.lostAt)/4))
}

// freshAddrs returns the addresses to dial a contact at. After some failures at those
// that are known the DHT is asked: the peer has perhaps moved.
func (t *Transport) freshAddrs(ctx context.Context, c Contact, asks bool) []string {
	if !asks || t.disc.dht.Load() == nil {
		return c.Addrs
	}
	ctx, cancel := context.WithTimeout(ctx, shortDial)
	defer cancel()
	found, err := t.FindAddrs(ctx, c.Peer)
	if err != nil {
		return c.Addrs
	}
	addrs := slices.Clone(c.Addrs)
	for _, a := range found {
		if !slices.Contains(addrs, a) {
			addrs = append(addrs, a)
		}
	}
	return addrs
}
