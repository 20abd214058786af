package transport

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport/admit"
)

// A discovery is what a transport knows of its mesh besides its neighbours.
// What it starts ends before the host is closed.
type discovery struct {
	circle *circle
	bus    atomic.Pointer[bus]   // nil: no topic is joined
	table  atomic.Pointer[table] // nil: no DHT
	lan    *lan                  // nil: not looked for anybody there
	cancel context.CancelFunc

	mu        sync.Mutex
	strangers strangers
}

func (d *discovery) init(t *Transport) (err error) {
	d.strangers = make(strangers)
	if t.cfg.MDNS {
		d.lan = newLAN(t)
	}
	d.circle, err = newCircle(t)
	return err
}

// start begins all that is configured, before the first connection is taken. After an
// error stop ends what was begun.
func (d *discovery) start(ctx context.Context, t *Transport) error {
	ctx, d.cancel = context.WithCancel(ctx)
	t.crew.hand(d.circle.run)
	if t.cfg.Rumors != nil {
		b, err := newBus(ctx, t, d.circle)
		if err != nil {
			return fmt.Errorf("gossip: %w", err)
		}
		d.bus.Store(b)
		t.crew.hand(b.run)
	}
	if t.cfg.DHT {
		w, err := newTable(t, d.circle)
		if err != nil {
			return fmt.Errorf("DHT: %w", err)
		}
		d.table.Store(w)
		t.crew.hand(w.run)
	}
	if d.lan != nil {
		t.crew.hand(d.lan.run)
	}
	return nil
}

// stop ends what was started, while the host is still there.
func (d *discovery) stop() {
	d.cancel()
	if w := d.table.Load(); w != nil {
		w.close()
	}
	if d.lan != nil {
		d.lan.endWatchers() // it may never have run
	}
}

// meshName returns what stands for the mesh where strangers can read it: in the
// names of protocols and on the LAN.
func meshName(tag string) string {
	sum := sha256.Sum256([]byte("balefire mesh name " + tag))
	return hex.EncodeToString(sum[:8])
}

// TopicName returns the name of the gossip topic of a mesh with this tag.
func TopicName(tag string) string { return "/balefire/gossip/" + meshName(tag) }

// A Discovery is what a transport found besides the peers that it was told of.
type Discovery struct {
	TopicPeers int        // members that listen to the gossip topic
	TablePeers int        // members in the routing table of the DHT
	LAN        string     // up, off, or why this node is not on the LAN
	Strangers  []Stranger // found, and not known to be members; at most 256
}

// Discovery returns what was found so far.
func (t *Transport) Discovery() Discovery {
	d := Discovery{LAN: "off"}
	if l := t.disc.lan; l != nil {
		d.LAN = l.status()
	}
	if b := t.disc.bus.Load(); b != nil {
		d.TopicPeers = len(b.topic.ListPeers())
	}
	if w := t.disc.table.Load(); w != nil {
		d.TablePeers = w.dht.RoutingTable().Size()
	}
	t.disc.mu.Lock()
	defer t.disc.mu.Unlock()
	d.Strangers = slices.DeleteFunc(t.disc.strangers.list(), func(s Stranger) bool { return t.isMember(s.Peer) })
	return d
}

// errTooMany is returned for a peer that nobody vouched for while many of these
// were tried lately.
var errTooMany = errors.New("transport: too many unknown peers at once")

// meet says hello to a peer that was found, at the addresses where it was. One
// that is not known may be a member all the same.
func (t *Transport) meet(ctx context.Context, p proto.PeerID, addrs []string) error {
	known := t.isMember(p) || t.known()[p]
	now := t.cfg.Clock.Mono()
	t.disc.mu.Lock()
	x := t.disc.strangers.see(p, now)
	if !x.near {
		x.Seen, x.Addrs = t.cfg.Clock.Now(), addrs
	}
	ok := x.begin(now)
	t.disc.mu.Unlock()
	if !ok {
		return errStranger
	}
	var nobody proto.PeerID
	err := errTooMany
	if known || t.allow(nobody, admit.Unknown) {
		err = t.connect(ctx, Contact{Peer: p, Addrs: addrs}, false)
	}
	t.disc.mu.Lock()
	defer t.disc.mu.Unlock()
	switch {
	case err == nil:
		delete(t.disc.strangers, p)
		return nil
	case errors.Is(ctx.Err(), context.Canceled):
		x.trying = false // who asked for it went away: that says nothing of p
		return err
	}
	longest := longestRetry
	if known {
		longest = lanLongest
	}
	x.failed(t.cfg.Clock.Mono(), err, longest)
	refused, is := errors.AsType[*RefusedError](err)
	x.Joins = is && refused.Theirs && refused.Reason == reasonNoMesh
	return err
}
