package mailbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/balefire/balefire/addressbook"
	"github.com/balefire/balefire/mail"
	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// homeCheck is how often names are compared with their homes though none is known to have another
// one, and what could not be done for them is tried again.
const homeCheck = 10 * time.Second

// homes keeps what is here of the boxes of the mesh where the mesh says that their homes are.
type homes struct {
	self        proto.PeerID
	log         *slog.Logger
	audit       func(ctx context.Context, action, what string) error
	auditSystem func(ctx context.Context, action, what string) error
	event       func(kind string, p proto.PeerID, fields map[string]string)
	want        func(proto.PeerID)
	takeOver    func(ctx context.Context, name, from string) error // makes this node the home of a name whose home, from, is lost
	renamed     chan struct{}                                      // names of the mesh have other homes
	book        *addressbook.Book
	names       Names
	rules       *rules
	waits       *waits
	places      *places
	copies      *copies
	handovers   *handovers

	moving map[string]*mail.Moving // boxes that lost their home; of the goroutine of run
}

// run keeps the spools and boxes of names of the mesh where the mesh says that their homes
// are, until ctx is done: a name may have been made twice, or seized.
//
//	spool ─▶ the new home: the mails have the numbers that they had
//	box   ─▶ spool for the new home: each mail with one append; then the box is removed
func (h *homes) run(ctx context.Context, k *mail.Broker) {
	tick := time.NewTicker(homeCheck)
	defer tick.Stop()
	var asking sync.WaitGroup // questions to nodes that may not answer
	defer asking.Wait()
	for {
		for name, at := range k.BoxHomes() {
			if at.Handover.IsLeaving() {
				asking.Go(func() { h.note(ctx, name, h.handovers.follow(ctx, k, name, at.Handover)) })
				continue
			}
			if h.note(ctx, name, h.follow(ctx, k, name, at)); ctx.Err() != nil {
				return
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-h.renamed:
		case <-tick.C:
		}
	}
}

// note logs why something here of a box could not follow its home.
func (h *homes) note(ctx context.Context, name string, err error) {
	if err != nil && ctx.Err() == nil {
		h.log.Warn("what is here of a box could not follow its home yet", "box", name, "why", err)
	}
}

// follow does for one spool or box, which is not handed over, what its home asks for.
func (h *homes) follow(ctx context.Context, k *mail.Broker, name string, at mail.BoxHome) error {
	if strings.Contains(name, "@") {
		return nil // its home is in its name
	}
	if at.Handover.IsCopy() {
		return h.copies.follow(ctx, k, name, at.Handover)
	}
	home, generation, err := h.names.HomeOf(name)
	switch {
	case err != nil:
		return nil // nobody has the name now
	case at.Spool && (home != at.Home || generation != at.Generation):
		h.want(home)
		return k.Rehome(ctx, name, home, generation)
	case !at.Spool && home != h.self:
		return h.moveOut(ctx, k, name, home, generation)
	case !at.Spool && generation != at.Generation:
		return h.setGeneration(ctx, k, name, generation)
	}
	return nil
}

// setGeneration notes since which generation this node is the home of a box.
func (h *homes) setGeneration(ctx context.Context, k *mail.Broker, name string, generation uint64) error {
	h.rules.changing.Lock()
	defer h.rules.changing.Unlock()
	return reopen(ctx, k, name, generation)
}

// reopen notes since which generation this node is the home of a box, and opens one that was closed
// because it was not.
func reopen(ctx context.Context, k *mail.Broker, name string, generation uint64) error {
	settings, _, err := boxAndSubs(ctx, k, name)
	if err != nil {
		return err
	}
	settings.Closed, settings.Generation = false, generation
	return k.SetBox(ctx, settings)
}

// boxAndSubs returns the settings of a box, and what its subscriptions have. The error is
// [box.ErrNotFound], or that of a broker that has ended.
func boxAndSubs(ctx context.Context, k *mail.Broker, name string) (settings box.BoxSettings, subs []box.SubInfo, err error) {
	err = viewBox(ctx, k, name, func(s *box.State, id box.BoxID) {
		info, _ := s.Info(id)
		settings = info.Settings
		for _, sub := range info.Subs {
			u, _ := s.SubInfo(id, sub)
			subs = append(subs, u)
		}
	})
	return settings, subs, err
}

// moveOut sends what is in a box on to its home, another node, and removes the box when its dead
// letters are archived. What cannot be sent on is cancelled then, and its senders are told.
func (h *homes) moveOut(ctx context.Context, k *mail.Broker, name string, home proto.PeerID, generation uint64) error {
	h.rules.changing.Lock()
	defer h.rules.changing.Unlock()
	if is, now, err := h.names.HomeOf(name); err != nil || is != home || now != generation {
		return nil // its name was seized, or made again, meanwhile
	}
	if err := closeBox(ctx, k, name); err != nil {
		return err
	}
	m := h.moving[name]
	if m == nil {
		m = &mail.Moving{Box: name, Change: h.places.tellFirstSender}
		h.moving[name] = m
	}
	m.Home, m.Generation = home, generation
	for more := true; more; {
		var err error
		if more, err = k.MoveOut(ctx, m); err != nil {
			return err
		}
	}
	h.want(home)
	_, subs, err := boxAndSubs(ctx, k, name)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(subs, func(u box.SubInfo) bool { return u.Dead > 0 }) {
		return nil // the next call finds them archived
	}
	if err := k.RemoveBox(ctx, name); err != nil {
		return err
	}
	delete(h.moving, name)
	return h.tellMoved(ctx, k, name, home, m.Moved)
}

// tellMoved notes that a box is gone from here, and tells that what was in it is at its home.
func (h *homes) tellMoved(ctx context.Context, k *mail.Broker, name string, home proto.PeerID, mails int) error {
	h.waits.forget(name)
	if err := h.rules.read(ctx, k); err != nil {
		return err
	}
	to := h.book.NameOf(home)
	h.log.Warn("another node is the home of a box of the mesh: what was in the box here goes there", "box", name, "home", to, "mails", mails)
	h.event(wire.EventMailMoved, home, map[string]string{"box": name, "count": fmt.Sprint(mails)})
	return h.auditSystem(ctx, kindOf(name)+".move", fmt.Sprintf("%s to %s: %d mails", name, to, mails))
}

// kindOf returns the kind of a box of the mesh.
func kindOf(name string) string {
	if strings.HasPrefix(name, proto.TopicPrefix) {
		return wire.BoxTopic
	}
	return wire.BoxMailbox
}

// closeBox lets a box take and give no more mail, and its dead letters go to the archive. What a
// person set of it stays, for when its home is here again.
func closeBox(ctx context.Context, k *mail.Broker, name string) error {
	settings, _, err := boxAndSubs(ctx, k, name)
	if err != nil || settings.Closed {
		return err
	}
	settings.Closed, settings.Generation = true, 0
	return k.SetBox(ctx, settings)
}

// openSettings is settingsOf for a box that is to change, which it opens if it was closed.
func (h *homes) openSettings(ctx context.Context, k *mail.Broker, p place) (current, error) {
	now, err := settingsOf(ctx, k, p, "")
	if err != nil || !now.exists || p.title == proto.TitleQueue || !now.box.Closed {
		return now, err
	}
	if err := reopen(ctx, k, p.name, p.generation); err != nil {
		return now, failure(p, "", err)
	}
	return settingsOf(ctx, k, p, "")
}

// seize makes this node the home of a name of the mesh whose home is lost, with what only that has.
func (h *homes) seize(ctx context.Context, p place, z wire.Seize) error {
	if !z.AcceptLoss {
		return invalid("seize %s: accept_loss is not true: what only %.128s has is lost unless that node comes back with its disk: mail that waits or was read, dead letters, subscriptions and settings", p.text, z.From)
	}
	if err := h.seizeTitle(ctx, p, z); err != nil {
		return err
	}
	h.log.Warn("this node is the home of a box of the mesh that was seized: what only the home before has is lost unless it comes back", "box", p.text, "from", z.From)
	h.event(wire.EventMailSeized, h.self, map[string]string{"box": p.text, "from": z.From})
	return h.audit(ctx, p.kind+".seize", p.text+" from "+z.From+": what only that has is lost unless it comes back")
}

// seizeTitle makes this node the home of a name. No copy is served meanwhile, nor after a crash: its
// home may have gone on with the box.
func (h *homes) seizeTitle(ctx context.Context, p place, z wire.Seize) error {
	h.rules.changing.Lock()
	defer h.rules.changing.Unlock()
	after := context.WithoutCancel(ctx)
	restore, err := h.copies.doubt(after, p.name)
	if err != nil {
		return err
	}
	if err := h.takeOver(ctx, p.name, z.From); err != nil {
		return errors.Join(err, restore())
	}
	return h.copies.seized(after, p.name)
}

// serveSelf takes the mail of the spools whose home this node has become, as if another node sent
// it, until ctx is done.
func (h *homes) serveSelf(ctx context.Context, k *mail.Broker) error {
	lane, err := k.Lane(ctx, h.self)
	for err == nil {
		err = h.sendSelf(ctx, k, lane)
	}
	if err = ignoreStop(ctx, err); ctx.Err() != nil {
		return nil
	}
	return err
}

// sendSelf takes the next bundle of serveSelf.
func (h *homes) sendSelf(ctx context.Context, k *mail.Broker, lane *mail.Lane) error {
	m, err := lane.Next(ctx)
	if err != nil {
		return err
	}
	a, err := k.Arrive(h.self, m, nil)
	if err != nil {
		return err
	}
	answer, err := a.Wait(ctx)
	if err != nil {
		return err
	}
	return lane.Answer(ctx, answer)
}
