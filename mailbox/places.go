package mailbox

import (
	"fmt"
	"strings"

	"github.com/balefire/balefire/addressbook"
	"github.com/balefire/balefire/mail"
	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// A place is a box as its home names it, and where that is.
type place struct {
	name string // in the ledger
	kind string // one of those of package wire
	home proto.PeerID
	text string // for people

	title      proto.TitleKind // of a name of the mesh; [proto.TitleQueue]: it is none
	generation uint64          // of its home
}

// spool reports whether it is the spool of a box on another node.
func (p place) spool() bool { return strings.HasPrefix(p.name, box.SpoolPrefix) }

// path names a subscription of the box.
func (p place) path(sub string) string {
	if sub == "" {
		return p.text
	}
	return p.text + "/" + sub
}

// checkSub checks whether a subscription is named, as that of a topic must be.
func (p place) checkSub(sub string) error {
	switch {
	case p.kind == wire.BoxTopic && sub == "":
		return invalid("%s is a topic: name one of its subscriptions", p.text)
	case p.kind == wire.BoxMailbox && sub != "":
		return invalid("%s is a mailbox: it has no subscription %.64q", p.text, sub)
	case sub != "" && !proto.ValidQueue(sub):
		return fmt.Errorf("%w: subscription %.64q: use 1-63 of a-z 0-9 . _ -", wire.ErrInvalid, sub)
	}
	return nil
}

// places finds the boxes that names mean, and where they are. It keeps nothing.
type places struct {
	self   proto.PeerID
	book   *addressbook.Book
	names  Names
	ledger *ledgerOpener
}

// find finds the box that a name means, whether it exists or not. A word alone is a mailbox
// of this node.
func (s *places) find(name string) (place, error) {
	if name != "" && !strings.Contains(name, ":") {
		name = proto.AgentPrefix + name
	}
	return s.findTarget(name)
}

// findTarget is find for a target, where a word alone is a node.
func (s *places) findTarget(target string) (place, error) {
	t, err := proto.ParseTarget(target)
	switch {
	case err == nil:
	case strings.Contains(target, "@") && !strings.Contains(target, ":"):
		return place{}, invalid("target %.80q: a mailbox is agent:NAME@NODE, with agent: before its name", target)
	default:
		return place{}, fmt.Errorf("%w: %w", wire.ErrInvalid, err)
	}
	switch t.Kind {
	case proto.TargetTopic:
		return s.named(t), nil
	case proto.TargetAgent:
		if t.Node == "" {
			return s.unqualified(t), nil
		}
		p, err := s.book.Find(t.Node)
		if err != nil {
			return place{}, err
		}
		return s.mailbox(t.Name, p.Peer), nil
	}
	return place{}, fmt.Errorf("%w: %.80q has no mail: use agent:NAME@NODE or topic:NAME", wire.ErrInvalid, target)
}

// unqualified returns the mailbox of an agent without a node: that of this node, or if there
// is none that of the mesh, or if neither is known the one that this node may get.
func (s *places) unqualified(t proto.Target) place {
	own := s.mailbox(t.Name, s.self)
	if k := s.ledger.broker(); k != nil && k.Has(own.name) {
		return own
	}
	if p := s.named(t); p.generation > 0 {
		return p
	}
	return own
}

// named returns a box of the mesh. If nobody is known to be its home, this node may become
// it.
func (s *places) named(t proto.Target) place {
	p := place{name: t.String(), kind: wire.BoxMailbox, home: s.self, text: t.String(), title: proto.TitleMailbox}
	if t.Kind == proto.TargetTopic {
		p.kind, p.title = wire.BoxTopic, proto.TitleTopic
	}
	if home, generation, err := s.names.HomeOf(p.name); err == nil {
		p.home, p.generation = home, generation
	}
	return p
}

// mailbox returns the mailbox of an agent.
func (s *places) mailbox(name string, home proto.PeerID) place {
	t := proto.Target{Kind: proto.TargetAgent, Name: name, Node: home.String()}
	p := place{name: t.String(), kind: wire.BoxMailbox, home: home}
	t.Node = s.book.NameOf(home)
	p.text = t.String()
	return p
}

// isReplyBox reports whether the name of a box in the ledger is that of a box for replies.
func (s *places) isReplyBox(name string) bool {
	return strings.HasSuffix(name, "@"+s.self.String()) && wire.IsReplyBox(name)
}

// here is find for boxes of this node. It returns the broker, which is nil if the node has
// no box.
func (s *places) here(name string) (place, *mail.Broker, error) {
	p, err := s.find(name)
	if err == nil && p.home != s.self {
		err = s.elsewhere(p)
	}
	return p, s.ledger.broker(), err
}

func (s *places) elsewhere(p place) error {
	return fmt.Errorf("%w: %s is on another node, %s: do this there", wire.ErrRefused, p.text, s.book.NameOf(p.home))
}

// existing is here for boxes that exist, if the node has any.
func (s *places) existing(name string) (place, *mail.Broker, error) {
	p, k, err := s.here(name)
	if err == nil && k == nil {
		err = noBox(p, "")
	}
	return p, k, err
}

// subscribed is existing for what is done to a subscription, which has a name if and only if
// the box is a topic.
func (s *places) subscribed(name, sub string) (place, *mail.Broker, error) {
	p, k, err := s.existing(name)
	if err == nil {
		err = p.checkSub(sub)
	}
	return p, k, err
}

// topic returns a topic of this node.
func (s *places) topic(name string) (place, *mail.Broker, error) {
	return s.existing(proto.TopicPrefix + trimPrefix(name, proto.TopicPrefix))
}

func trimPrefix(s, prefix string) string {
	if len(s) > len(prefix) && s[:len(prefix)] == prefix {
		return s[len(prefix):]
	}
	return s
}

// text returns the name of a box in the ledger, or in a letter, with the name that its node
// has here.
func (s *places) text(name string) string {
	if !strings.Contains(name, "@") {
		return name // of the mesh, even if this node has a mailbox of its own with that name
	}
	if p, err := s.findTarget(name); err == nil {
		return p.text
	}
	return name
}

// boxText returns the name of a box in the ledger, or of that of a spool, for people.
func (s *places) boxText(name string) string {
	return s.text(strings.TrimPrefix(name, box.SpoolPrefix))
}

// fullAddress returns an address as every node understands it: with the id of the node.
func (s *places) fullAddress(field, name string) ([]byte, error) {
	if name == "" {
		return nil, nil
	}
	p, err := s.findTarget(name)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", field, err)
	}
	return []byte(p.name), nil
}

// awayFrom returns the home of a box of the mesh that is another node; away is false for every
// other name.
func (s *places) awayFrom(name string) (home proto.PeerID, generation uint64, away bool) {
	if strings.Contains(name, "@") {
		return home, 0, false
	}
	home, generation, err := s.names.HomeOf(name)
	return home, generation, err == nil && home != s.self
}

// isHome reports whether a peer is the home of a name since a generation, as far as is known.
func (s *places) isHome(name string, p proto.PeerID, generation uint64) bool {
	home, since, err := s.names.HomeOf(name)
	return err == nil && home == p && since == generation
}

// gone reports that mail for a box can never be delivered: its home was revoked, and no other
// node has the name.
func (s *places) gone(name string, home proto.PeerID) bool {
	if !s.book.Revoked(home) {
		return false
	}
	now, _, err := s.names.HomeOf(name) // a full name has none
	return err != nil || now == home || s.book.Revoked(now)
}

// tellFirstSender lets the end of a mail that is sent on be told to its first sender.
func (s *places) tellFirstSender(from proto.PeerID, l *proto.Letter) {
	if sender := string(l.Sender); len(l.BounceTo)+len(l.ReplyTo) == 0 && !from.IsZero() && proto.ValidQueue(sender) {
		l.BounceTo = []byte(s.mailbox(sender, from).name)
	}
	if !from.IsZero() {
		l.Dedupe = nil // a key of its node
	}
}
