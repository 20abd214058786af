package notice

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/balefire/balefire/outbox"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// Intervals of lookups.
const (
	lookupEvery  = 10 * time.Second // between two checks for targets to ask
	lookupRepeat = time.Hour        // between two lookups at a target that did not restart
	lookupStale  = 10 * time.Minute // after a report about a task counted, another one may answer an earlier lookup
)

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

// Lookup takes a LOOKUP or LOOKUP_REPLY of a ctl stream. One that does not fit is dropped: it is
// asked again.
func (n *Notices) Lookup(from proto.PeerID, m *proto.Message) {
	select {
	case n.lookups <- lookupMessage{from, m}:
	default:
	}
}

// runLookups asks targets which of the tasks that they accepted they still know: after a
// target has restarted, because its store may have been restored or have lost a
// record, and once an hour.
func (n *Notices) runLookups(ctx context.Context) {
	tick := time.NewTicker(lookupEvery)
	defer tick.Stop()
	for {
		var err error
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			err = n.askAll()
		case h := <-n.lookups:
			if err = n.HandleLookup(ctx, h.from, h.msg); proto.Malformed(err) {
				n.net.Offend(h.from, err)
			}
		}
		if err != nil && ctx.Err() == nil {
			n.Logger.Warn("a lookup of accepted tasks failed; will retry", "err", err)
		}
	}
}

// askAll asks each connected target that is due, with one message per call.
func (n *Notices) askAll() (err error) {
	n.dropForgotten()
	now := n.Clock.Boot()
	for _, p := range n.net.ConnectedPeers() {
		known, ok := n.Book.Get(p)
		if !ok {
			continue
		}
		a, before := n.asked[p]
		if !before || a.boot != known.Boot || now-a.at >= lookupRepeat {
			ids, lerr := n.Outbox.Awaited(p)
			err = errors.Join(err, lerr)
			a = lookupState{boot: known.Boot, at: now, left: ids}
		}
		if ask := min(len(a.left), proto.MaxLookup); ask > 0 && n.send(p, proto.TypeLookup, &proto.Lookup{Tasks: idBytes(a.left[:ask])}) {
			a.left = a.left[ask:]
		}
		n.asked[p] = a
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

// HandleLookup answers a lookup, or acts on a reply.
func (n *Notices) HandleLookup(ctx context.Context, from proto.PeerID, m *proto.Message) error {
	if m.GetType() == proto.TypeLookup {
		q := new(proto.Lookup)
		if err := proto.DecodeKnown(m.GetPayload(), q); err != nil {
			return err
		}
		unknown, err := n.unknown(q.GetTasks())
		if err != nil || len(unknown) == 0 {
			return err
		}
		n.send(from, proto.TypeLookupReply, &proto.LookupReply{Unknown: unknown}) // if it is lost, the peer asks again
		return nil
	}
	r := new(proto.LookupReply)
	if err := proto.DecodeKnown(m.GetPayload(), r); err != nil {
		return err
	}
	var failed error
	for _, b := range r.GetUnknown()[:min(len(r.GetUnknown()), proto.MaxLookup)] {
		id, err := proto.TaskIDFrom(b)
		if err != nil {
			return err
		}
		if n.forgottenLately(id) { // the task was sent again since, and may run: if not, that is found at the next lookup
			continue
		}
		counted, err := n.Outbox.HandleUnknown(ctx, from, id)
		failed = errors.Join(failed, err)
		if counted {
			n.mu.Lock()
			n.forgotten[id] = n.Clock.Boot()
			n.mu.Unlock()
			n.Event(wire.EventTaskForgotten, from, map[string]string{"task": id.String()})
		}
	}
	return failed
}

// forgottenLately reports whether a report that the target of a task does not know it counted
// lately.
func (n *Notices) forgottenLately(id proto.TaskID) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	at, ok := n.forgotten[id]
	return ok && n.Clock.Boot()-at < lookupStale
}

// dropForgotten drops what forgottenLately no longer reports.
func (n *Notices) dropForgotten() {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := n.Clock.Boot()
	maps.DeleteFunc(n.forgotten, func(_ proto.TaskID, at time.Duration) bool { return now-at >= lookupStale })
}

// unknown returns the given tasks that this node has neither in custody nor a
// result of.
func (n *Notices) unknown(tasks [][]byte) (unknown [][]byte, err error) {
	for _, b := range tasks[:min(len(tasks), proto.MaxLookup)] {
		id, err := proto.TaskIDFrom(b)
		if err != nil {
			return nil, err
		}
		if n.Inbox.Knows(id) {
			continue
		}
		if _, err := n.Outbox.Result(id); errors.Is(err, outbox.ErrNotFound) {
			unknown = append(unknown, b)
		} else if err != nil {
			return nil, err
		}
	}
	return unknown, nil
}
