package mail

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/mail/chain"
	"github.com/balefire/balefire/proto"
)

// incoming is what of the mail from other nodes was given to the log and has not come back, and how
// much came with boxes.
type incoming struct {
	origins  map[proto.PeerID]uint32 // indexes of new origins
	last     uint32                  // of those indexes
	arrivals chain.Arrivals
	bodies   map[arrivingBody]int   // outside of the letters of mails that the disk has not written yet
	parts    map[box.BoxID]int64    // bytes of what copies of this start have besides their mails
	unknown  map[box.BoxID]int      // bytes of numbers of chains that copies of this start have of nodes that were never a member, as far as is known
	notes    map[proto.PeerID]int64 // bytes of the numbers of chains of boxes that came, by the homes that they came from
}

// An arrivingBody is the body of a mail that arrives, outside of its letter.
type arrivingBody struct {
	name   [32]byte // all zero: the letter has it
	origin proto.PeerID
}

// keepBody notes that a mail with this body is being written.
func (in *incoming) keepBody(o arrivingBody) {
	if o.name != [32]byte{} {
		in.bodies[o]++
	}
}

// wrote ends keepBody: if the mail was taken, the state has the body.
func (in *incoming) wrote(o arrivingBody) {
	if in.bodies[o]--; in.bodies[o] <= 0 {
		delete(in.bodies, o)
	}
}

// Admit decides whether a box takes a letter from the node that sends it: CodeOK, a code that
// ends the mail (see [proto.Code.Ends]), or one that stops its chain for now, each with a
// detail for a person. CodeNeedBody is the last it says: the mail lacks nothing but its body.
type Admit func(box string, l *proto.Letter) (proto.Code, string)

// Arrive takes the mails of a bundle into their box, as far as the rule of their chain, the box
// and admit allow. [Arrival.Wait] returns the answer for the node that sent it when all that the
// answer says is on disk, signed if its sender wants receipts. A
// nil admit takes all. Bundles that one goroutine hands over are taken in that order, also while
// those before them are being written.
//
// A bundle that no node sends writes nothing: the error wraps [proto.ErrBadMail] or
// [proto.ErrBadLetter]. After ErrUnknown, or ErrStopped, there is no answer: it is sent again.
func (b *Broker) Arrive(from proto.PeerID, m *proto.Bundle, admit Admit) (*Arrival, error) {
	a, err := newArrival(from, m, admit)
	if err != nil {
		return nil, fmt.Errorf("mail: bundle %d of %s: %w", m.GetNumber(), from, err)
	}
	a.b, a.ended = b, b.ended
	return a, b.do(func(now box.Now) { b.arrive(now, a) })
}

// Refuse is [Broker.Arrive] at a node that never had a box: the answer is CodeNoHandler.
func Refuse(from proto.PeerID, m *proto.Bundle, now time.Time) (*Arrival, error) {
	return refuse(from, m, now, noSuchBox(m.GetBox()))
}

// Redirect is [Refuse] for a box that has its home on another node: the answer is CodeMoved.
func Redirect(from proto.PeerID, m *proto.Bundle, now time.Time, home proto.PeerID, generation uint64) (*Arrival, error) {
	return refuse(from, m, now, movedTo(home, generation))
}

func refuse(from proto.PeerID, m *proto.Bundle, now time.Time, with *proto.Bundled) (*Arrival, error) {
	a, err := newArrival(from, m, nil)
	if err != nil {
		return nil, fmt.Errorf("mail: bundle %d of %s: %w", m.GetNumber(), from, err)
	}
	a.refuse(now, with)
	return a, nil
}

// Redirect is [Broker.Arrive] for a box that has its home on another node. What the box had when
// it was here is answered as then, the rest with CodeMoved.
func (b *Broker) Redirect(from proto.PeerID, m *proto.Bundle, home proto.PeerID, generation uint64) (*Arrival, error) {
	a, err := newArrival(from, m, nil)
	if err != nil {
		return nil, fmt.Errorf("mail: bundle %d of %s: %w", m.GetNumber(), from, err)
	}
	a.b, a.ended = b, b.ended
	return a, b.do(func(box.Now) { a.refuse(b.cfg.Clock.Now(), a.known(movedTo(home, generation))) })
}

func movedTo(home proto.PeerID, generation uint64) *proto.Bundled {
	return &proto.Bundled{Code: proto.CodeMoved, Detail: "its home is another node", Home: home[:], Generation: generation}
}

func noSuchBox(name string) *proto.Bundled {
	return &proto.Bundled{Code: proto.CodeNoHandler, Detail: fmt.Sprintf("no box %q", name)}
}

// An Arrival is a bundle on its way into its box.
type Arrival struct {
	b          *Broker
	ended      <-chan struct{} // that of b
	number     uint64
	chain      box.Chain
	generation uint64 // of this node as the home, as its sender knows it
	mails      []arrivingMail
	size       int // of the letters
	left       int // records that have not come back

	answer *proto.Bundled
	err    error
	done   chan struct{} // closed with answer or err

	stated []proto.MailStatement // of those that were taken: they are signed with the answer
	sign   sync.Once
}

// An arrivingMail is one mail of a bundle. Without a code it is to be taken, or was.
type arrivingMail struct {
	item   box.Numbered
	letter []byte
	body   arrivingBody
	digest *[32]byte  // of the letter, if its sender wants a receipt
	code   proto.Code // why it is not
	detail string
}

// newArrival checks a bundle, and asks admit about each of its letters.
func newArrival(from proto.PeerID, m *proto.Bundle, admit Admit) (*Arrival, error) {
	if err := m.Check(); err != nil && !errors.Is(err, proto.ErrNewLetter) {
		return nil, err
	}
	items, err := chain.Unpack(m.Prev(), runsOf(m))
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", proto.ErrBadMail, err)
	case from.IsZero() || strings.HasPrefix(m.GetBox(), box.SpoolPrefix):
		return nil, fmt.Errorf("%w: for %.64q", proto.ErrBadMail, m.GetBox())
	}
	a := &Arrival{
		number: m.GetNumber(), chain: box.Chain{Origin: from, Box: m.GetBox(), Class: m.GetChain()}, generation: m.GetGeneration(),
		mails: make([]arrivingMail, len(items)), size: len(m.GetLetters()), done: make(chan struct{}),
	}
	rest := m.GetLetters()
	var l proto.Letter // one for all: admit makes it escape
	for i, it := range items {
		x := &a.mails[i]
		x.item = box.Numbered(it)
		if x.letter, rest, err = proto.CutLetter(rest); err == nil {
			l, err = proto.ParseLetter(x.letter)
		}
		if errors.Is(err, proto.ErrNewLetter) {
			if x.code, x.detail = proto.CodeUnknownVersion, err.Error(); x.letter == nil {
				a.mails = a.mails[:i+1] // what is behind it cannot be found
				return a, nil
			}
			continue
		}
		it.NotAfter = l.NotAfter
		if x.item.NotAfter = l.NotAfter; err == nil && !it.Valid() {
			err = fmt.Errorf("%w: %s with an end at %d", proto.ErrBadMail, it.N, l.NotAfter)
		}
		if err != nil {
			return nil, err
		}
		x.body = arrivingBody{l.Object.Name, from}
		if admit != nil {
			x.code, x.detail = admit(a.chain.Box, &l)
		}
		if m.GetReceipt() && l.Flags&proto.LetterReceipt != 0 {
			x.digest = new(sha256.Sum256(x.letter))
		}
	}
	return a, nil
}

func runsOf(m *proto.Bundle) []chain.Run {
	runs := make([]chain.Run, len(m.GetRuns()))
	for i, r := range m.GetRuns() {
		runs[i] = chain.Run{Boot: r.GetBoot(), First: r.GetFirst(), Count: r.GetCount()}
	}
	return runs
}

// Wait returns the answer to the bundle.
func (a *Arrival) Wait(ctx context.Context) (*proto.Bundled, error) {
	select {
	case <-a.done:
		if len(a.stated) > 0 {
			a.sign.Do(func() { a.answer.Signature = a.b.cfg.Sign(a.stated) })
		}
		return a.answer, a.err
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: %w", ErrUnknown, ctx.Err())
	case <-a.ended:
		return nil, ErrUnknown
	}
}

// IsWritten reports whether Wait returns at once.
func (a *Arrival) IsWritten() bool {
	select {
	case <-a.done:
		return true
	default:
		return false
	}
}

// Size returns the bytes of the letters.
func (a *Arrival) Size() int { return a.size }

// arrive queues the records of a bundle, as far as the state says that they make sense.
func (b *Broker) arrive(now box.Now, a *Arrival) {
	id, _ := b.state.Find(a.chain.Box)
	s, ok := b.state.Settings(id)
	at := b.cfg.Clock.Now()
	switch {
	case !ok:
		a.refuse(at, a.known(noSuchBox(a.chain.Box)))
		return
	case a.generation < s.Generation:
		detail := fmt.Sprintf("this node is its home since generation %d", s.Generation)
		a.refuse(at, &proto.Bundled{Code: proto.CodeMoved, Detail: detail, Home: b.cfg.Self[:], Generation: s.Generation})
		return
	case a.generation > s.Generation:
		a.refuse(at, &proto.Bundled{Code: proto.CodeBusy, Detail: fmt.Sprintf("this node knows of no generation above %d yet", s.Generation)})
		return
	case now.Wall == 0:
		a.refuse(at, &proto.Bundled{Code: proto.CodeBusy, Detail: "the clock of this node is doubted"})
		return
	}
	buf := make([]byte, 0, a.size+len(a.mails)*mailOverhead)
	a.left = 1 // so that it is not finished before all are queued
	for i := range a.mails {
		x := &a.mails[i]
		if x.code == proto.CodeUnknownVersion {
			break
		}
		it := chain.Item(x.item)
		v := b.incoming.arrivals.Check(&b.chains.home, chain.Chain(a.chain), it)
		if v == chain.Again {
			x.code = proto.CodeOK
			continue
		}
		m := &box.Mail{Box: id, At: now.Wall, Origin: b.state.Origin(a.chain.Origin), Chain: a.chain.Class, Number: it.N, Prev: it.Prev, Letter: x.letter}
		if x.judge(v, b.state.Room(m)); !x.goesOn() {
			break
		}
		m.Origin = b.originOf(a.chain.Origin)
		from := len(buf)
		if x.code != proto.CodeOK {
			x.body = arrivingBody{} // nobody needs it
			buf = box.AppendSkip(buf, &box.Skip{Box: id, Origin: m.Origin, Chain: m.Chain, Number: it.N, Prev: it.Prev, NotAfter: it.NotAfter, Code: x.code})
		} else {
			buf = box.AppendMail(buf, m)
			b.incoming.keepBody(x.body)
		}
		a.left++
		b.incoming.arrivals.Queue(chain.Chain(a.chain), it)
		b.queue(buf[from:len(buf):len(buf)], true, false, func(r box.Result, err error) { a.written(i, r, err) })
	}
	a.came()
}

// judge adds the word of the chain and the box to that of admit.
func (x *arrivingMail) judge(v chain.Verdict, room box.Result) {
	switch {
	case v == chain.Expired:
		x.code, x.detail = proto.CodeExpired, "so old that it may have been here before"
	case v == chain.Malformed:
		x.code, x.detail = proto.CodeInternal, "a number that was not checked"
	case v != chain.Next:
		x.code, x.detail = v.Code(), "its number does not follow in its chain"
	case x.code == proto.CodeOK || x.code == proto.CodeNeedBody && room.Code != proto.CodeOK:
		x.code, x.detail = room.Code, room.Detail
	}
}

// goesOn reports whether the mail is taken or refused for good.
func (x *arrivingMail) goesOn() bool {
	_, ends := x.code.Ends()
	return ends || x.code == proto.CodeOK
}

// written notes what became of the record of a mail.
func (a *Arrival) written(i int, r box.Result, err error) {
	r, err = outcome(r, err)
	x := &a.mails[i]
	a.b.incoming.wrote(x.body)
	noted := err == nil && a.b.chains.Check(a.chain, x.item) == proto.CodeDuplicate
	if err != nil {
		a.err = err
	} else if x.code == proto.CodeOK || !noted {
		x.code, x.detail = r.Code, r.Detail
	}
	a.b.incoming.arrivals.Done(chain.Chain(a.chain), noted)
	a.came()
}

// came finishes the bundle with its last record.
func (a *Arrival) came() {
	if a.left--; a.left > 0 {
		return
	}
	if a.err == nil {
		a.b.noteRefused(a)
		a.answer = a.reply()
	}
	a.mails = nil
	close(a.done)
}

// reply says what the notes of the home say about the mails, up to the first one that it did
// not take.
func (a *Arrival) reply() *proto.Bundled {
	m := &proto.Bundled{Number: a.number, Time: a.b.cfg.Clock.Now().UnixMilli()}
	for _, x := range a.mails {
		if a.b.chains.Check(a.chain, x.item) != proto.CodeDuplicate {
			if m.Code, m.Detail = x.code, x.detail; x.goesOn() {
				m.Code, m.Detail = proto.CodeBusy, "" // it would be, if it were not behind another
			}
			break
		}
		n := x.item.N
		m.Boot, m.UpToNumber = n.Boot, n.Counter
		if code, refused := a.b.chains.Refused(a.chain, n); refused {
			m.Skipped = append(m.Skipped, &proto.Skipped{Boot: n.Boot, Number: n.Counter, Code: code, Detail: short(x.detail)})
		}
	}
	m.Detail = short(m.Detail)
	a.stated = a.state(m)
	return m
}

// state returns what this node signs with an answer: one statement for each mail that it has and
// that wants a receipt. Those that it does not know to be the letters that it took are noted in m.
func (a *Arrival) state(m *proto.Bundled) (list []proto.MailStatement) {
	if a.b.cfg.Sign == nil {
		return nil
	}
	for i, x := range a.mails {
		n := x.item.N
		if n.Compare(m.UpTo()) > 0 {
			break
		}
		if _, refused := a.b.chains.Refused(a.chain, n); x.digest == nil || refused {
			continue
		}
		if !a.b.state.Took(a.chain, n, *x.digest) {
			m.LeaveUnsigned(i)
			continue
		}
		list = append(list, proto.MailStatement{
			Mesh: a.b.cfg.Mesh, Mail: proto.LetterID(x.letter), Home: a.b.cfg.Self, Origin: a.chain.Origin, Time: m.Time, Class: a.chain.Class, Number: n, Digest: *x.digest, Box: a.chain.Box,
		})
	}
	return list
}

// known answers for a node that has no such box. What the box had when it was here is answered as
// then. What admit refuses for good ends all the same, up to the first mail that it does not, which
// is answered with rest: there are no notes of that, so it may come again.
func (a *Arrival) known(rest *proto.Bundled) *proto.Bundled {
	m := new(proto.Bundled)
	for _, x := range a.mails {
		n := x.item.N
		code, had := a.b.chains.Had(a.chain, n)
		if had {
			x.code, x.detail = code, ""
		}
		if _, ends := x.code.Ends(); !ends && !had {
			m.Code, m.Detail, m.Home, m.Generation = rest.Code, rest.Detail, rest.Home, rest.Generation
			break
		}
		m.Boot, m.UpToNumber = n.Boot, n.Counter
		if x.code != proto.CodeOK {
			m.Skipped = append(m.Skipped, &proto.Skipped{Boot: n.Boot, Number: n.Counter, Code: x.code, Detail: short(x.detail)})
		}
	}
	return m
}

// refuse answers for a home that takes nothing of the bundle.
func (a *Arrival) refuse(now time.Time, m *proto.Bundled) {
	m.Number, m.Time, m.Detail = a.number, now.UnixMilli(), short(m.Detail)
	a.answer, a.mails = m, nil
	close(a.done)
}

// short cuts a detail to what an answer may have, and a spool keeps.
func short(detail string) string {
	return strings.ToValidUTF8(detail[:min(len(detail), maxDetail)], "")
}

// originOf returns the index of a peer. A new one is recorded before the mail that needs it.
func (b *Broker) originOf(p proto.PeerID) uint32 {
	if i := b.state.Origin(p); i != 0 {
		return i
	}
	in := &b.incoming
	if was, queued := in.origins[p]; queued {
		return was
	}
	i := b.state.NewOrigin()
	if len(in.origins) > 0 {
		i = max(i, in.last+1)
	}
	in.origins[p], in.last = i, i
	rec := box.EncodePeer(i, p)
	if p == b.cfg.Self {
		rec = box.EncodeSelf(i, p)
	}
	b.queue(rec, false, false, func(box.Result, error) {
		delete(in.origins, p)
		b.publish()
	})
	return i
}
