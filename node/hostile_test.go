package node

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/bodies"
	"github.com/balefire/balefire/mailbox"
	"github.com/balefire/balefire/pairing"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transfer"
	"github.com/balefire/balefire/transport/transporttest"
	"github.com/balefire/balefire/wire"
)

// paddingSizes are the sizes of unknown fields behind a message: above the limit of a
// value in the store, and above all that fits into a frame.
var paddingSizes = []int{70_000, 300_000, 1 << 20}

// controlPadding is the size of an unknown field that fits into a frame of any stream.
const controlPadding = 60_000

// No message of a member, of whatever size, on none of the streams that a node serves,
// stops a node or its work: each is dropped, and the queue and the mailboxes continue.
func TestNoMessageStopsANode(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2, time.Second)
		defer c.close()
		f := c.forger("mallory", "send")
		defer f.Close()
		home := c.nodes[0].node
		to := home.keys.Peer()
		c.nodes[0].addMailbox("ceo", "*")
		c.nodes[0].addMailbox("desk", "*")
		time.Sleep(10 * time.Second)
		checkStreams(t, f, to)
		for _, frame := range hostileFrames(t, f, to) {
			f.Send(to, proto.StreamTask, frame)
			time.Sleep(time.Minute) // until its offenses are forgiven
		}
		if s, known := home.Queues.Driver.QueueStates()["fat"]; known {
			t.Errorf("a queue that no admin made is known, with %d bytes", proto.Size(s))
		}
		sendOnEachStream(t, f, home)
		for _, data := range [][]byte{transporttest.Padding(controlPadding), transporttest.Padding(paddingSizes[0])} {
			if err := f.Publish(data); err != nil {
				t.Error(err)
			}
		}
		time.Sleep(time.Minute)
		c.waitAll(1, c.submitMany(1, 3), time.Minute)
		c.nodes[1].sendMail(wire.Mail{To: "agent:desk@n0", Body: []byte("after all")})
		c.nodes[0].readMail("desk", 1, time.Minute)
	})
}

// onStreams are messages that a node takes on the streams besides that of tasks.
var onStreams = map[string][]proto.MessageType{
	proto.StreamChunk: {proto.TypeOffer, proto.TypeChunk, proto.TypeSync},
	proto.StreamSync:  {proto.TypeSync, proto.TypeOffer},
	proto.StreamLease: {
		proto.TypeGranted, proto.TypeRenew, proto.TypeRenewed, proto.TypeRelease, proto.TypeReleased, proto.TypeStatus, proto.TypeStatusReply,
		proto.TypeHandedOff, proto.TypeCommitted, proto.TypeWithdraw, proto.TypeGrant, proto.TypeQueues, proto.TypeData,
	},
	proto.StreamMail: {
		proto.TypeBundle, proto.TypeBundled, proto.TypeOpen, proto.TypeOpened, proto.TypeDeliver, proto.TypeSettle, proto.TypeSettled, proto.TypeData,
	},
	proto.StreamCtl: {
		proto.TypePing, proto.TypePong, proto.TypeHello, proto.TypeStarted, proto.TypeProbe, proto.TypeProbed, proto.TypeReady, proto.TypeLookup,
		proto.TypeLookupReply, proto.TypeData,
	},
	proto.StreamJoin: {proto.TypeJoin, proto.TypePing},
	proto.StreamEcho: {proto.TypePing, proto.TypeData},
}

// checkStreams checks that a node serves the streams that the test knows, and no other.
func checkStreams(t *testing.T, f *transporttest.Forger, to proto.PeerID) {
	t.Helper()
	served, err := f.Protocols(to)
	if err != nil {
		t.Fatal(err)
	}
	served = slices.DeleteFunc(served, func(p string) bool { return !strings.HasPrefix(p, "/balefire/") || strings.Contains(p, "/kad/") })
	slices.Sort(served)
	if want := slices.Sorted(maps.Keys(onStreams)); !slices.Equal(served, slices.Sorted(slices.Values(append(want, proto.StreamTask)))) {
		t.Errorf("it serves %q, the test knows %q and that of tasks", served, want)
	}
}

// sendOnEachStream sends large messages on each stream that a node serves besides that of
// tasks, and connects again whenever the node has closed the connection.
func sendOnEachStream(t *testing.T, f *transporttest.Forger, n *Node) {
	t.Helper()
	to := n.keys.Peer()
	connect := func() {
		for range 60 { // it may still be refused for an offense
			if f.Connected(to) || f.TryConnect(to, n.net.Addrs()) == nil {
				return
			}
			time.Sleep(time.Minute)
		}
		t.Fatal("the node lets it connect no more")
	}
	connect()
	bodies := mailBodies(f.Peer())
	for _, stream := range slices.Sorted(maps.Keys(onStreams)) {
		for _, typ := range onStreams[stream] {
			sizes := []int{controlPadding, paddingSizes[0]}
			if slices.Contains([]string{proto.StreamChunk, proto.StreamMail, proto.StreamLease}, stream) { // of larger frames
				sizes = paddingSizes[:2]
			}
			for _, size := range sizes {
				payload := transporttest.Padding(size)
				if m := bodies[typ]; m != nil {
					b, err := proto.Encode(nil, m)
					if err != nil {
						t.Fatal(err)
					}
					payload = append(b, payload...)
				}
				frame := transporttest.FrameOf(typ, payload, nil)
				if stream != proto.StreamCtl {
					f.Send(to, stream, frame)
				} else {
					_ = f.SendCtl(to, frame) // it may close the stream before it has read all
				}
				time.Sleep(time.Minute) // until its offenses are forgiven
				connect()
			}
		}
	}
}

// mailBodies are messages about mail of a peer, for the mailbox ceo.
func mailBodies(self proto.PeerID) map[proto.MessageType]proto.Body {
	now := time.Now()
	letter, err := proto.AppendLetter(nil, &proto.Letter{
		Class: proto.Normal, ID: proto.NewMailID(now), Created: now.UnixMilli(), NotAfter: now.Add(time.Hour).UnixMilli(), Body: []byte("hello"),
	})
	if err != nil {
		panic(err)
	}
	return map[proto.MessageType]proto.Body{
		proto.TypeBundle: &proto.Bundle{
			Number: 1, Box: "ceo", Chain: proto.Normal, Runs: []*proto.Run{{Boot: 1, First: 1, Count: 1}}, Letters: letter, Receipt: true,
		},
		proto.TypeBundled: &proto.Bundled{Number: 1, Boot: 1, UpToNumber: 1, Home: self[:]},
		proto.TypeOpen:    &proto.Open{Session: 1, Box: "ceo", Credit: 1, Room: 1 << 20},
		proto.TypeOpened:  &proto.Opened{Session: 1, Code: proto.CodeBusy},
		proto.TypeDeliver: &proto.Deliver{Session: 1, Boot: 1, Deliveries: []*proto.Delivery{{Seq: 1, Number: 1, Attempt: 1, LeaseMs: 1000}}, Letters: letter},
		proto.TypeSettle: &proto.Settle{
			Ref: 1, Box: "ceo", Settlements: []*proto.Settlement{{Seq: 1, Boot: 1, Delivery: 1, Verb: proto.SettleAck}},
		},
		proto.TypeSettled: &proto.Settled{Ref: 1},
	}
}

// hostileFrames returns messages for a task stream, each larger than some limit.
func hostileFrames(t *testing.T, f *transporttest.Forger, to proto.PeerID) (all [][]byte) {
	self := f.Peer()
	state := &proto.QueueState{Name: "fat", Generation: 1, Home: self[:]}
	id := make([]byte, 16)
	lease := func() *proto.Lease {
		return &proto.Lease{Task: id, Queue: "fat", State: proto.Pending, Generation: 2, NotAfterMs: time.Now().Add(time.Hour).UnixMilli()}
	}
	all = append(all, f.Frame(proto.TypeQueues, &proto.QueueStates{Queues: []*proto.QueueState{state}}))
	for _, n := range paddingSizes[:2] {
		fat := withUnknown(t, state, n, new(proto.QueueState))
		all = append(all, f.Frame(proto.TypeQueues, &proto.QueueStates{Queues: []*proto.QueueState{fat}}))
		all = append(all, f.Frame(proto.TypeHandoff, &proto.Handoff{Queue: fat}))
		all = append(all, f.Frame(proto.TypeHandoff, &proto.Handoff{Lease: withUnknown(t, lease(), n, new(proto.Lease)), Queue: state}))
		all = append(all, f.Frame(proto.TypeSchedule, &proto.Schedule{Queue: "fat", Name: "n", Generation: 2, Gone: true}, transporttest.Padding(n)...))
	}
	all = append(all, f.Frame(proto.TypeQueues, &proto.QueueStates{Queues: []*proto.QueueState{longDeedChain(t, f, "chain", 31, 3<<10)}}))
	all = append(all, f.Frame(proto.TypeQueues, &proto.QueueStates{Queues: []*proto.QueueState{longDeedChain(t, f, "short", 31, 900)}}))
	// The longest names do not fit into a key of the store.
	name := strings.Repeat("q", 128)
	long := &proto.QueueState{Name: name, Generation: 2, Home: to[:], Deeds: []*proto.Signed{signDeed(t, f, name, 2, to, 0)}}
	return append(all, f.Frame(proto.TypeHandoff, &proto.Handoff{Queue: long, Blocks: []*proto.LaneBlock{{Queue: name, Key: strings.Repeat("k", 256), Task: id}}}))
}

// withUnknown decodes m, with n bytes of unknown fields, into into.
func withUnknown[M proto.Body](t *testing.T, m M, n int, into M) M {
	t.Helper()
	b, err := proto.Encode(nil, m)
	if err == nil {
		err = proto.Decode(append(b, transporttest.Padding(n)...), into)
	}
	if err != nil {
		t.Fatal(err)
	}
	return into
}

// signDeed returns a deed by which f gives a queue to another home, with n bytes of
// unknown fields.
func signDeed(t *testing.T, f *transporttest.Forger, queue string, generation uint64, to proto.PeerID, n int) *proto.Signed {
	t.Helper()
	from := f.Peer()
	m := &proto.Deed{Mesh: f.Mesh.ID[:], Queue: queue, Generation: generation, From: from[:], To: to[:]}
	details, err := proto.Encode(nil, m)
	if err != nil {
		t.Fatal(err)
	}
	return f.Sign("deed", append(details, transporttest.Padding(n)...))
}

// longDeedChain returns the state of a queue that f gave away and took back many
// times, each time by a deed with n bytes of unknown fields.
func longDeedChain(t *testing.T, f *transporttest.Forger, queue string, deeds, n int) *proto.QueueState {
	t.Helper()
	self := f.Peer()
	s := &proto.QueueState{Name: queue, Generation: uint64(deeds) + 1, Home: self[:]}
	for i := range deeds {
		to := self
		to[0] ^= 1
		s.Deeds = append(s.Deeds, signDeed(t, f, queue, uint64(i)+2, to, n))
	}
	return s
}

// FuzzReceivers passes arbitrary bytes, plain and padded, to each receiver of a
// running node as if a member had sent them: none of them stops the node or a part of
// it.
func FuzzReceivers(f *testing.F) {
	cfg := testConfig(f, filepath.Join(f.TempDir(), "node"))
	if _, err := pairing.Init(pairing.InitOptions{Dir: cfg.Dir, Name: "victim", NewMesh: true}); err != nil {
		f.Fatal(err)
	}
	victim := start(f, cfg)
	m := victim.forger("mallory", "send")
	self := m.Peer()
	everyone := []string{"*"}
	if _, err := victim.Mail.SetMailbox(f.Context(), "ceo", wire.MailboxSettings{BoxSettings: wire.BoxSettings{Allow: &everyone, AllowRead: &everyone}}); err != nil {
		f.Fatal(err)
	}
	for _, b := range slices.AppendSeq([]proto.Body{
		new(proto.Message), &proto.QueueStates{Queues: []*proto.QueueState{{Name: "q", Generation: 1, Home: self[:]}}},
		&proto.Handoff{Queue: &proto.QueueState{Name: "q", Generation: 2, Home: self[:]}, Blocks: []*proto.LaneBlock{{Queue: "q", Key: "k"}}},
		&proto.Renew{Claims: []*proto.Claim{{Task: make([]byte, 16), Token: make([]byte, 16)}}},
		&proto.Schedule{Queue: "q", Name: "s", Generation: 2, Gone: true}, &proto.Rumors{Root: make([]byte, 32)}, &proto.Probe{Number: 1},
		&proto.SyncRequest{After: self[:]}, &proto.Offer{Type: proto.TypeHandoff, Envelope: new(proto.Envelope)}, &proto.JoinRequest{Name: "x"},
		&proto.Envelope{Header: []byte("header"), Body: []byte("body")}, &proto.Receipts{Receipts: []*proto.Receipt{{Statement: []byte("x")}}},
		&proto.Ready{Handlers: true, Room: true},
		&proto.Chunk{Index: 1, Data: make([]byte, 1<<10+16), Path: make([]byte, 64)},
	}, maps.Values(mailBodies(self))) {
		payload, err := proto.Encode(nil, b)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(payload)
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		victim.receiveFuzzed(t, ctx, self, payload)
		for _, n := range paddingSizes {
			if n < 1<<20 || len(payload) < 64 { // once is enough
				victim.receiveFuzzed(t, ctx, self, slices.Concat(payload, transporttest.Padding(n)))
			}
		}
		_, _, err := victim.Queues.Driver.Unfinished(ctx)
		if err != nil {
			t.Fatalf("the ownership subsystem does not answer: %v", err)
		}
		if _, err := victim.Mail.Page(ctx, "", "", 0); err != nil {
			t.Fatalf("the mailboxes do not answer: %v", err)
		}
		select {
		case err := <-victim.done:
			victim.done <- err
			t.Fatalf("the node ended: %v", err)
		default:
		}
	})
}

// onTaskStreams are the bodies of the messages on task streams.
var onTaskStreams = map[proto.MessageType]proto.Body{
	proto.TypeData: new(proto.Envelope), proto.TypeResult: new(proto.Envelope), proto.TypeEnded: new(proto.Envelope),
	proto.TypeCancel: new(proto.Cancel), proto.TypeWithdraw: new(proto.Cancel), proto.TypeMark: new(proto.Mark),
	proto.TypeGrant: new(proto.Grant), proto.TypeGranted: new(proto.Granted), proto.TypeStart: new(proto.Start), proto.TypePermit: new(proto.Permit),
	proto.TypeRenew: new(proto.Renew), proto.TypeRenewed: new(proto.Renewed), proto.TypeRelease: new(proto.Release), proto.TypeReleased: new(proto.ReleaseReply),
	proto.TypeStatus: new(proto.Status), proto.TypeStatusReply: new(proto.StatusReply), proto.TypeCommitted: new(proto.Committed),
	proto.TypeHandoff: new(proto.Handoff), proto.TypeHandedOff: new(proto.HandedOff), proto.TypeQueues: new(proto.QueueStates),
	proto.TypeSchedule: new(proto.Schedule), proto.TypeScheduled: new(proto.Scheduled), proto.TypeTimeline: new(proto.TimelineAsk), proto.TypeTimelineReply: new(proto.TimelineReply),
	proto.TypeQueueAsk: new(proto.QueueAsk), proto.TypeQueueAnswer: new(proto.QueueAnswer),
}

// onMailStreams are the bodies of the messages on mail streams.
var onMailStreams = map[proto.MessageType]proto.Body{
	proto.TypeBundle: new(proto.Bundle), proto.TypeBundled: new(proto.Bundled), proto.TypeOpen: new(proto.Open), proto.TypeOpened: new(proto.Opened),
	proto.TypeDeliver: new(proto.Deliver), proto.TypeSettle: new(proto.Settle), proto.TypeSettled: new(proto.Settled),
	proto.TypeBoxPart: new(proto.BoxPart), proto.TypeBoxTaken: new(proto.BoxTaken),
}

// otherStreams are the messages on other streams, where a malformed message breaks the
// protocol: see transport.FuzzControl and gossip.FuzzRunner.
var otherStreams = []proto.MessageType{
	proto.TypePing, proto.TypePong, proto.TypeAck, proto.TypeHello, proto.TypeStarted, proto.TypeJoin, proto.TypeJoined,
	proto.TypeOffer, proto.TypeOffered, proto.TypeChunk, proto.TypeChunked, proto.TypeProbe, proto.TypeProbed,
	proto.TypeSync, proto.TypeSynced, proto.TypeReady, proto.TypeLookup, proto.TypeLookupReply,
}

func TestEveryMessageTypeIsFuzzed(t *testing.T) {
	for typ, name := range proto.MessageType_name {
		if onTaskStreams[proto.MessageType(typ)] == nil && onMailStreams[proto.MessageType(typ)] == nil && !slices.Contains(otherStreams, proto.MessageType(typ)) {
			t.Errorf("no fuzz target knows what %s has as its body", name)
		}
	}
}

// receiveFuzzed passes a payload to everything that takes one. A payload that does not
// decode as the body of a message counts against its sender.
func (l *testNode) receiveFuzzed(t *testing.T, ctx context.Context, from proto.PeerID, payload []byte) {
	for n := range proto.MessageType_name {
		typ := proto.MessageType(n)
		a, err := receiver{l.Node}.Receive(ctx, from, []*proto.Message{{Type: typ, Payload: bytes.Clone(payload), Signature: make([]byte, 64)}})
		if err != nil {
			t.Errorf("%s: the stream ends: %v", typ, err)
		}
		if body := onTaskStreams[typ]; body != nil && a.Offense == nil {
			if err := proto.DecodeKnown(payload, body.ProtoReflect().New().Interface()); err != nil {
				t.Errorf("%s: no offense: %v", typ, err)
			}
		}
	}
	l.receiveFuzzedMail(t, ctx, from, payload)
	for _, typ := range []proto.MessageType{proto.TypeLookup, proto.TypeLookupReply} {
		err := l.notices.HandleLookup(ctx, from, &proto.Message{Type: typ, Payload: payload})
		if bad := proto.DecodeKnown(payload, new(proto.Lookup)); typ == proto.TypeLookup && bad != nil && !proto.Malformed(err) {
			t.Errorf("%s: %v is not an offense", typ, err)
		}
	}
	r := gossipHandler{l.Node}
	r.Control(from, &proto.Message{Type: proto.TypeProbe, Payload: payload})
	r.Control(from, &proto.Message{Type: proto.TypeProbed, Payload: payload})
	_, _ = r.Sync(ctx, from, &proto.Message{Type: proto.TypeSync, Payload: payload}) // it may be refused
	if _, ok := r.Valid(from, payload); ok {
		r.Receive(from, payload)
	}
	var o proto.Offer
	if proto.DecodeKnown(payload, &o) == nil {
		if sink, _ := (transfer.Receiver{Transfers: l.Node.transfers}).Offer(ctx, from, &o, new(bodies.Manifest)); sink != nil {
			_ = sink.End(false)
		}
	}
	l.receiveFuzzedChunk(t, payload)
	var j proto.JoinRequest
	if proto.DecodeKnown(payload, &j) == nil {
		l.Pairing.Join(ctx, from, &j)
	}
	var h proto.Hello
	if proto.DecodeKnown(payload, &h) == nil {
		_ = l.book.Admit(&h, from)
	}
	var s proto.Receipts
	if proto.DecodeKnown(payload, &s) == nil {
		receiver{l.Node}.Started(from, &s)
	}
	var ready proto.Ready
	if proto.DecodeKnown(payload, &ready) == nil {
		l.notices.Ready(from, &ready)
	}
}

// receiveFuzzedMail passes a payload to the mailboxes as each message about mail. What
// they refuse is an offense, or more than they hold for one peer.
func (l *testNode) receiveFuzzedMail(t *testing.T, ctx context.Context, from proto.PeerID, payload []byte) {
	for typ, body := range onMailStreams {
		err := l.Mail.Receive(ctx, from, &proto.Message{Type: typ, Payload: bytes.Clone(payload)})
		bad := proto.DecodeKnown(payload, body.ProtoReflect().New().Interface())
		switch {
		case bad != nil && !proto.Malformed(err):
			t.Errorf("%s: %v is not an offense: %v", typ, err, bad)
		case err != nil && !proto.Malformed(err) && !errors.Is(err, proto.ErrBadMail) && !errors.Is(err, proto.ErrBadLetter) && !errors.Is(err, mailbox.ErrTooManyBundles):
			t.Errorf("%s: %v", typ, err)
		}
	}
}

// fuzzedObject is an object of three chunks that the fuzzed node receives.
var fuzzedObject = bodies.Manifest{Size: 3 * (1<<10 + 16), Chunk: 1 << 10}

// receiveFuzzedChunk passes a payload to an object being received, as a chunk of it: no other
// chunk than those of the object is taken.
func (l *testNode) receiveFuzzedChunk(t *testing.T, payload []byte) {
	var c proto.Chunk
	if proto.DecodeKnown(payload, &c) != nil {
		return
	}
	in, err := l.transfers.Bodies.Receive(fuzzedObject, bodies.Terms{NotAfter: time.Now().Add(time.Hour).UnixMilli()})
	if err != nil {
		t.Fatal(err)
	}
	if err := in.Put(int(c.GetIndex()), c.GetData(), c.GetPath()); !errors.Is(err, bodies.ErrChunk) {
		t.Errorf("chunk %d was taken: %v", c.GetIndex(), err)
	}
	if err := in.Close(); err != nil {
		t.Error(err)
	}
}
