package mailbox

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/balefire/balefire/mail"
	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/transport"
	"github.com/balefire/balefire/wire"
)

// What a program says can be sent, and is no offense at the home; what that cannot be is
// answered here.
func TestBadSettlementsElsewhere(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		h := newFakeHome(f)
		r, _ := h.session(10)
		one := func(n uint64, reason string) mail.Settlement {
			return mail.Settlement{Handle: box.Handle{Seq: n, Boot: 7, N: n}, Op: box.Nack, Reason: reason}
		}
		s, err := r.QueueSettle([]mail.Settlement{one(0, ""), one(1, "\xff broken"), one(0, ""), one(2, strings.Repeat("x", 64<<10)), one(3, "")})
		h.must(err)
		_, settles := h.told()
		if len(settles) != 1 || len(settles[0].GetSettlements()) != 3 || settles[0].Check() != nil {
			t.Fatalf("told %v", settles)
		}
		if _, err := proto.Encode(nil, settles[0]); err != nil {
			t.Error(err)
		}
		h.must(h.say(proto.TypeSettled, &proto.Settled{Ref: settles[0].GetRef(), Unsettled: []*proto.Unsettled{{Index: 1, Code: proto.CodeStale}}}))
		settled, err := r.Settled(t.Context(), s)
		h.must(err)
		for i, want := range []proto.Code{proto.CodeBadForm, proto.CodeOK, proto.CodeBadForm, proto.CodeStale, proto.CodeOK} {
			if settled[i].Code != want {
				t.Errorf("settlement %d: %s, want %s", i, settled[i].Code.Name(), want.Name())
			}
		}
		s, err = r.QueueSettle([]mail.Settlement{one(0, "")})
		h.must(err)
		if settled, err := r.Settled(t.Context(), s); err != nil || settled[0].Code != proto.CodeBadForm || h.home.settling != 0 {
			t.Errorf("handle 0.7.0: %v, %v", settled, err)
		}
		away, err := h.home.settle(place{name: "agent:ceo"}, "\xff", []mail.Settlement{one(1, "")})
		h.must(err)
		_, settles = h.told()
		_, err = proto.Encode(nil, settles[0])
		if !proto.Malformed(err) {
			t.Fatalf("%v", err)
		}
		h.home.fail(settles[0], err)
		_, err = h.home.wait(t.Context(), away)
		if e, ok := errors.AsType[*remoteError](err); !ok || e.code != proto.CodeBadForm || h.home.settling != 0 {
			t.Errorf("what cannot be sent: %v", err)
		}
	})
}

// A session whose words cannot be sent ends with an error; the name of a reader is cut.
func TestBadOpenElsewhere(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		h := newFakeHome(f)
		s, err := h.home.begin(place{name: "agent:ceo"}, "", wire.LeaseMail{Reader: "\xffw" + strings.Repeat("1", 200)})
		h.must(err)
		o := h.one()
		if _, err := proto.Encode(nil, o); err != nil || !strings.HasPrefix(o.GetReader(), "w1") {
			t.Errorf("%q: %v", o.GetReader(), err)
		}
		h.home.fail(o, proto.ErrTooLong)
		_, _, err = s.NextInto(t.Context(), 1, nil, nil)
		if e, ok := errors.AsType[*remoteError](err); !ok || e.code != proto.CodeBadForm || len(h.home.sessions) != 0 {
			t.Errorf("%v, %d sessions", err, len(h.home.sessions))
		}
	})
}

// Settlements at a node that cannot be reached wait together, not one after the other; one that
// was answered meanwhile is known.
func TestSettlementsWaitTogether(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		h := newFakeHome(f)
		r, _ := h.session(10)
		var all []Settling
		for n := range uint64(4) {
			s, err := r.QueueSettle([]mail.Settlement{{Handle: box.Handle{Seq: n + 1, Boot: 7, N: n + 1}, Op: box.Ack}})
			h.must(err)
			all = append(all, s)
		}
		_, settles := h.told()
		h.must(h.say(proto.TypeSettled, &proto.Settled{Ref: settles[3].GetRef()}))
		start := time.Now()
		for i, s := range all {
			_, err := r.Settled(t.Context(), s)
			if want := i < 3; errors.Is(err, store.ErrUnknown) != want || !want && err != nil {
				t.Errorf("settlement %d: %v", i, err)
			}
			if d := time.Since(start); d != remoteAnswer {
				t.Errorf("settlement %d was answered after %s", i, d)
			}
		}
		if h.home.settling != 0 {
			t.Errorf("%d settlements are left", h.home.settling)
		}
	})
}

// Settlements that a home does not answer, and nobody waits for, refuse no later ones: the oldest
// give way.
func TestOldSettlementsGiveWay(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		h := newFakeHome(f)
		r, _ := h.session(10)
		n := uint64(0)
		ack := func() (Settling, error) {
			n++
			return r.QueueSettle([]mail.Settlement{{Handle: box.Handle{Seq: n, Boot: 7, N: n}, Op: box.Ack}})
		}
		for range maxSettles {
			_, err := ack()
			h.must(err)
		}
		_, err := ack()
		f.refused(err, wire.ErrFull, "beta has not answered 16384 settlements, the limit")
		if n := testing.AllocsPerRun(10, func() { n--; _, _ = ack() }); n > 15 { // they are not sorted
			t.Errorf("one that is refused takes %v allocations", n)
		}
		time.Sleep(remoteAnswer)
		first := n + 1
		s, err := ack()
		h.must(err)
		settles := h.answerAll()
		oldest, newest := settles[0].GetSettlements()[0].GetSeq(), settles[len(settles)-1]
		if len(settles) < maxSettles*3/4 || oldest != first-uint64(len(settles)) || newest.GetSettlements()[0].GetSeq() != first {
			t.Errorf("%d settlements are sent, from %d on, want most of them and the newest", len(settles), oldest)
		}
		if settled, err := r.Settled(t.Context(), s); err != nil || settled[0].Code != proto.CodeOK {
			t.Errorf("%v, %v", settled, err)
		}
	})
}

// answerAll answers all Settles, and returns them. No more are on their way than the home takes.
func (h *fakeHome) answerAll() (all []*proto.Settle) {
	h.t.Helper()
	for {
		_, settles := h.told()
		if len(settles) > maxAwaited {
			h.t.Fatalf("%d messages are on their way, the limit is %d", len(settles), maxAwaited)
		}
		for _, m := range settles {
			h.must(h.say(proto.TypeSettled, &proto.Settled{Ref: m.GetRef()}))
		}
		all = append(all, settles...)
		select {
		case <-h.home.due:
		default:
			return all
		}
	}
}

// Leases at a node that cannot be reached leave nothing behind.
func TestLeasesAtAnUnreachableHome(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		h := newFakeHome(f)
		h.home.link(false)
		for range 3 {
			if _, err := f.Lease(t.Context(), "ceo@beta", "", wire.LeaseMail{Wait: wire.Wait(20 * time.Second)}); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%v", err)
			}
		}
		if n := len(h.home.sessions); n != 0 {
			t.Errorf("%d sessions are left", n)
		}
		h.home.link(true)
		if opens, _ := h.told(); len(opens) != 0 {
			t.Errorf("on the next link %v", opens)
		}
		r, err := f.Read(t.Context(), "ceo@beta", "", wire.LeaseMail{})
		f.must(err)
		f.must(r.session.Close(t.Context(), false))
		if n := len(h.home.sessions); n != 0 {
			t.Errorf("%d sessions that were never told", n)
		}
	})
}

// A program is told what is left of a lease when it takes the mail.
func TestLeaseThatHasWaitedHere(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		h := newFakeHome(f)
		r, session := h.session(10)
		h.must(h.deliver(session, 2, 10))
		for _, want := range []time.Duration{10 * time.Second, 0} {
			time.Sleep(20 * time.Second)
			given, _, err := r.NextLetters(t.Context(), 1, nil, nil)
			if err != nil || len(given) != 1 || given[0].Lease != want {
				t.Errorf("%+v, %v, want a lease of %s", given, err, want)
			}
		}
	})
}

// A session that ends while its home cannot be reached is told to have ended until the home
// knows it.
func TestSessionThatEndsWithoutAPath(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		h := newFakeHome(f)
		r, session := h.session(10)
		h.home.link(false)
		f.must(r.session.Close(t.Context(), false))
		if n := len(h.home.sessions); n != 0 {
			t.Errorf("%d sessions", n)
		}
		ends := func(when string) {
			t.Helper()
			if o := h.one(); o.GetSession() != session || o.GetEnd() != proto.ReadReturn || o.Check() != nil {
				t.Errorf("%s: %v", when, o)
			}
		}
		h.home.link(true)
		ends("on the next link")
		h.must(h.deliver(session, 1, 10))
		ends("after mail for it")
		h.must(h.say(proto.TypeOpened, &proto.Opened{Session: session, Code: proto.CodeBusy}))
		ends("when it waits for its reader")
		h.must(h.say(proto.TypeOpened, &proto.Opened{Session: session, Ended: true}))
		h.home.repeat()
		if opens, _ := h.told(); len(opens) != 0 {
			t.Errorf("when the home knows it: %v", opens)
		}
	})
}

// A session that is stopped while it moves does not go on at the new home, and one that was
// given credit meanwhile has it there.
func TestSessionThatChangesWhileItMoves(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		h := newFakeHome(f)
		p := place{home: f.beta, name: "agent:ceo"}
		x, err := f.reads.begin(t.Context(), "agent:ceo", p, "", wire.LeaseMail{Max: 3})
		f.must(err)
		f.must(x.AddCredit(t.Context(), 4))
		h.told()
		f.must(x.begin(t.Context(), p))
		if o := h.one(); o.GetCredit() != 7 {
			t.Errorf("credit %d", o.GetCredit())
		}
		f.must(x.Close(t.Context(), false))
		h.told()
		if err := x.begin(t.Context(), p); !errors.Is(err, errSessionEnded) {
			t.Errorf("%v", err)
		}
		if opens, _ := h.told(); len(opens) != 0 {
			t.Errorf("it goes on with %v", opens)
		}
	})
}

// What an earlier home of a box gave is not settled at the new one, where another mail has its
// number.
func TestHandleOfAnEarlierHome(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		settle := func(r *Reader, h box.Handle) proto.Code {
			t.Helper()
			s, err := r.QueueSettle([]mail.Settlement{{Handle: h, Op: box.Ack}})
			f.must(err)
			settled, err := r.Settled(t.Context(), s)
			f.must(err)
			return settled[0].Code
		}
		f.boot = 9 // later than the start of beta
		f.restart()
		f.names.move("agent:desk", f.beta)
		h := newFakeHome(f)
		r, err := f.Read(t.Context(), "agent:desk", "", wire.LeaseMail{Max: 1})
		f.must(err)
		session := h.one().GetSession()
		h.must(h.deliver(session, 3, 10))
		given, _, err := r.NextLetters(t.Context(), 9, nil, nil)
		if err != nil || len(given) != 3 {
			t.Fatalf("%v, %v", given, err)
		}
		f.names.move("agent:desk", f.self)
		f.mailbox("desk", func(s *wire.MailboxSettings) { s.Named = true })
		for range 3 {
			f.mail("agent:desk", "hello", nil)
		}
		h.must(h.say(proto.TypeOpened, &proto.Opened{Session: session, Code: proto.CodeMoved, Home: f.self[:], Generation: 2}))
		here, _, err := r.NextLetters(t.Context(), 1, nil, nil)
		if err != nil || len(here) != 1 || here[0].Handle.Seq != 1 {
			t.Fatalf("%v, %v", here, err)
		}
		if code := settle(r, given[2].Handle); code != proto.CodeStale {
			t.Errorf("here: %s", code.Name())
		}
		if code := settle(r, here[0].Handle); code != proto.CodeOK {
			t.Errorf("what was given here: %s", code.Name())
		}
		if n := f.box("agent:desk").Waiting; n != 2 {
			t.Errorf("%d mails wait here", n)
		}
	})
}

// One that moves to a third node is told nothing of what the second one gave.
func TestHandleThatIsSentToNobody(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		x := &followed{r: f.reads, now: &remoteSession{home: &f.exchanges.with(f.gamma).home}, place: place{home: f.gamma, name: "agent:desk"}, starts: map[uint64]proto.PeerID{}}
		r := &Reader{reads: f.reads, place: x.place, session: x}
		x.given(f.beta, []mail.Delivery{{Handle: box.Handle{Seq: 1, Boot: 7, N: 1}}})
		what := []mail.Settlement{{Handle: box.Handle{Seq: 1, Boot: 7, N: 1}, Op: box.Ack}, {Handle: box.Handle{Seq: 2, Boot: 8, N: 1}, Op: box.Ack}}
		s, err := r.QueueSettle(what)
		f.must(err)
		g := &fakeHome{fixture: f, home: &f.exchanges.with(f.gamma).home}
		if _, settles := g.told(); len(settles) != 1 || len(settles[0].GetSettlements()) != 1 || settles[0].GetSettlements()[0].GetSeq() != 2 {
			t.Errorf("told %v", settles)
		} else {
			g.home.finish(g.home.settles[settles[0].GetRef()], &proto.Settled{})
		}
		if settled, err := r.Settled(t.Context(), s); err != nil || settled[0].Code != proto.CodeStale || settled[1].Code != proto.CodeOK || what[0].Handle.Seq != 1 {
			t.Errorf("%v, %v", settled, err)
		}
		for boot := range uint64(3 * maxStarts) {
			x.given(f.gamma, []mail.Delivery{{Handle: box.Handle{Boot: boot}}})
		}
		if len(x.starts) != maxStarts || x.starts[3*maxStarts-1] != f.gamma {
			t.Errorf("%d starts are known", len(x.starts))
		}
	})
}

// A peer that does not take any answers has no more messages here than there is a limit for.
func TestLimitOfMessagesWithoutAnAnswer(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		x := f.exchanges.with(f.beta)
		stream, closeStream := context.WithCancel(t.Context())
		payload, err := proto.Encode(nil, &proto.Settle{Ref: 1, Box: "agent:none@" + f.self.String(), Settlements: []*proto.Settlement{{Seq: 1, Boot: 1, Delivery: 1, Verb: proto.SettleAck}}})
		f.must(err)
		send := func() error {
			return f.Receive(stream, f.beta, &proto.Message{Type: proto.TypeSettle, Payload: payload})
		}
		for range 4096 {
			f.must(send())
		}
		if err := send(); !errors.Is(err, ErrTooManyBundles) {
			t.Errorf("message 4097: %v, want %v", err, ErrTooManyBundles)
		}
		closeStream()
		link, end := context.WithTimeout(t.Context(), time.Second)
		defer end()
		if err := f.messages.sendAnswers(link, nil, x); !errors.Is(err, context.DeadlineExceeded) || len(x.arrivals) != 0 {
			t.Errorf("%d messages are left: %v", len(x.arrivals), err)
		}
	})
}

// A peer that does not take the answers to its settlements keeps no more of them here than there
// is a limit for; what a node of this version has on its way is below it.
func TestLimitOfAnswersToSettlements(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		if honest := maxSettles*settledSize + maxAnswers*answerSize; honest > maxSettled {
			t.Errorf("a node may have answers of %d bytes on their way, the limit is %d", honest, maxSettled)
		}
		f.mailbox("ceo", func(s *wire.MailboxSettings) { s.AllowRead = &[]string{"peer:beta"} })
		x := f.exchanges.with(f.beta)
		stream, closeStream := context.WithCancel(t.Context())
		send := func(box string, n int) error {
			m := &proto.Settle{Ref: 1, Box: box}
			for i := range n {
				m.Settlements = append(m.Settlements, &proto.Settlement{Seq: uint64(i) + 1, Boot: 1, Delivery: 1, Verb: proto.SettleAck})
			}
			payload, err := proto.Encode(nil, m)
			f.must(err)
			return f.Receive(stream, f.beta, &proto.Message{Type: proto.TypeSettle, Payload: payload})
		}
		f.must(send("agent:none@"+f.self.String(), 1)) // which is refused
		const part = settledSize*wire.MaxMailBatch + answerSize
		n := 0
		for ; x.settled < maxSettled; n++ {
			f.must(send("agent:ceo@"+f.self.String(), wire.MaxMailBatch))
		}
		if err := send("agent:ceo@"+f.self.String(), 1); !errors.Is(err, ErrTooManyBundles) || n != maxSettled/part+1 || len(x.arrivals) != n+1 {
			t.Errorf("after %d messages: %v", n, err)
		}
		closeStream()
		link, end := context.WithTimeout(t.Context(), time.Second)
		defer end()
		if err := f.messages.sendAnswers(link, nil, x); !errors.Is(err, context.DeadlineExceeded) || len(x.arrivals) != 0 || x.settled != 0 {
			t.Errorf("%d answers of %d bytes are left: %v", len(x.arrivals), x.settled, err)
		}
	})
}

// Deliveries on a stream that another one has replaced are missed.
func TestStreamOfDeliveriesIsReplaced(t *testing.T) {
	lost := 0
	r := &remoteReaders{sessions: map[uint64]*remoteReader{1: {interrupt: func() { lost++ }}, 2: {}}}
	first, second := new(transport.MailStream), new(transport.MailStream)
	for i, step := range []struct {
		stream *transport.MailStream
		other  bool
		lost   int
	}{{first, true, 0}, {first, false, 0}, {second, true, 1}, {second, false, 1}} {
		if other := r.sentOn(step.stream); other != step.other || lost != step.lost {
			t.Errorf("step %d: another one %v, lost %d times", i, other, lost)
		}
	}
}
