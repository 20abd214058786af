package transport

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	pubsub "github.com/libp2p/go-libp2p-pubsub"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport/admit"
)

// Bounds of gossip. With shorter queues a burst loses two of three messages.
const (
	maxRumor    = 64 << 10
	rumorHead   = 1 << 10 // author, number, topic, signature
	gossipQueue = 4096
	seenFor     = 10 * time.Minute
)

// ErrNoGossip is returned by [Transport.Publish] while no topic is joined.
var ErrNoGossip = errors.New("transport: no gossip: the transport is not running, or no topic is configured")

// A TopicHandler handles messages of the gossip topic.
type TopicHandler interface {
	// Valid reports whether a message of a member is to be forwarded, and returns the
	// number that its author gave it: it increases across the author's restarts; 0: none.
	// It is called for each message, by several goroutines: cheap checks should come
	// first.
	Valid(author proto.PeerID, data []byte) (number uint64, ok bool)
	// Receive handles a valid message, once, one at a time. While it blocks, others wait
	// and are eventually dropped.
	Receive(author proto.PeerID, data []byte)
}

// A gossipTopic is the gossip topic of the mesh. It spreads messages fast and without
// guarantees: what must arrive is sent another way.
type gossipTopic struct {
	cfg       Config
	log       *slog.Logger
	met       *metrics
	group     *taskGroup
	peers     *peerTable
	members   *members
	rates     *rates
	host      *memberHost
	topic     *pubsub.Topic
	sub       *pubsub.Subscription
	replay    *replayGuard
	protocols []protocol.ID // gossipsub's protocols

	overlay overlayPeers
}

// overlayPeers are the members to which gossipsub sends messages at once.
type overlayPeers struct {
	mu  sync.Mutex
	all map[peer.ID]bool
}

func (n *overlayPeers) set(p peer.ID, is bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.all == nil {
		n.all = make(map[peer.ID]bool)
	}
	if n.all[p] = is; !is {
		delete(n.all, p)
	}
}

func (n *overlayPeers) count() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.all)
}

// joinTopic joins the topic.
func (d *discovery) joinTopic(ctx context.Context) (*gossipTopic, error) {
	b := &gossipTopic{
		cfg: d.cfg, log: d.log, met: d.met, group: d.group, peers: d.peers, members: d.members, rates: d.rates, host: d.host,
		replay: newReplayGuard(d.cfg.Nonces), protocols: pubsub.GossipSubDefaultProtocols,
	}
	name := TopicName(d.cfg.MeshTag)
	ps, err := pubsub.NewGossipSub(ctx, d.host,
		pubsub.WithMessageSignaturePolicy(pubsub.StrictSign),
		pubsub.WithGossipSubParams(overlay()),
		pubsub.WithMaxMessageSize(maxRumor+rumorHead),
		pubsub.WithMaxControlMessageSize(maxRumor),
		pubsub.WithPeerOutboundQueueSize(gossipQueue),
		pubsub.WithValidateQueueSize(gossipQueue),
		pubsub.WithSeenMessagesTTL(seenFor),
		pubsub.WithPeerFilter(func(p peer.ID, topic string) bool { return topic == name && d.members.verified(p) }),
		pubsub.WithSubscriptionFilter(pubsub.WrapLimitSubscriptionFilter(pubsub.NewAllowlistSubscriptionFilter(name), 16)),
		pubsub.WithAppSpecificRpcInspector(b.inspect),
		pubsub.WithRawTracer(&rumorTracer{b}),
	)
	if err != nil {
		return nil, err
	}
	if err := ps.RegisterTopicValidator(name, b.validate, pubsub.WithValidatorInline(true)); err != nil {
		return nil, err
	}
	if b.topic, err = ps.Join(name); err != nil {
		return nil, err
	}
	b.sub, err = b.topic.Subscribe(pubsub.WithBufferSize(gossipQueue))
	return b, err
}

// leastOverlay and overlayTime are how many such members a node waits for, and how long,
// before it publishes: what is published earlier may reach nobody.
const (
	leastOverlay = 3
	overlayTime  = 2 * time.Second
)

// overlay returns the parameters of gossipsub: a node sends each message to four others,
// its own too, not to six to twelve as by default, and tells three more once that it has it, not
// a quarter of all members three times. Links may be narrow, and what is lost is found by comparison.
func overlay() pubsub.GossipSubParams {
	p := pubsub.DefaultGossipSubParams()
	p.D, p.Dlo, p.Dhi, p.Dscore, p.Dout, p.Dlazy = 4, leastOverlay, 6, 2, 1, 3
	p.HistoryGossip, p.GossipFactor = 1, 0
	return p
}

// awaitOverlay waits until gossipsub has members to send to, if there are any, but not long.
func (b *gossipTopic) awaitOverlay(ctx context.Context) {
	again := time.NewTicker(overlayTime / 20)
	defer again.Stop()
	for range 20 {
		if b.overlay.count() >= min(leastOverlay, len(b.topic.ListPeers())) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-again.C:
		}
	}
}

// run passes on received messages until ctx is done.
func (b *gossipTopic) run(ctx context.Context) {
	b.group.start(b.repairLoop)
	b.group.start(b.persistLoop)
	for {
		m, err := b.sub.Next(ctx)
		if err != nil {
			return
		}
		author, err := fromLibp2p(m.GetFrom())
		if err != nil || author == b.host.self {
			continue
		}
		b.met.rumors.WithLabelValues("heard").Inc()
		b.cfg.Topic.Receive(author, m.GetData())
	}
}

// persistEvery is how often the replay guard is persisted.
const persistEvery = 10 * time.Second

// persistLoop persists which messages were received, so that none is accepted again after
// a restart.
func (b *gossipTopic) persistLoop(ctx context.Context) {
	tick := b.cfg.Clock.Ticker(persistEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			b.persist(last)
			return
		case <-tick.C:
			b.persist(ctx)
		}
	}
}

func (b *gossipTopic) persist(ctx context.Context) {
	if err := b.replay.persist(ctx); err != nil {
		b.log.Warn("the replay guard could not be persisted: after a restart some rumors may be accepted again", "why", err)
	}
}

// inspect checks an RPC of a peer before any work is done for it, and removes what
// exceeds that peer's rate.
func (b *gossipTopic) inspect(from peer.ID, rpc *pubsub.RPC) error {
	p, err := fromLibp2p(from)
	if err != nil || !b.peers.connected(p) {
		return errStranger
	}
	kept := rpc.Publish[:0]
	for _, m := range rpc.Publish {
		if !b.rates.allowMany(p, admit.Forward, share(len(m.GetData()))) {
			b.met.rumors.WithLabelValues("flooded").Inc()
			continue
		}
		kept = append(kept, m)
	}
	clear(rpc.Publish[len(kept):])
	rpc.Publish = kept
	return nil
}

// share is the number of tokens that a message of n bytes costs its forwarder and its
// author.
func share(n int) int { return 1 + n>>10 }

// validate decides whether a message is processed and forwarded. Its signature has been
// checked. A message that an honest node may have forwarded is not an offense of the
// forwarder, which may know less, or more, than this node.
func (b *gossipTopic) validate(ctx context.Context, from peer.ID, m *pubsub.Message) pubsub.ValidationResult {
	if from == b.host.ID() {
		return pubsub.ValidationAccept
	}
	outcome, result := b.check(ctx, m)
	if result != pubsub.ValidationAccept {
		b.met.rumors.WithLabelValues(outcome).Inc()
	}
	return result
}

func (b *gossipTopic) check(ctx context.Context, m *pubsub.Message) (outcome string, result pubsub.ValidationResult) {
	author, err := fromLibp2p(m.GetFrom())
	data := m.GetData()
	switch {
	case err != nil || len(data) == 0 || len(data) > maxRumor:
		return "bad", pubsub.ValidationReject
	case !b.members.isMember(author):
		return "stranger", pubsub.ValidationIgnore
	case !b.rates.allowMany(author, admit.Author, share(len(data))):
		return "flooded", pubsub.ValidationIgnore
	}
	number, ok := b.cfg.Topic.Valid(author, data)
	if !ok {
		return "invalid", pubsub.ValidationReject
	}
	switch fresh, err := b.replay.accept(ctx, author, number, m.GetSeqno()); {
	case err != nil:
		b.log.Warn("rumor dropped: unknown whether it was received before", "author", author, "why", err)
		return "unknown", pubsub.ValidationIgnore
	case !fresh:
		return "replayed", pubsub.ValidationIgnore
	}
	return "", pubsub.ValidationAccept
}

// Publish sends data to all members of the mesh that are reachable now; some may miss it.
// At most 64 KiB. This node does not receive its own messages. Just after the start it waits
// up to two seconds until there are members to send it to.
func (t *Transport) Publish(ctx context.Context, data []byte) error {
	b := t.disc.topic.Load()
	switch {
	case b == nil:
		return ErrNoGossip
	case len(data) == 0 || len(data) > maxRumor:
		return fmt.Errorf("publish: %d bytes, want 1 to %d", len(data), maxRumor)
	}
	b.awaitOverlay(ctx)
	if err := b.topic.Publish(ctx, data); err != nil {
		return fmt.Errorf("publish: %w", err)
	}
	t.met.rumors.WithLabelValues("published").Inc()
	return nil
}

// repairEvery is how often lost members are searched for.
const repairEvery = 2 * time.Second

// repairLoop repairs what gossipsub does not: it permanently loses a member when streams
// close in an unlucky order, or four times in ten minutes.
func (b *gossipTopic) repairLoop(ctx context.Context) {
	tick := b.cfg.Clock.Ticker(repairEvery)
	defer tick.Stop()
	absences := make(map[proto.PeerID]gossipRepair)
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		heard := b.topic.ListPeers()
		now := b.cfg.Clock.Mono()
		for _, p := range b.missing(heard) {
			a := absences[p]
			do := a.next(now)
			absences[p] = a
			b.repairPeer(p, do)
		}
		for p, a := range absences {
			if slices.Contains(heard, toLibp2p(p)) || now-a.checked > forgetAfter {
				delete(absences, p)
			}
		}
	}
}

// missing returns the connected members that support gossip but are not subscribed.
func (b *gossipTopic) missing(heard []peer.ID) []proto.PeerID {
	var lost []proto.PeerID
	for _, p := range b.peers.connectedPeers() {
		id := toLibp2p(p)
		if slices.Contains(heard, id) || !b.members.activeMember(p) {
			continue
		}
		if speaks, err := b.host.Peerstore().SupportsProtocols(id, b.protocols...); err == nil && len(speaks) > 0 {
			lost = append(lost, p)
		}
	}
	return lost
}

// repairPeer restores a lost member. Its gossip streams are cheap to reopen; the
// connection is closed only when that does not help.
func (b *gossipTopic) repairPeer(p proto.PeerID, how repairAction) {
	switch how {
	case repairStreams:
		b.met.repairs.WithLabelValues("streams").Inc()
		for _, c := range b.host.Host.Network().ConnsToPeer(toLibp2p(p)) {
			for _, s := range c.GetStreams() {
				if slices.Contains(b.protocols, s.Protocol()) && s.Stat().Direction == network.DirInbound {
					s.Reset() // the other side reopens it and announces its subscriptions
				}
			}
		}
		b.host.announceMember(toLibp2p(p))
	case repairConnection:
		b.met.repairs.WithLabelValues("connection").Inc()
		b.log.Warn("gossip has lost a connected member: reconnecting", "peer", p)
		b.rates.disconnect(p)
	}
}
