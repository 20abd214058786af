package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/outbox"
	"github.com/balefire/balefire/proto"
)

// Intervals of lookups.
const (
	lookupEvery  = 10 * time.Second // between two checks for targets to ask
	lookupRepeat = time.Hour        // between two lookups at a target that did not restart
)

// lookups asks targets which of the tasks that they accepted they still know: after a
// target has restarted, because its store may have been restored or have lost a
// record, and once an hour.
type lookups struct {
	node     *Node
	incoming chan lookupMessage // LOOKUP and LOOKUP_REPLY
	asked    map[proto.PeerID]lookupState
}

type lookupMessage struct {
	from proto.PeerID
	msg  *proto.Message
}

// A lookupState records when a target was last asked about everything, and in which
// boot of it.
type lookupState struct {
	boot uint64
	at   time.Duration
	left []proto.TaskID // still to be asked about
}

func newLookups(n *Node) *lookups {
	return &lookups{node: n, incoming: make(chan lookupMessage, 64), asked: map[proto.PeerID]lookupState{}}
}

// receive takes a message of a ctl stream. One that does not fit is dropped: it is
// asked again.
func (l *lookups) receive(from proto.PeerID, m *proto.Message) {
	select {
	case l.incoming <- lookupMessage{from, m}:
	default:
	}
}

func (l *lookups) run(ctx context.Context) error {
	tick := time.NewTicker(lookupEvery)
	defer tick.Stop()
	for {
		var err error
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			err = l.askAll()
		case h := <-l.incoming:
			if err = l.handle(ctx, h); malformed(err) {
				l.node.net.Offend(h.from, err)
			}
		}
		if err != nil && ctx.Err() == nil {
			l.node.log.Warn("a lookup of accepted tasks failed; will retry", "err", err)
		}
	}
}

// askAll asks each connected target that is due, with one message per call.
func (l *lookups) askAll() (err error) {
	now := l.node.cfg.Clock.Boot()
	for _, p := range l.node.net.ConnectedPeers() {
		known, ok := l.node.book.Get(p)
		if !ok {
			continue
		}
		a, before := l.asked[p]
		if !before || a.boot != known.Boot || now-a.at >= lookupRepeat {
			ids, lerr := l.node.outbox.Awaited(p)
			err = errors.Join(err, lerr)
			a = lookupState{boot: known.Boot, at: now, left: ids}
		}
		n := min(len(a.left), proto.MaxLookup)
		if n > 0 {
			payload, eerr := proto.Encode(nil, &proto.Lookup{Tasks: idBytes(a.left[:n])})
			err = errors.Join(err, eerr)
			if eerr == nil && l.send(p, proto.TypeLookup, payload) == nil {
				a.left = a.left[n:]
			}
		}
		l.asked[p] = a
	}
	return err
}

func idBytes(ids []proto.TaskID) [][]byte {
	out := make([][]byte, len(ids))
	for i := range ids {
		out[i] = slices.Clone(ids[i][:])
	}
	return out
}

func (l *lookups) send(to proto.PeerID, t proto.MessageType, payload []byte) error {
	return l.node.net.SendCtl(to, &proto.Message{Type: t, Payload: payload, Timestamp: l.node.cfg.Clock.Now().UnixNano()})
}

// handle answers a lookup, or acts on a reply.
func (l *lookups) handle(ctx context.Context, h lookupMessage) error {
	if h.msg.GetType() == proto.TypeLookup {
		q := new(proto.Lookup)
		if err := proto.DecodeKnown(h.msg.GetPayload(), q); err != nil {
			return err
		}
		unknown, err := l.node.unknownTasks(q.GetTasks())
		if err != nil || len(unknown) == 0 {
			return err
		}
		payload, err := proto.Encode(nil, &proto.LookupReply{Unknown: unknown})
		if err == nil {
			_ = l.send(h.from, proto.TypeLookupReply, payload) // if it is lost, the peer asks again
		}
		return err
	}
	r := new(proto.LookupReply)
	if err := proto.DecodeKnown(h.msg.GetPayload(), r); err != nil {
		return err
	}
	var failed error
	for _, b := range r.GetUnknown()[:min(len(r.GetUnknown()), proto.MaxLookup)] {
		id, err := proto.TaskIDFrom(b)
		if err != nil {
			return err
		}
		counted, err := l.node.outbox.HandleUnknown(ctx, h.from, id)
		failed = errors.Join(failed, err)
		if counted {
			l.node.addEvent("task.forgotten", h.from, fmt.Sprintf("the target of task %s no longer knows it", id), map[string]string{"task": id.String()})
		}
	}
	return failed
}

// unknownTasks returns the given tasks that this node has neither in custody nor a
// result of.
func (n *Node) unknownTasks(tasks [][]byte) (unknown [][]byte, err error) {
	for _, b := range tasks[:min(len(tasks), proto.MaxLookup)] {
		id, err := proto.TaskIDFrom(b)
		if err != nil {
			return nil, err
		}
		if n.inbox.Knows(id) {
			continue
		}
		if _, err := n.outbox.Result(id); errors.Is(err, outbox.ErrNotFound) {
			unknown = append(unknown, b)
		} else if err != nil {
			return nil, err
		}
	}
	return unknown, nil
}

// reseal seals a task of this home again, with the sequence and the times of its
// record. A body that is an object stays as it is.
func (n *Node) reseal(st *proto.Stored) (d *outbox.Draft, done func(), err error) {
	h, err := proto.ParseHeader(st.GetEnvelope().GetHeader())
	if err != nil {
		return nil, nil, err
	}
	to, ok := n.book.KeyRecord(h.Target)
	if !ok {
		return nil, nil, fmt.Errorf("the sealing key of %s is not known", h.Target.Short())
	}
	rec, done := st.GetRecord(), func() {}
	env := &proto.Envelope{Header: st.Envelope.Header, Body: st.Envelope.Body}
	d = &outbox.Draft{Record: &proto.Record{BodyBlob: rec.GetBodyBlob()}}
	if d.Record.BodyBlob != "" && !h.Streamed() {
		if env.Body, err = n.storage.Blobs.Get(d.Record.BodyBlob, proto.MaxSealed); err != nil {
			return nil, nil, err
		}
	}
	plain, err := identity.OpenWith([32]byte(st.GetKey()), env, &h)
	if err != nil {
		return nil, nil, err
	}
	h.Seq, h.Created, h.NotAfter = rec.Seq(), rec.GetCreatedMs(), rec.GetNotAfterMs()
	d.Envelope, d.Key, err = n.sealer.Seal(&h, to, plain)
	if err != nil {
		return nil, nil, err
	}
	d.Header, d.Leaf = h, identity.EnvelopeLeaf(d.Envelope.Header, d.Envelope.Body, h.What)
	if d.Record.BodyBlob == "" || h.Streamed() {
		return d, done, nil
	}
	old := d.Record.BodyBlob // it stays until the record names the new one
	if d.Record.BodyBlob, err = n.storage.Blobs.Put(d.Envelope.Body, false); err != nil {
		return nil, nil, err
	}
	done = func() {
		n.storage.Blobs.Release(d.Record.BodyBlob)
		n.storage.Blobs.Drop(old)
	}
	d.Envelope.Body = nil
	return d, done, nil
}
