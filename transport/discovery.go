package transport

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
)

// A discovery finds members besides the connected peers. What it starts stops before the
// host is closed.
type discovery struct {
	cfg     Config
	log     *slog.Logger
	met     *metrics
	group   *taskGroup
	peers   *peerTable
	members *members
	rates   *rates
	found   *foundPeers

	host   *memberHost
	topic  atomic.Pointer[gossipTopic] // nil: the topic is not joined
	dht    atomic.Pointer[memberDHT]   // nil: no DHT
	lan    *lan                        // nil: LAN discovery is off
	cancel context.CancelFunc
}

// start starts all that is configured, before the first connection is accepted. After an
// error stop stops what was started.
func (d *discovery) start(ctx context.Context) error {
	ctx, d.cancel = context.WithCancel(ctx)
	d.group.start(d.host.run)
	if d.cfg.Topic != nil {
		b, err := d.joinTopic(ctx)
		if err != nil {
			return fmt.Errorf("gossip: %w", err)
		}
		d.topic.Store(b)
		d.group.start(b.run)
	}
	if d.cfg.DHT {
		w, err := d.joinDHT()
		if err != nil {
			return fmt.Errorf("DHT: %w", err)
		}
		d.dht.Store(w)
		d.group.start(w.run)
	}
	if d.lan != nil {
		d.group.start(d.lan.run)
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
	d.Strangers = slices.DeleteFunc(t.disc.found.list(), func(s Stranger) bool { return t.members.isMember(s.Peer) })
	return d
}
