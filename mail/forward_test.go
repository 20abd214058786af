package mail

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/mail/chain"
	"github.com/balefire/balefire/proto"
	pb "google.golang.org/protobuf/proto"
)

var homeID, originID = proto.PeerID{1, 2}, proto.PeerID{3, 4}

// forward forwards letters to agent:ceo at homeID, each of which must be kept.
func (f *fixture) forward(bodies ...string) {
	f.t.Helper()
	var out []Outgoing
	for _, body := range bodies {
		out = append(out, Outgoing{Box: "agent:ceo", Home: homeID, Letter: f.letter(body, func(l *proto.Letter) { l.Sender = []byte("desk") })})
	}
	sent, err := f.Forward(f.t.Context(), out, false)
	if err != nil {
		f.t.Fatal(err)
	}
	for i, s := range sent {
		if s.Code != proto.CodeOK || s.ID.IsZero() {
			f.t.Fatalf("mail %d: %+v", i, s)
		}
	}
}

func (f *fixture) lane(home proto.PeerID) *Lane {
	f.t.Helper()
	l, err := f.Lane(f.t.Context(), home)
	if err != nil {
		f.t.Fatal(err)
	}
	return l
}

func (f *fixture) bundle(l *Lane) *proto.Bundle {
	f.t.Helper()
	m, err := l.Next(f.t.Context())
	if err != nil {
		f.t.Fatal(err)
	}
	return m
}

func (f *fixture) take(m *proto.Bundle, admit Admit) *proto.Bundled {
	f.t.Helper()
	b, err := proto.Encode(nil, m)
	if err != nil {
		f.t.Fatal(err)
	}
	over := new(proto.Bundle)
	if err := proto.Decode(b, over); err != nil {
		f.t.Fatal(err)
	}
	a, err := f.Arrive(originID, over, admit)
	if err != nil {
		f.t.Fatal(err)
	}
	answer, err := a.Wait(f.t.Context())
	if err != nil {
		f.t.Fatal(err)
	}
	return answer
}

func (f *fixture) answer(l *Lane, m *proto.Bundled) {
	f.t.Helper()
	if err := l.Answer(f.t.Context(), m); err != nil {
		f.t.Fatal(err)
	}
}

// spool returns what waits for agent:ceo.
func (f *fixture) spool() SpoolInfo {
	f.t.Helper()
	all, err := f.Spools(f.t.Context())
	if err != nil || len(all) != 1 || all[0].Box != "agent:ceo" {
		f.t.Fatalf("%+v, %v", all, err)
	}
	return all[0]
}

// generation returns that of the home of agent:ceo.
func (f *fixture) generation() uint64 {
	for name, h := range f.BoxHomes() {
		if name == "agent:ceo" && h.Spool {
			return h.Generation
		}
	}
	return 0
}

// I21, I22: what was forwarded is at its home once, whatever is lost between the two.
func TestForward(t *testing.T) {
	o, h := newFixture(t, Config{CheckpointRecords: 1}), newFixture(t, Config{Self: homeID})
	h.mailbox("agent:ceo")
	o.forward("a", "b")
	if s := o.spool(); s.Waiting != 2 || s.Home != homeID || s.Oldest.IsZero() || s.Bytes == 0 || len(s.Stops) > 0 {
		t.Errorf("%+v", s)
	}
	m := o.bundle(o.lane(homeID))
	if len(m.GetRuns()) != 1 || m.GetRuns()[0].GetCount() != 2 || m.GetBox() != "agent:ceo" || m.GetReceipt() {
		t.Fatalf("%v", m)
	}
	o.restart() // the bundle is lost
	o.forward("c")
	l := o.lane(homeID)
	m = o.bundle(l)
	first := h.take(m, nil)
	if first.GetCode() != proto.CodeOK || first.UpTo() != (proto.Seq{Boot: 2, Counter: 1}) || first.GetTime() == 0 {
		t.Fatalf("%v", first)
	}
	if err := l.Reset(t.Context()); err != nil { // its answer is lost
		t.Fatal(err)
	}
	h.restart()
	m = o.bundle(l)
	o.answer(l, first) // late, and not expected any more
	if s := o.spool(); s.Waiting != 3 {
		t.Errorf("%+v", s)
	}
	o.answer(l, h.take(m, nil))
	o.restart()
	if s := o.spool(); s.Waiting != 0 || !s.Oldest.IsZero() {
		t.Errorf("%+v", s)
	}
	if _, bodies := h.next(h.read("agent:ceo", 9), 3); fmt.Sprint(bodies) != "[a b c]" {
		t.Errorf("%q", bodies)
	}
	if i := h.info("agent:ceo"); i.Waiting != 3 {
		t.Errorf("%+v", i)
	}
}

// A lane gives out what there is by class, within its space, and waits otherwise.
func TestLanesServeByClass(t *testing.T) {
	o := newFixture(t, Config{})
	var out []Outgoing
	for i, class := range []proto.Class{proto.Low, proto.Critical, proto.Normal} {
		for _, name := range []string{"agent:a", "agent:b"} {
			out = append(out, Outgoing{Box: name, Home: homeID, Letter: o.letter(strings.Repeat("x", 1000), func(l *proto.Letter) {
				if l.Class = class; i == 1 {
					l.Flags = proto.LetterReceipt
				}
			})})
		}
	}
	l := o.lane(homeID)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if m, err := l.next(ctx, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, %v", m, err)
	}
	if _, err := o.Forward(t.Context(), append(out, out...), false); err != nil {
		t.Fatal(err)
	}
	var got []string
	for range 12 {
		m, err := l.next(t.Context(), 1100) // there is space for one
		if err != nil {
			t.Fatal(err)
		}
		if m.GetReceipt() != (m.GetChain() == proto.Critical) || m.GetRuns()[0].GetCount() != 1 {
			t.Errorf("%v", m.GetRuns())
		}
		got = append(got, m.GetChain().Name()+" "+m.GetBox()[6:])
	}
	if want := "[critical a critical b critical a critical b normal a normal b normal a low b"; !strings.HasPrefix(fmt.Sprint(got), want[:40]) || !slices.Contains(got[4:8], "normal b") {
		t.Errorf("%v", got)
	}
	done := make(chan error)
	go func() {
		_, err := l.next(context.Background(), 1)
		done <- err
	}()
	o.stop()
	if err := <-done; !errors.Is(err, ErrStopped) && !errors.Is(err, ErrUnknown) {
		t.Errorf("stopped: %v", err)
	}
}

// What its home refuses for good is DEAD, and its sender is told why.
func TestRefusedAtTheHome(t *testing.T) {
	bounced := make(chan Bounce, 4)
	o, h := newFixture(t, Config{Bounced: func(_ context.Context, b Bounce) { bounced <- b }}), newFixture(t, Config{})
	h.mailbox("agent:ceo")
	o.forward("a", "bad", "worse", "b")
	admit := func(name string, l *proto.Letter) (proto.Code, string) {
		switch string(l.Body) {
		case "bad", "worse":
			return proto.CodeDenied, "not " + string(l.Body) + " for " + name
		}
		return proto.CodeOK, ""
	}
	l := o.lane(homeID)
	a := h.take(o.bundle(l), admit)
	if a.GetCode() != proto.CodeOK || len(a.GetSkipped()) != 2 || a.GetSkipped()[0].GetDetail() != "not bad for agent:ceo" {
		t.Fatalf("%v", a)
	}
	o.answer(l, a)
	for _, body := range []string{"bad", "worse"} {
		b := <-bounced
		p, err := proto.ParseLetter(b.Letter)
		if want := fmt.Sprintf(`"cause":"refused","reason":"DENIED: not %s for agent:ceo"`, body); err != nil || b.To != "desk" || !strings.Contains(string(p.Body), want) || !strings.Contains(string(p.Body), `"box":"agent:ceo"`) {
			t.Errorf("%+v: %s, want %s", b, p.Body, want)
		}
	}
	i := o.info("out:agent:ceo")
	if i.Waiting != 0 || i.EndedAs(box.Dead) != 2 || i.EndedAs(box.Done) != 2 {
		t.Errorf("%+v", i)
	}
	if _, bodies := h.next(h.read("agent:ceo", 9), 2); fmt.Sprint(bodies) != "[a b]" {
		t.Errorf("%q", bodies)
	}
}

// A home that takes nothing now is asked again later, or when it says that it has space.
func TestStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newFixture(t, Config{})
		o.forward("a", "b")
		l := o.lane(homeID)
		waits := func(m *proto.Bundled) time.Duration {
			t.Helper()
			m.Number = o.bundle(l).GetNumber()
			o.answer(l, m)
			s := o.spool().Stops
			if len(s) != 1 || s[0].Code != m.GetCode() || s[0].Detail != m.GetDetail() || s[0].Class != proto.Normal {
				t.Fatalf("%+v", s)
			}
			began := time.Now()
			again := o.bundle(l)
			o.answer(l, &proto.Bundled{Number: again.GetNumber(), Code: proto.CodeFull, RetryAfterMs: 1})
			return time.Since(began)
		}
		for _, tt := range []struct {
			name     string
			m        *proto.Bundled
			min, max time.Duration
		}{
			{"busy", &proto.Bundled{Code: proto.CodeBusy, Detail: "x"}, 100 * time.Millisecond, 300 * time.Millisecond},
			{"full, the third time", &proto.Bundled{Code: proto.CodeFull}, 4 * time.Second, 6 * time.Second},
			{"by its own word", &proto.Bundled{Code: proto.CodeDraining, RetryAfterMs: 20_000}, 20 * time.Second, 21 * time.Second},
			{"by its own word, too late", &proto.Bundled{Code: proto.CodeNoHandler, RetryAfterMs: 1 << 60}, 5 * time.Minute, 5*time.Minute + time.Second},
		} {
			if d := waits(tt.m); d < tt.min || d > tt.max {
				t.Errorf("%s: asked again after %v, want %v to %v", tt.name, d, tt.min, tt.max)
			}
		}
		o.answer(l, &proto.Bundled{Number: o.bundle(l).GetNumber(), Code: proto.CodeFull, Detail: "no"})
		began := time.Now()
		if err := l.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		m := o.bundle(l)
		if time.Since(began) > 0 {
			t.Error("it waits although the home has space")
		}
		first := m.GetRuns()[0]
		o.answer(l, &proto.Bundled{Number: m.GetNumber(), Boot: first.GetBoot(), UpToNumber: first.GetFirst(), Code: proto.CodeFull, Detail: "half"})
		if s := o.spool(); s.Waiting != 1 || len(s.Stops) != 1 || s.Stops[0].Detail != "half" || s.Stops[0].Until.Sub(s.Stops[0].At) > 2*time.Second {
			t.Errorf("progress begins the waits again: %+v", s)
		}
		m = o.bundle(l)
		o.answer(l, &proto.Bundled{Number: m.GetNumber(), Boot: first.GetBoot(), UpToNumber: first.GetFirst() + 1})
		if s := o.spool(); s.Waiting != 0 || len(s.Stops) > 0 {
			t.Errorf("%+v", s)
		}
	})
}

// An answer that no home gives is an error and changes nothing.
func TestBadAnswers(t *testing.T) {
	o := newFixture(t, Config{})
	o.forward("a", "b")
	l := o.lane(homeID)
	m := o.bundle(l)
	n := m.GetNumber()
	for _, tt := range []struct {
		name string
		m    *proto.Bundled
		want error
	}{
		{"nothing", &proto.Bundled{}, proto.ErrBadMail},
		{"no end", &proto.Bundled{Number: n}, proto.ErrBadMail},
		{"an end that was not sent", &proto.Bundled{Number: n, Boot: 1, UpToNumber: 3}, chain.ErrAnswer},
		{"half of it without a code", &proto.Bundled{Number: n, Boot: 1, UpToNumber: 1}, chain.ErrAnswer},
		{"all of it with a code", &proto.Bundled{Number: n, Boot: 1, UpToNumber: 2, Code: proto.CodeFull}, chain.ErrAnswer},
		{"stopped for good", &proto.Bundled{Number: n, Code: proto.CodeDenied}, chain.ErrAnswer},
		{"refused for now", &proto.Bundled{Number: n, Boot: 1, UpToNumber: 2, Skipped: []*proto.Skipped{{Boot: 1, Number: 1, Code: proto.CodeBusy}}}, proto.ErrBadMail},
		{"refused and not sent", &proto.Bundled{Number: n, Boot: 2, UpToNumber: 2, Skipped: []*proto.Skipped{{Boot: 1, Number: 9, Code: proto.CodeDenied}}}, chain.ErrAnswer},
		{"moved to nowhere", &proto.Bundled{Number: n, Code: proto.CodeMoved}, proto.ErrBadMail},
	} {
		if err := l.Answer(t.Context(), tt.m); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	if err := o.lane(originID).Answer(t.Context(), &proto.Bundled{Number: n, Boot: 1, UpToNumber: 2}); !errors.Is(err, chain.ErrAnswer) {
		t.Errorf("of another node: %v", err)
	}
	if s := o.spool(); s.Waiting != 2 || len(s.Stops) > 0 {
		t.Errorf("%+v", s)
	}
	o.answer(l, &proto.Bundled{Number: n, Boot: 1, UpToNumber: 2})
	if s := o.spool(); s.Waiting != 0 {
		t.Errorf("%+v", s)
	}
}

// A box that moves takes its spool with it. The numbers stay.
func TestMovedBoxes(t *testing.T) {
	believed := false
	o, h := newFixture(t, Config{Moved: func(string, proto.PeerID, uint64) bool { return believed }}), newFixture(t, Config{Self: originID})
	settings := box.BoxSettings{Name: "agent:ceo", Kind: box.Mailbox, Generation: 7}
	if err := h.SetBox(t.Context(), settings); err != nil {
		t.Fatal(err)
	}
	o.forward("a", "b")
	old, l := o.lane(homeID), o.lane(originID)
	m := o.bundle(old)
	moved := h.take(m, nil)
	if moved.GetCode() != proto.CodeMoved || moved.GetGeneration() != 7 || proto.PeerID(moved.GetHome()) != originID {
		t.Fatalf("%v", moved)
	}
	o.answer(old, moved)
	if s := o.spool(); s.Home != homeID || len(s.Stops) != 1 || s.Stops[0].Code != proto.CodeMoved {
		t.Errorf("not believed: %+v", s)
	}
	believed = true
	if err := old.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	again := o.bundle(old)
	moved.Number = again.GetNumber()
	o.answer(old, moved)
	next := o.bundle(l)
	if next.GetGeneration() != 7 || !pb.Equal(next.GetRuns()[0], m.GetRuns()[0]) {
		t.Errorf("%v, want %v", next.GetRuns(), m.GetRuns())
	}
	if err := o.SetHome(t.Context(), "agent:ceo", homeID, 7); err != nil {
		t.Fatal(err)
	}
	if s := o.spool(); s.Home != originID || o.generation() != 7 || len(s.Stops) > 0 {
		t.Errorf("a home of the same generation: %+v", s)
	}
	ahead := pb.Clone(next).(*proto.Bundle)
	ahead.Generation = 8
	if a := h.take(ahead, nil); a.GetCode() != proto.CodeBusy {
		t.Errorf("of a generation that the home does not know: %v", a)
	}
	o.answer(l, h.take(next, nil))
	o.restart()
	if s := o.spool(); s.Waiting != 0 || s.Home != originID || o.generation() != 7 {
		t.Errorf("%+v", s)
	}
}

// Only what was never sent is cancelled; nothing that may have been sent ends like that.
func TestPurgeASpool(t *testing.T) {
	bounced := make(chan Bounce, 4)
	o := newFixture(t, Config{Bounced: func(_ context.Context, b Bounce) { bounced <- b }})
	o.forward("a", "b")
	l := o.lane(homeID)
	o.bundle(l)
	o.forward("c", "d", "e")
	refused := func(what string, err error) {
		t.Helper()
		if e := (*RefusedError)(nil); !errors.As(err, &e) {
			t.Errorf("%s: %v", what, err)
		}
	}
	refused("removed with mail", o.RemoveBox(t.Context(), "out:agent:ceo"))
	refused("made by hand", o.SetBox(t.Context(), box.BoxSettings{Name: "out:agent:x", Kind: box.Spool}))
	if n, err := o.Purge(t.Context(), "out:agent:ceo", 2, "why not"); n != 2 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	for range 2 {
		if p, err := proto.ParseLetter((<-bounced).Letter); err != nil || !strings.Contains(string(p.Body), `"state":"CANCELLED","cause":"purged","reason":"why not"`) {
			t.Errorf("%s, %v", p.Body, err)
		}
	}
	if m := o.bundle(l); m.GetRuns()[0].GetFirst() != 5 || m.GetPrevNumber() != 2 {
		t.Errorf("after them: %v", m)
	}
	if n, err := o.Purge(t.Context(), "out:agent:ceo", 9, ""); n != 0 || err != nil {
		t.Errorf("%d that were sent, %v", n, err)
	}
	if s := o.spool(); s.Waiting != 3 {
		t.Errorf("%+v", s)
	}
	if sent, err := o.Send(t.Context(), []Item{{Box: "out:agent:ceo", Letter: o.letter("x", nil)}}, false); err != nil || sent[0].Code != proto.CodeNoHandler {
		t.Errorf("%+v, %v", sent, err)
	}
}

// What cannot be forwarded is refused with a code.
func TestRefusedForwards(t *testing.T) {
	o := newFixture(t, Config{})
	first := o.letter("x", func(l *proto.Letter) { l.Dedupe = []byte("k") })
	past := o.letter("x", func(l *proto.Letter) { l.Created, l.NotAfter = 1, 2 })
	sent, err := o.Forward(t.Context(), []Outgoing{
		{Box: "agent:ceo", Home: homeID, Letter: []byte{1}},
		{Box: "", Home: homeID, Letter: first},
		{Box: strings.Repeat("b", proto.MaxTarget+1), Home: homeID, Letter: first},
		{Box: "agent:ceo", Home: homeID, Letter: first},
		{Box: "agent:ceo", Home: homeID, Letter: first},
		{Box: "agent:ceo", Home: homeID, Letter: past},
		{Box: "agent:later", Letter: o.letter("x", nil)},
		{Box: strings.Repeat("b", proto.MaxTarget), Home: homeID, Letter: o.letter("y", nil)},
	}, true)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []Sent{
		{Code: proto.CodeBadForm, ForGood: true}, {Code: proto.CodeBadForm, ForGood: true}, {Code: proto.CodeBadForm, ForGood: true},
		{}, {Duplicate: true}, {Code: proto.CodeExpired, ForGood: true}, {}, {},
	} {
		if got := sent[i]; got.Code != want.Code || got.ForGood != want.ForGood || got.Duplicate != want.Duplicate {
			t.Errorf("mail %d: %+v, want %+v", i, got, want)
		}
	}
	if sent[4].ID != sent[3].ID {
		t.Errorf("%v is a duplicate of %v", sent[4].ID, sent[3].ID)
	}
	if _, err := o.Forward(t.Context(), make([]Outgoing, MaxSend+1), false); err == nil {
		t.Error("too many at once")
	}
	if sent, err := o.Forward(t.Context(), nil, false); sent != nil || err != nil {
		t.Errorf("nothing: %v, %v", sent, err)
	}
	if err := o.SetHome(t.Context(), "agent:later", homeID, 0); err != nil {
		t.Fatal(err)
	}
	boxes := []string{o.bundle(o.lane(homeID)).GetBox(), o.bundle(o.lane(homeID)).GetBox(), o.bundle(o.lane(homeID)).GetBox()}
	if !slices.Contains(boxes, "agent:later") {
		t.Errorf("its home was found, and it is not sent: %.40q", boxes)
	}
}

// Bounces that the mail of one node causes leave spools to what that of others causes, whichever boxes it
// names, and all bounces leave some to other mail.
func TestSpoolsOfBounces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, spooled := newFixture(t, Config{Self: originID}), 0
		wait := func(cause uint32, n int) {
			t.Helper()
			if err := f.call(t.Context(), func(box.Now) {
				for ; spooled < n; spooled++ {
					name := fmt.Sprint("agent:x", spooled)
					f.spools.targets[name] = &target{box: name, knownBox: knownBox{home: proto.PeerID{byte(spooled)}}, cause: cause}
					f.spools.origin.Add(name, chain.Mail{})
				}
			}); err != nil {
				t.Fatal(err)
			}
		}
		send := func(ends *Bounce, want proto.Code) {
			t.Helper()
			o := Outgoing{Box: fmt.Sprintf("agent:%d-%d", spooled, ends.causedBy()), Home: homeID, Letter: f.letter("x", nil), Ends: ends}
			if sent, err := f.Forward(t.Context(), []Outgoing{o}, false); err != nil || sent[0].Code != want {
				t.Errorf("with %d spools: %+v, %v, want %v", spooled, sent, err, want)
			}
		}
		one, other, third := &Bounce{cause: 1}, &Bounce{cause: 2}, &Bounce{cause: 3}
		if err := f.call(t.Context(), func(box.Now) {
			for i := range byte(3) {
				f.originOf(proto.PeerID{1, i})
			}
		}); err != nil {
			t.Fatal(err)
		}
		if err := f.SetHome(t.Context(), "agent:empty", homeID, 0); err != nil {
			t.Fatal(err)
		}
		wait(1, MaxSpools*4/5)
		send(one, proto.CodeOK)
		wait(1, MaxSpools*5/6)
		send(one, proto.CodeFull)
		send(other, proto.CodeOK)
		send(nil, proto.CodeOK)
		wait(2, MaxSpools*10/11)
		send(third, proto.CodeFull)
		send(nil, proto.CodeOK)
		empty := Outgoing{Box: "agent:empty", Home: homeID, Letter: f.letter("x", nil), Ends: third}
		if sent, err := f.Forward(t.Context(), []Outgoing{empty}, false); err != nil || sent[0].Code != proto.CodeFull {
			t.Errorf("into an empty spool that is there: %+v, %v", sent, err)
		}
	})
}
