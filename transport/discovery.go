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

// A discovery finds members besides the connected peers. What it starts stops before the
// host is closed.
type discovery struct {
	members *memberHost
	topic   atomic.Pointer[gossipTopic] // nil: the topic is not joined
	dht     atomic.Pointer[memberDHT]   // nil: no DHT
	lan     *lan                        // nil: LAN discovery is off
	cancel  context.CancelFunc

	mu        sync.Mutex
	strangers strangers
}

func (d *discovery) init(t *Transport) (err error) {
	d.strangers = make(strangers)
	if t.cfg.MDNS {
		d.lan = newLAN(t)
	}
	d.members, err = newMemberHost(t)
	return err
}

// start starts all that is configured, before the first connection is accepted. After an
// error stop stops what was started.
func (d *discovery) start(ctx context.Context, t *Transport) error {
	ctx, d.cancel = context.WithCancel(ctx)
	t.group.start(d.members.run)
	if t.cfg.Topic != nil {
		b, err := newGossipTopic(ctx, t, d.members)
		if err != nil {
			return fmt.Errorf("gossip: %w", err)
		}
		d.topic.Store(b)
		t.group.start(b.run)
	}
	if t.cfg.DHT {
		w, err := newMemberDHT(t, d.members)
		if err != nil {
			return fmt.Errorf("DHT: %w", err)
		}
		d.dht.Store(w)
		t.group.start(w.run)
	}
	if d.lan != nil {
		t.group.start(d.lan.run)
	}
	return nil
}

// announceAgain announces this node on the LAN again, at the addresses that it has now:
// mDNS announces those of its start.
func (d *discovery) announceAgain() {
	if d.lan != nil {
		notify(d.lan.moved)
	}
}

// stop stops what was started, while the host is still open.
func (d *discovery) stop() {
	d.cancel()
	if w := d.dht.Load(); w != nil {
		w.close()
	}
	if d.lan != nil {
		d.lan.closeWatchers() // run may never have been called
	}
}

// meshName returns the public name of the mesh, used in protocol names and on the LAN.
func meshName(tag string) string {
	sum := sha256.Sum256([]byte("balefire mesh name " + tag))
	return hex.EncodeToString(sum[:8])
}

// TopicName returns the name of the gossip topic of a mesh with this tag.
func TopicName(tag string) string { return "/balefire/gossip/" + meshName(tag) }

// A Discovery describes what was found besides the known peers.
type Discovery struct {
	TopicPeers int        // members subscribed to the gossip topic
	TablePeers int        // members in the routing table of the DHT
	LAN        string     // up, off, or why this node is not on the LAN
	Strangers  []Stranger // found, but not known to be members; at most 256
}

// Discovery returns what was found so far.
func (t *Transport) Discovery() Discovery {
	d := Discovery{LAN: "off"}
	if l := t.disc.lan; l != nil {
		d.LAN = l.status()
	}
	if b := t.disc.topic.Load(); b != nil {
		d.TopicPeers = len(b.topic.ListPeers())
	}
	if w := t.disc.dht.Load(); w != nil {
		d.TablePeers = w.dht.RoutingTable().Size()
	}
	t.disc.mu.Lock()
	defer t.disc.mu.Unlock()
	d.Strangers = slices.DeleteFunc(t.disc.strangers.list(), func(s Stranger) bool { return t.members.isMember(s.Peer) })
	return d
}

// errTooMany is returned for an unvouched peer when many of them were tried recently.
var errTooMany = errors.New("transport: too many unknown peers at once")

// tryHello exchanges hellos with a peer that was found, at these addresses. An unknown
// peer may still be a member.
func (t *Transport) tryHello(ctx context.Context, p proto.PeerID, addrs []string) error {
	known := t.members.isKnown(p)
	now := t.cfg.Clock.Mono()
	t.disc.mu.Lock()
	x := t.disc.strangers.note(p, now)
	if !x.onLAN {
		x.Seen, x.Addrs = t.cfg.Clock.Now(), addrs
	}
	ok := x.begin(now)
	t.disc.mu.Unlock()
	if !ok {
		return errStranger
	}
	var nobody proto.PeerID
	err := errTooMany
	if known || t.rates.allow(nobody, admit.Unknown) {
		err = t.dialer.connect(ctx, proto.Contact{Peer: p, Addrs: addrs}, false)
	}
	t.disc.mu.Lock()
	defer t.disc.mu.Unlock()
	switch {
	case err == nil:
		delete(t.disc.strangers, p)
		return nil
	case errors.Is(ctx.Err(), context.Canceled):
		x.trying = false // the caller gave up: that says nothing about p
		return err
	}
	longest := maxRetry
	if known {
		longest = lanMaxRetry
	}
	x.failed(t.cfg.Clock.Mono(), err, longest)
	refused := asRefusal(p, err)
	x.Joins = refused != nil && refused.Theirs && refused.Reason == reasonNoMesh
	return err
}
