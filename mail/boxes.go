package mail

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/proto"
)

// A RefusedError says why a box or a subscription was not changed.
type RefusedError struct {
	Code   proto.Code
	Detail string
}

func (e *RefusedError) Error() string { return "mail: " + e.Detail }

// change makes records on the goroutine of Run and waits until the last one is applied.
// Changes are made one after the other: the number of a new box is that of the applied
// state.
func (b *Broker) change(ctx context.Context, records func(now box.Now) error) (box.Result, error) {
	b.changes.Lock()
	defer b.changes.Unlock()
	var r box.Result
	var err error
	done := make(chan struct{})
	if e := b.do(func(now box.Now) {
		b.propose(nil)
		if err = records(now); err != nil || len(b.out.Records) == 0 {
			close(done)
			return
		}
		b.propose(func(result box.Result, e error) {
			r, err = result, e
			if e == nil && result.Code != proto.CodeOK {
				err = &RefusedError{result.Code, result.Detail}
			}
			b.publish()
			close(done)
		})
	}); e != nil {
		return r, e
	}
	select {
	case <-done:
		return r, err
	case <-b.ended:
		return r, ErrUnknown
	}
}

// A knownBox is what callers know of a box.
type knownBox struct {
	id         box.BoxID
	spool      bool
	home       proto.PeerID // of a spool
	generation uint64
	handover   box.Handover
}

// publish shows callers, and the lanes, the boxes that there are, and the peers that mail came
// from.
func (b *Broker) publish() {
	peers := make([]proto.PeerID, b.state.NewOrigin()-1)
	for i := range peers {
		peers[i], _ = b.state.Peer(uint32(i) + 1)
	}
	b.peers.Store(&peers)
	boxes := make(map[string]knownBox)
	for _, id := range b.state.Boxes() {
		s, _ := b.state.Settings(id)
		boxes[s.Name] = knownBox{id, s.Kind == box.Spool, s.Home, s.Generation, s.Handover}
	}
	b.boxes.Store(&boxes)
	b.syncSpools(boxes)
}

// Has reports whether there is a box with a name here.
func (b *Broker) Has(name string) bool {
	_, ok := (*b.boxes.Load())[name]
	return ok
}

func (b *Broker) find(name, sub string) (id box.BoxID, subID box.SubID, err error) {
	id, ok := b.state.Find(name)
	if ok {
		subID, ok = b.state.FindSub(id, sub)
	}
	if !ok {
		return 0, 0, fmt.Errorf("%w: %s", box.ErrNotFound, path(name, sub))
	}
	return id, subID, nil
}

// SetBox makes a box, or changes its settings. The name, the kind and what a lane is never
// change. A spool is made by [Broker.SetHome].
func (b *Broker) SetBox(ctx context.Context, settings box.BoxSettings) error {
	if err := settings.Check(); err != nil {
		return err
	}
	if settings.Kind == box.Spool {
		return &RefusedError{proto.CodeBadForm, settings.Name + " is a spool: it has no settings of its own"}
	}
	_, err := b.change(ctx, func(box.Now) error {
		if id, ok := b.state.Find(settings.Name); ok {
			b.out.Records = append(b.out.Records, box.EncodeBox(id, &settings))
		} else {
			b.out.Records = append(b.out.Records, b.state.EncodeNewBox(b.state.NewBox(), &settings))
		}
		return nil
	})
	return err
}

// SetLimits sets the limits of the ledger, if they differ from those that it has. What is there
// stays, whatever they are.
func (b *Broker) SetLimits(ctx context.Context, l box.Limits) error {
	_, err := b.change(ctx, func(box.Now) error {
		if b.state.Limits() != l {
			b.out.Records = append(b.out.Records, box.EncodeLimits(l))
		}
		return nil
	})
	return err
}

// RemoveBox removes a box. What waits in it ends as CANCELLED, and its senders are told. A
// spool must be empty.
func (b *Broker) RemoveBox(ctx context.Context, name string) error {
	return b.endBox(ctx, name, func(id box.BoxID) []byte { return box.EncodeRemoveBox(id) })
}

// endBox ends a box by a record.
func (b *Broker) endBox(ctx context.Context, name string, record func(box.BoxID) []byte) error {
	_, err := b.change(ctx, func(box.Now) error {
		id, ok := b.state.Find(name)
		if !ok {
			return fmt.Errorf("%w: %s", box.ErrNotFound, name)
		}
		b.out.Records = append(b.out.Records, record(id))
		return nil
	})
	return err
}

// SetSub makes a subscription of a topic, which begins at from, or changes the settings of
// a subscription. That of a mailbox has the name "".
func (b *Broker) SetSub(ctx context.Context, name string, settings box.SubSettings, from box.Start) error {
	if err := settings.Check(); err != nil {
		return err
	}
	_, err := b.change(ctx, func(box.Now) error {
		id, sub, err := b.find(name, settings.Name)
		if errors.Is(err, box.ErrNotFound) {
			var ok bool
			if id, ok = b.state.Find(name); !ok {
				return err
			}
			if sub = b.state.NewSub(id); sub == 0 {
				return &RefusedError{proto.CodeBadForm, name + " is a mailbox: it has no subscriptions"}
			}
		}
		b.out.Records = append(b.out.Records, box.EncodeSub(id, sub, &settings, from))
		return nil
	})
	return err
}

// changeSub makes one record about a subscription.
func (b *Broker) changeSub(ctx context.Context, name, sub string, record func(box.BoxID, box.SubID) []byte) error {
	_, err := b.change(ctx, func(box.Now) error {
		id, subID, err := b.find(name, sub)
		if err == nil {
			b.out.Records = append(b.out.Records, record(id, subID))
		}
		return err
	})
	return err
}

// RemoveSub removes a subscription of a topic.
func (b *Broker) RemoveSub(ctx context.Context, name, sub string) error {
	return b.changeSub(ctx, name, sub, func(id box.BoxID, subID box.SubID) []byte { return box.EncodeRemoveSub(id, subID) })
}

// Seek moves a subscription of a topic.
func (b *Broker) Seek(ctx context.Context, name, sub string, to box.Start) error {
	return b.changeSub(ctx, name, sub, func(id box.BoxID, subID box.SubID) []byte { return box.EncodeSeek(id, subID, to) })
}

// Unblock lets the lane of a key go on that a dead letter blocks. The lane of another node
// is meant if the box separates them and origin is not zero.
func (b *Broker) Unblock(ctx context.Context, name, sub string, origin proto.PeerID, key string) error {
	return b.changeSub(ctx, name, sub, func(id box.BoxID, subID box.SubID) []byte {
		return box.EncodeUnblock(id, subID, b.state.Origin(origin), []byte(key))
	})
}

// Redriven notes that dead letters were sent again, as new mails.
func (b *Broker) Redriven(ctx context.Context, name, sub string, seqs []uint64) error {
	return b.changeSub(ctx, name, sub, func(id box.BoxID, subID box.SubID) []byte { return box.EncodeRedriven(id, subID, seqs) })
}

// Purge ends as CANCELLED what waits in a box, the oldest first; leased mail stays, and in a
// spool what may have been sent. It returns how many. The error is a [*RefusedError] if the box is on
// its way to another home.
func (b *Broker) Purge(ctx context.Context, name string, limit int, reason string) (n int, err error) {
	if (*b.boxes.Load())[name].spool {
		return b.cancelUnsent(ctx, strings.TrimPrefix(name, box.SpoolPrefix), limit, reason)
	}
	_, err = b.change(ctx, func(now box.Now) error {
		id, ok := b.state.Find(name)
		if !ok {
			return fmt.Errorf("%w: %s", box.ErrNotFound, name)
		}
		if s, _ := b.state.Settings(id); s.Handover.IsLeaving() {
			return &RefusedError{proto.CodeBusy, "the box is on its way to another home"}
		}
		n = b.state.Purge(now, id, limit, reason, &b.out)
		return nil
	})
	return n, err
}

// View calls f with the state, which f must neither change nor keep, between two steps of
// the broker: nothing is served meanwhile.
func (b *Broker) View(ctx context.Context, f func(*box.State)) error {
	return b.call(ctx, func(box.Now) { f(b.state) })
}
