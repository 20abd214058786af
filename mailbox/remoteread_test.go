package mailbox

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/mail"
	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// A fakeHome is beta as the home of boxes that programs of alpha read.
type fakeHome struct {
	*fixture
	home *remoteHome
	n    uint64 // deliveries
}

func newFakeHome(f *fixture) *fakeHome {
	h := &fakeHome{fixture: f, home: &f.exchanges.with(f.beta).home}
	h.home.link(true)
	return h
}

// told returns what beta is told.
func (h *fakeHome) told() (opens []*proto.Open, settles []*proto.Settle) {
	synctest.Wait()
	for _, m := range h.home.takeDue() {
		switch m := m.(type) {
		case *proto.Open:
			opens = append(opens, m)
		case *proto.Settle:
			settles = append(settles, m)
		}
	}
	return opens, settles
}

// one returns the only Open that beta is told.
func (h *fakeHome) one() *proto.Open {
	h.t.Helper()
	opens, settles := h.told()
	if len(opens) != 1 || len(settles) > 0 {
		h.t.Fatalf("told %v, %v", opens, settles)
	}
	return opens[0]
}

// say lets beta say something.
func (h *fakeHome) say(typ proto.MessageType, body proto.Body) error {
	h.t.Helper()
	payload, err := proto.Encode(nil, body)
	h.must(err)
	return h.Receive(h.t.Context(), h.beta, &proto.Message{Type: typ, Payload: payload})
}

// deliver lets beta deliver n mails with bodies of a size in a session.
func (h *fakeHome) deliver(session uint64, n, size int) error {
	h.t.Helper()
	m := &proto.Deliver{Session: session, Boot: 7}
	for range n {
		h.n++
		letter, err := proto.AppendLetter(nil, &proto.Letter{Class: proto.Normal, ID: proto.MailID{1}, Created: 1, NotAfter: 2, Body: make([]byte, size)})
		h.must(err)
		m.Deliveries, m.Letters = append(m.Deliveries, &proto.Delivery{Seq: h.n, Number: h.n, Attempt: 1, LeaseMs: 30_000}), append(m.Letters, letter...)
	}
	return h.say(proto.TypeDeliver, m)
}

// session begins a session of alpha at beta's mailbox, which is open.
func (h *fakeHome) session(credit int) (*Reader, uint64) {
	h.t.Helper()
	r, err := h.Read(h.t.Context(), "ceo@beta", "", wire.LeaseMail{Max: credit, Reader: "w1"})
	h.must(err)
	o := h.one()
	if o.GetBox() != "agent:ceo@"+h.beta.String() || int(o.GetCredit()) != min(credit, proto.MaxCredit) || o.GetRoom() != remoteWindow || o.GetReader() != "w1" || o.GetReceived() != 0 {
		h.t.Errorf("%v", o)
	}
	h.must(h.say(proto.TypeOpened, &proto.Opened{Session: o.GetSession()}))
	return r, o.GetSession()
}

// next returns how many mails a session has now.
func (h *fakeHome) next(r *Reader, n int) int {
	h.t.Helper()
	ctx, stop := context.WithTimeout(h.t.Context(), time.Millisecond)
	defer stop()
	given, err := r.Next(ctx, n)
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		h.t.Error(err)
	}
	return len(given)
}

// A hostile home can send no more than a session has room for, and no more than any session has
// credit for: that closes its stream. Its own count of credit is its own.
func TestHomeThatSendsTooMuch(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		h := newFakeHome(f)
		r, session := h.session(10)
		h.must(h.deliver(session, 10, 100))
		h.must(h.deliver(session, 1, 100)) // a lease has lapsed there, or an operator has settled it
		if n := h.next(r, 99); n != 11 {
			t.Errorf("%d mails", n)
		}
		for range proto.MaxCredit / proto.MaxBundle {
			h.must(h.deliver(session, proto.MaxBundle, 0))
		}
		if err := h.deliver(session, 1, 0); !errors.Is(err, proto.ErrBadMail) {
			t.Errorf("beyond all credit: %v", err)
		}

		r, session = h.session(proto.MaxCredit)
		for range 4 {
			h.must(h.deliver(session, 1, 250_000))
		}
		if err := h.deliver(session, 1, 250_000); !errors.Is(err, proto.ErrBadMail) {
			t.Errorf("beyond its room: %v", err)
		}
		if n := h.next(r, 3); n != 3 {
			t.Errorf("%d mails", n)
		}
		if o := h.one(); int(o.GetRoom()) < 3*250_000 || o.GetReceived() == 0 || o.GetBoot() != 7 {
			t.Errorf("after three were taken it has room for %v", o)
		}
		h.must(h.deliver(session, 1, 250_000))
		h.n = 1
		if err := h.deliver(session, 1, 1); !errors.Is(err, proto.ErrBadMail) {
			t.Errorf("a delivery again: %v", err)
		}
	})
}

// A home that says what makes no sense changes nothing.
func TestHomeThatSaysNonsense(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		h := newFakeHome(f)
		r, session := h.session(10)
		s, err := r.QueueSettle([]mail.Settlement{{Handle: box.Handle{Seq: 1, Boot: 7, N: 1}, Op: box.Ack}})
		h.must(err)
		_, settles := h.told()
		ref := settles[0].GetRef()
		for name, err := range map[string]error{
			"a letter that is none":         h.say(proto.TypeDeliver, &proto.Deliver{Session: session, Boot: 7, Deliveries: []*proto.Delivery{{Seq: 1, Number: 1, Attempt: 1}}, Letters: make([]byte, proto.LetterFixed)}),
			"no deliveries":                 h.say(proto.TypeDeliver, &proto.Deliver{Session: session, Boot: 7}),
			"no session":                    h.say(proto.TypeOpened, &proto.Opened{}),
			"moved to nobody":               h.say(proto.TypeOpened, &proto.Opened{Session: session, Code: proto.CodeMoved}),
			"a settlement that is not mine": h.say(proto.TypeSettled, &proto.Settled{Ref: ref, Unsettled: []*proto.Unsettled{{Index: 1, Code: proto.CodeStale}}}),
			"a lease that is not mine":      h.say(proto.TypeSettled, &proto.Settled{Ref: ref, Extended: []*proto.Extended{{Index: 1}}}),
		} {
			if err == nil {
				t.Errorf("%s: it was taken", name)
			}
		}
		for name, err := range map[string]error{
			"mail of another session": h.deliver(session+1, 1, 1),
			"the end of another one":  h.say(proto.TypeOpened, &proto.Opened{Session: session + 1, Ended: true}),
			"an answer to nothing":    h.say(proto.TypeSettled, &proto.Settled{Ref: ref + 1}),
		} {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		h.must(h.say(proto.TypeSettled, &proto.Settled{Ref: ref, Extended: []*proto.Extended{{LeaseMs: 1 << 63}}}))
		if settled, err := r.Settled(t.Context(), s); err != nil || settled[0].Lease != box.MaxLease {
			t.Errorf("a lease of ages: %v, %v", settled, err)
		}
		if n := h.next(r, 9); n != 0 {
			t.Errorf("%d mails", n)
		}
	})
}

// What this node asks of another one has limits.
func TestLimitsOfReadersElsewhere(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		h := newFakeHome(f)
		r, _ := h.session(100_000)
		for range maxRemoteReaders - 1 {
			_, err := f.Read(t.Context(), "ceo@beta", "", wire.LeaseMail{})
			f.must(err)
		}
		_, err := f.Read(t.Context(), "ceo@beta", "", wire.LeaseMail{})
		f.refused(err, wire.ErrFull, "this node has 256 sessions at beta, the limit")
		_, err = f.Lease(t.Context(), "ceo@beta", "", wire.LeaseMail{})
		f.refused(err, wire.ErrFull, "this node has 256 sessions at beta, the limit")
		what := make([]mail.Settlement, wire.MaxMailBatch)
		for i := range what {
			what[i] = mail.Settlement{Handle: box.Handle{Seq: 1, Boot: 1, N: 1}, Op: box.Ack}
		}
		for range maxSettles / len(what) {
			_, err := r.QueueSettle(what)
			f.must(err)
		}
		_, err = r.QueueSettle(what[:1])
		f.refused(err, wire.ErrFull, "beta has not answered 16384 settlements, the limit")
		_, settles := h.told()
		if len(settles) != maxSettles/len(what) || !slices.IsSortedFunc(settles, func(a, b *proto.Settle) int { return int(a.GetRef() - b.GetRef()) }) {
			t.Errorf("%d settles are sent", len(settles))
		}
		h.must(h.say(proto.TypeSettled, &proto.Settled{Ref: settles[0].GetRef()}))
		_, err = r.QueueSettle(what)
		f.must(err)
		h.home.link(false)
		h.home.link(true)
		if opens, settles := h.told(); len(opens) != maxRemoteReaders || len(settles) != maxSettles/len(what) {
			t.Errorf("on the next link %d sessions and %d settles are told", len(opens), len(settles))
		}
	})
}

// A session goes on at the new home of its box as soon as this node knows that by the deeds of
// the mesh; the word of the old home alone counts for nothing.
func TestReaderFollowsItsBox(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.names.move("agent:desk", f.beta)
		h := newFakeHome(f)
		moved := func(o *proto.Open) {
			h.must(h.say(proto.TypeOpened, &proto.Opened{Session: o.GetSession(), Code: proto.CodeMoved, Home: f.gamma[:], Generation: 2}))
		}
		lease := func() ([]wire.DeliveredMail, error) {
			return f.Lease(t.Context(), "agent:desk", "", wire.LeaseMail{Wait: wire.Wait(time.Minute)})
		}
		done := make(chan error)
		go func() {
			_, err := lease()
			done <- err
		}()
		moved(h.one())
		err := <-done
		f.at(err, "gamma")
		f.refused(err, wire.ErrMoved, "the home of agent:desk has moved from beta to gamma, which this node does not know yet: try again")

		r, err := f.Read(t.Context(), "agent:desk", "", wire.LeaseMail{Max: 5})
		f.must(err)
		var given []wire.DeliveredMail
		go func() {
			var err error
			given, err = r.Next(t.Context(), 9)
			done <- err
		}()
		moved(h.one())
		time.Sleep(3 * time.Second)
		f.names.move("agent:desk", f.gamma)
		time.Sleep(2 * time.Second)
		g := &fakeHome{fixture: f, home: &f.exchanges.with(f.gamma).home}
		o := g.one()
		payload, err := proto.Encode(nil, &proto.Opened{Session: o.GetSession()})
		f.must(err)
		f.must(f.Receive(t.Context(), f.gamma, &proto.Message{Type: proto.TypeOpened, Payload: payload}))
		f.names.move("agent:desk", f.self) // it moves here
		f.mailbox("desk", func(s *wire.MailboxSettings) { s.Named = true })
		f.must(g.home.receive(openedMessage(t, &proto.Opened{Session: o.GetSession(), Code: proto.CodeMoved, Home: f.self[:], Generation: 3})))
		f.mail("agent:desk", "hello", nil)
		if err := <-done; err != nil || len(given) != 1 || string(given[0].Mail.Body) != "hello" {
			t.Errorf("at the new home %+v, %v", given, err)
		}
	})
}

func openedMessage(t *testing.T, o *proto.Opened) *proto.Message {
	t.Helper()
	payload, err := proto.Encode(nil, o)
	if err != nil {
		t.Fatal(err)
	}
	return &proto.Message{Type: proto.TypeOpened, Payload: payload}
}

// What the home of a box refuses is an error of the same kind as here, and says where.
func TestRefusedReader(t *testing.T) {
	for code, want := range map[proto.Code]struct {
		err  error
		says string
	}{
		proto.CodeDenied:    {wire.ErrDenied, "beta does not allow this node to read agent:ceo@beta: there, balefire-node mailbox set ceo --allow-read peer:alpha does"},
		proto.CodeNoHandler: {wire.ErrNotFound, "there is no agent:ceo@beta on beta: because"},
		proto.CodeFull:      {wire.ErrFull, "agent:ceo@beta on beta: because"},
		proto.CodeDraining:  {wire.ErrDraining, "agent:ceo@beta on beta: because"},
		proto.CodeHeld:      {wire.ErrHeld, "agent:ceo@beta on beta: because"},
		proto.CodeBadForm:   {wire.ErrInvalid, "agent:ceo@beta on beta: because"},
		proto.CodeInternal:  {wire.ErrRefused, "agent:ceo@beta on beta: because"},
	} {
		t.Run(code.Name(), func(t *testing.T) {
			bubble(t, func(t *testing.T, f *fixture) {
				h := newFakeHome(f)
				done := make(chan error)
				go func() {
					_, err := f.Lease(t.Context(), "ceo@beta", "", wire.LeaseMail{Wait: wire.Wait(time.Minute)})
					done <- err
				}()
				h.must(h.say(proto.TypeOpened, &proto.Opened{Session: h.one().GetSession(), Code: code, Detail: "because"}))
				err := <-done
				f.refused(err, want.err, want.says)
				f.at(err, map[bool]string{true: "beta"}[code == proto.CodeDraining || code == proto.CodeHeld])
				go func() {
					_, err := f.Settle(t.Context(), "ceo@beta", "", wire.SettleMail{Ack: []string{"1.2.3"}})
					done <- err
				}()
				_, settles := h.told()
				h.must(h.say(proto.TypeSettled, &proto.Settled{Ref: settles[0].GetRef(), Code: code, Detail: "because"}))
				f.refused(<-done, want.err, want.says)
			})
		})
	}
}

// Mail that comes for a lease whose program is gone is given back; a settlement without an
// answer may count.
func TestMailForAProgramThatIsGone(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		h := newFakeHome(f)
		ctx, leave := context.WithCancel(t.Context())
		done := make(chan error)
		go func() {
			_, err := f.Lease(ctx, "ceo@beta", "", wire.LeaseMail{Max: 9, Wait: wire.Wait(time.Minute)})
			done <- err
		}()
		session := h.one().GetSession()
		h.must(h.say(proto.TypeOpened, &proto.Opened{Session: session}))
		h.must(h.deliver(session, 1, 10))
		if o := h.one(); o.GetEnd() != proto.ReadLeave {
			t.Errorf("after the first mail: %v", o)
		}
		leave()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
		h.must(h.deliver(session, 2, 10))
		_, settles := h.told()
		var verbs []string
		for _, s := range settles {
			for _, x := range s.GetSettlements() {
				verbs = append(verbs, fmt.Sprint(x.GetVerb(), " ", x.GetDelivery()))
			}
		}
		if got, want := strings.Join(verbs, ", "), "SETTLE_VERB_RETURN 1, SETTLE_VERB_RETURN 2, SETTLE_VERB_RETURN 3"; got != want {
			t.Errorf("given back: %s, want %s", got, want)
		}
		go func() {
			_, err := f.Settle(t.Context(), "ceo@beta", "", wire.SettleMail{Ack: []string{"1.2.3"}})
			done <- err
		}()
		h.told()
		if err := <-done; err == nil || !strings.Contains(err.Error(), "beta has not answered: repeat it") || wire.CodeOf(err) == wire.CodeTimeout {
			t.Errorf("a settlement without an answer: %v", err)
		}
	})
}

// A peer can open no more sessions, and send no more, than there are limits for.
func TestLimitsOfAReaderElsewhere(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", func(s *wire.MailboxSettings) { s.AllowRead = &[]string{"peer:beta"} })
		x := f.exchanges.with(f.beta)
		name := "agent:ceo@" + f.self.String()
		open := func(n uint64) refused {
			r, why := f.readers.begin(t.Context(), f.beta, &x.readers, &proto.Open{Session: n, Box: name, Credit: 1, Reader: strings.Repeat("é", 64)})
			if r != nil {
				x.readers.mu.Lock()
				defer x.readers.mu.Unlock()
				r.interrupt = func() {}
				x.readers.sessions[n] = r
			}
			return why
		}
		lose := func(n uint64) { // it has no path to its reader
			x.readers.mu.Lock()
			defer x.readers.mu.Unlock()
			x.readers.sessions[n].interrupt, x.readers.sessions[n].since = nil, f.cfg.Clock.Mono()
		}
		for n := range uint64(maxRemoteReaders) {
			if why := open(n + 1); why.code != proto.CodeOK {
				t.Fatalf("session %d: %+v", n+1, why)
			}
		}
		if why := open(999); why.code != proto.CodeFull || why.detail != "the node has 256 sessions here, the limit" {
			t.Errorf("%+v", why)
		}
		v := f.box("ceo")
		if readers := v.Subscriptions[0].Readers; len(readers) != maxRemoteReaders || readers[0] != strings.Repeat("é", 29)+"@beta" {
			t.Errorf("%q", readers[0])
		}
		if s, err := f.Status(t.Context()); err != nil || s.RemoteReaders != maxRemoteReaders {
			t.Errorf("%+v, %v", s, err)
		}
		lose(7)
		if why := open(999); why.code != proto.CodeOK {
			t.Errorf("in place of one that waits: %+v", why)
		}
		lose(8)
		time.Sleep(remoteGrace - time.Second)
		if n := x.readers.count(); n != maxRemoteReaders {
			t.Errorf("%d sessions", n)
		}
		time.Sleep(2 * time.Second)
		if n := len(f.box("ceo").Subscriptions[0].Readers); x.readers.count() != maxRemoteReaders-1 || n != maxRemoteReaders-1 {
			t.Errorf("%d sessions after %s", n, remoteGrace)
		}
		for range maxOpens {
			f.must(x.receiveOpen(&proto.Open{}))
		}
		if err := x.receiveOpen(&proto.Open{}); !errors.Is(err, ErrTooManyBundles) {
			t.Errorf("%v", err)
		}
	})
}

// A home sends a session no more than it has room for.
func TestRoomOfASession(t *testing.T) {
	x := &remoteReader{changed: make(chan struct{}, 1)}
	x.change(&proto.Open{Credit: 5, Room: 1000}, 7)
	given := make([]mail.Delivery, 9)
	for i := range given {
		given[i] = mail.Delivery{Handle: box.Handle{N: uint64(i) + 1}, Letter: make([]byte, 300)}
	}
	if n := x.fits(given); n != 3 {
		t.Errorf("%d fit", n)
	}
	x.flight = []sentMail{{1, 300}, {2, 300}, {3, 300}}
	if n := x.fits(given[3:]); n != 0 {
		t.Errorf("%d more fit", n)
	}
	x.change(&proto.Open{Credit: 5, Room: 1000, Boot: 6, Received: 3}, 7)
	if n := x.fits(given[3:]); n != 0 {
		t.Errorf("%d more fit, by the word of another start", n)
	}
	if more := x.change(&proto.Open{Credit: 7, Room: 1000, Boot: 7, Received: 2}, 7); more != 2 {
		t.Errorf("%d more credit", more)
	}
	if n := x.fits(given[3:]); n != 2 {
		t.Errorf("%d more fit", n)
	}
	if more := x.change(&proto.Open{Credit: 1, Room: 0, Boot: 7, Received: 9}, 7); more != 0 || x.fits(given) != 0 {
		t.Errorf("%d more credit, %d fit", more, x.fits(given))
	}
}

// A peer that says to have all the room there is, and never what has come, gets no more than the
// window, however much of it its program settles.
func TestReaderThatNeverReports(t *testing.T) {
	x := &remoteReader{changed: make(chan struct{}, 1)}
	size, number := 0, uint64(0)
	for range 1000 {
		x.change(&proto.Open{Credit: proto.MaxCredit, Room: math.MaxUint32}, 7)
		number++
		d := mail.Delivery{Handle: box.Handle{N: number}, Letter: make([]byte, 3000)}
		if n := x.fits([]mail.Delivery{d}); n > 0 {
			x.flight = append(x.flight, sentMail{number, len(d.Letter)})
			size += len(d.Letter)
		}
	}
	if size > remoteWindow || size < remoteWindow-3000 || len(x.flight) != size/3000 {
		t.Errorf("%d bytes of %d letters are on their way, the window is %d", size, len(x.flight), remoteWindow)
	}
}

// FuzzReadElsewhere feeds a node what the home of a box may say: it keeps no more than its
// session has room for.
func FuzzReadElsewhere(f *testing.F) {
	letter, err := proto.AppendLetter(nil, &proto.Letter{Class: proto.Normal, ID: proto.MailID{1}, Created: 1, NotAfter: 2, Body: []byte("body")})
	if err != nil {
		f.Fatal(err)
	}
	for typ, m := range map[proto.MessageType]proto.Body{
		proto.TypeOpened:  &proto.Opened{Session: 1, Resumed: true},
		proto.TypeDeliver: &proto.Deliver{Session: 1, Boot: 7, Deliveries: []*proto.Delivery{{Seq: 1, Number: 1, Attempt: 1, LeaseMs: 1}, {Seq: 2, Number: 3, Attempt: 9}}, Letters: append(letter, letter...)},
		proto.TypeSettled: &proto.Settled{Ref: 2, Extended: []*proto.Extended{{LeaseMs: 9}}},
	} {
		payload, err := proto.Encode(nil, m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(uint32(typ), payload, payload)
	}
	f.Fuzz(func(t *testing.T, typ uint32, first, second []byte) {
		n := uint64(0)
		h := &remoteHome{
			name: func() string { return "beta" }, number: func() uint64 { n++; return n }, now: func() time.Duration { return 0 }, due: make(chan struct{}, 1),
			sessions: map[uint64]*remoteSession{}, ended: map[uint64]*proto.Open{}, settles: map[uint64]*remoteSettle{},
		}
		s, err := h.begin(place{name: "agent:ceo"}, "", wire.LeaseMail{Max: 3})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := h.settle(place{name: "agent:ceo"}, "", []mail.Settlement{{Handle: box.Handle{Seq: 1, Boot: 7, N: 1}, Op: box.Extend}}); err != nil {
			t.Fatal(err)
		}
		for _, payload := range [][]byte{first, second, first} {
			err := h.receive(&proto.Message{Type: proto.MessageType(typ), Payload: payload})
			if len(s.queue) > proto.MaxCredit || s.queued > remoteWindow || s.queued < 0 {
				t.Fatalf("%d queued with %d bytes: %v", len(s.queue), s.queued, err)
			}
		}
	})
}
