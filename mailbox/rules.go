package mailbox

import (
	"context"
	"encoding/json"
	"sync"
	"sync/atomic"

	"github.com/balefire/balefire/inbox"
	"github.com/balefire/balefire/mail"
	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// rules are the settings of the boxes that decide who may send to them and read them, and what
// handles their mail, as they were read last.
type rules struct {
	self    proto.PeerID
	members inbox.Members
	changed chan struct{} // they were read

	changing sync.Mutex                       // held while the settings of a box are read and changed, and while a dead letter is sent again and marked
	all      atomic.Pointer[map[string]notes] // by the name of a box in the ledger; nil: not read yet
}

// get returns the rules by the name of a box in the ledger; nil: they were not read yet.
func (r *rules) get() map[string]notes {
	if all := r.all.Load(); all != nil {
		return *all
	}
	return nil
}

// known is get, and reads them if that was not done yet.
func (r *rules) known(ctx context.Context, k *mail.Broker) (map[string]notes, error) {
	if all := r.get(); all != nil {
		return all, nil
	}
	if err := r.read(ctx, k); err != nil {
		return nil, err
	}
	return r.get(), nil
}

// read reads who may send to the boxes.
func (r *rules) read(ctx context.Context, k *mail.Broker) error {
	rules := map[string]notes{}
	err := k.View(ctx, func(s *box.State) {
		before := r.get()
		for _, id := range s.Boxes() {
			settings, ok := s.Settings(id)
			if !ok || settings.Kind == box.Spool || settings.Handover.IsCopy() {
				continue
			}
			n, ok := before[settings.Name]
			if !ok || n.text != settings.Notes {
				n = notesOf(settings)
			}
			n.to = targets(s, id, settings.Kind)
			rules[settings.Name] = n
		}
		r.all.Store(&rules) // here: what is read later is stored later
	})
	signal(r.changed)
	return err
}

// targets returns into which boxes subscriptions of a topic deliver.
func targets(s *box.State, id box.BoxID, kind box.Kind) map[string]string {
	if kind != box.Topic {
		return nil
	}
	to := map[string]string{}
	info, _ := s.Info(id)
	for _, sub := range info.Subs {
		if u, _ := s.SubInfo(id, sub); u.Settings.To != "" {
			to[u.Settings.Name] = u.Settings.To
		}
	}
	return to
}

// allows reports whether the handler of a box may be started now for mail of a node, zero for
// this one (I17). Boxes take more than that: bounces, and what came when another list counted.
func (r *rules) allows(name string, from proto.PeerID) bool {
	return from.IsZero() || from == r.self || inbox.Allowed(r.get()[name].Allow, from, r.members)
}

// notes are what this package keeps with the settings of a box.
type notes struct {
	Allow     []string          `json:"allow,omitempty"`
	AllowRead []string          `json:"allow_read,omitempty"`
	Handler   *wire.MailHandler `json:"handler,omitempty"`
	Request   string            `json:"request,omitempty"` // of a reply box: the id of its only mail with that reply_to
	Given     string            `json:"given,omitempty"`   // and the handle of the reply that its requester was given

	text string            // in which they are kept
	to   map[string]string // of a topic: the boxes into which its subscriptions deliver
}

func (n notes) encode() string {
	if len(n.Allow)+len(n.AllowRead)+len(n.Request)+len(n.Given) == 0 && n.Handler == nil {
		return ""
	}
	text, err := json.Marshal(n)
	if err != nil {
		panic(err) // strings and numbers
	}
	return string(text)
}

// notesOf returns the notes of a box. Bad ones allow nothing.
func notesOf(s box.BoxSettings) (n notes) {
	if s.Notes != "" && json.Unmarshal([]byte(s.Notes), &n) != nil {
		n = notes{}
	}
	n.text = s.Notes
	return n
}
