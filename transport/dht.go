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
	tableEvery    = 2 * time.Second  // between two looks at the table
	lookEvery     = 2 * time.Minute  // between two searches for all members
	firstLook     = 5 * time.Second  // while it is young; then twice as long each time, if it found few
	askLeast      = 10 * time.Minute // between two questions for a peer that is lost for long
	youth         = 6                // looks
	tellEvery     = time.Hour        // between two announcements: they are kept for a day
	retellEvery   = 30 * time.Second // after one that failed
)

// A table is this node's part of the mesh's own Kademlia DHT. Members alone are
// in it and asked by it. What it answers are hints: who is found there shows its
// certificate like everybody.
type table struct {
	t      *Transport
	circle *circle
	dht    *dht.IpfsDHT
	finder *routing.RoutingDiscovery
	name   string // under which all members announce themselves
	key    []byte // of that name

	looked, told time.Duration // monotonic; 0: never
	looks        int
	toldOK       bool
}

func newTable(t *Transport, c *circle) (*table, error) {
	w := &table{t: t, circle: c, name: "balefire/members/" + meshName(t.cfg.MeshTag)}
	sum := sha256.Sum256([]byte(w.name))
	var err error
	if w.key, err = multihash.Encode(sum[:], multihash.SHA2_256); err != nil {
		return nil, err
	}
	w.dht, err = dht.New(c,
		dht.Mode(dht.ModeServer),
		dht.ProtocolPrefix(protocol.ID("/balefire/"+meshName(t.cfg.MeshTag))),
		dht.DisableValues(),
		dht.BootstrapPeersFunc(w.contacts),
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
func (w *table) close() {
	if err := w.dht.Close(); err != nil {
		w.t.log.Debug("the DHT ends", "why", err)
	}
}

// contacts returns some known members to begin with.
func (w *table) contacts() []peer.AddrInfo {
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
func (w *table) askable(id peer.ID) bool {
	p, err := fromLibp2p(id)
	return err == nil && !w.t.gate.Blocked(p)
}

// plausible keeps the addresses that can lead to another machine.
func (w *table) plausible(addrs []ma.Multiaddr) []ma.Multiaddr {
	return plausible(w.t.host.Addrs(), addrs)
}

// inspect looks at a request before it is served. One that is too much, or asks
// to keep what no member asks for, loses its key: the DHT then refuses it.
func (w *table) inspect(_ context.Context, s network.Stream, req *pb.Message) {
	p, err := fromLibp2p(s.Conn().RemotePeer())
	switch {
	case err != nil || !w.t.allow(p, admit.Lookup):
		req.Key = nil
		w.t.met.refused.Inc()
	case req.GetType() == pb.Message_ADD_PROVIDER && string(req.GetKey()) != string(w.key):
		req.Key = nil
		w.t.crew.hand(func(context.Context) {
			w.t.offend(p, "dht", fmt.Errorf("%w: a record under a strange key", ErrProtocol))
		})
	case len(req.GetProviderPeers()) > 1:
		req.ProviderPeers = req.ProviderPeers[:1]
	}
}

// run looks after the table, announces this node and looks for members that are
// not known yet, until ctx ends.
func (w *table) run(ctx context.Context) {
	tick := time.NewTicker(tableEvery)
	defer tick.Stop()
	for {
		w.sweep()
		if size := w.dht.RoutingTable().Size(); size > 0 {
			w.tend(ctx, size)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// sweep removes who is no member any more.
func (w *table) sweep() {
	rt := w.dht.RoutingTable()
	for _, id := range rt.ListPeers() {
		if p, err := fromLibp2p(id); err != nil || !w.t.standing(p) {
			rt.RemovePeer(id)
		}
	}
	w.t.met.tableSize.Set(float64(rt.Size()))
}

// tend announces this node and looks for others, each when it is time.
func (w *table) tend(ctx context.Context, size int) {
	now := w.t.cfg.Clock.Mono()
	pause := tellEvery
	if !w.toldOK {
		pause = retellEvery
	}
	if w.told == 0 || now-w.told >= pause {
		w.told = now
		_, err := w.finder.Advertise(ctx, w.name)
		w.toldOK = err == nil
		if err != nil && ctx.Err() == nil {
			w.t.log.Debug("not announced in the DHT", "why", err)
		}
	}
	if w.looked == 0 || now-w.looked >= lookPause(w.looks, size) {
		w.looked = now
		w.looks++
		w.look(ctx)
	}
}

// lookPause is how long after the last of so many looks the next one comes, with a
// table of that size: soon while it is young, and in a small mesh later and later.
func lookPause(looks, size int) time.Duration {
	switch {
	case looks < youth:
		return firstLook
	case size < maxDials:
		return min(lookEvery, firstLook<<min(looks-youth, 10))
	}
	return lookEvery
}

// look finds the members that announce themselves and says hello to those who
// are not known.
func (w *table) look(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 4*lookupTimeout)
	defer cancel()
	found, err := util.FindPeers(ctx, w.finder, w.name)
	if err != nil {
		return
	}
	known := w.t.known()
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
			w.circle.Connect(ctx, info)
		})
	}
}

// known returns whom the directory has addresses of.
func (t *Transport) known() map[proto.PeerID]bool {
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
	w := t.disc.table.Load()
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
		return nil, fmt.Errorf("find %s: %w", p.Short(), errors.Join(err, errNowhere))
	}
	return addrStrings(addrs), nil
}

var errNowhere = errors.New("no member knows where it is")

// asks reports whether the DHT is asked, at now, for a peer that is dialled for so
// long in vain: after two failures, then at each try, and later and later when the
// peer is lost for long.
func (d redial) asks(now time.Duration) bool {
	return d.tries >= 2 && (d.asked == 0 || now-d.asked >= min(askLeast, (now-d.since)/4))
}

// fresh returns the addresses to dial a contact at. After some failures at those
// that are known the DHT is asked: the peer has perhaps moved.
func (t *Transport) fresh(ctx context.Context, c Contact, asks bool) []string {
	if !asks || t.disc.table.Load() == nil {
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
