package mail

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/mail/chain"
	"github.com/balefire/balefire/proto"
	pb "google.golang.org/protobuf/proto"
)

// letters returns n small letters that end in an hour.
func letters(t testing.TB, now time.Time, n int) (all [][]byte) {
	for i := range n {
		l := &proto.Letter{Class: proto.Normal, ID: proto.MailID{1, 14: byte(i >> 8), 15: byte(i)}, Created: now.UnixMilli(), NotAfter: now.Add(time.Hour).UnixMilli(), Body: fmt.Append(nil, i)}
		b, err := proto.AppendLetter(nil, l)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, b)
	}
	return all
}

// bundleOf returns a bundle of the mails first to first+n-1 of boot 1 for agent:a.
func bundleOf(t testing.TB, now time.Time, first uint64, n int) *proto.Bundle {
	m := &proto.Bundle{Number: first, Box: "agent:a", Generation: 1, Chain: proto.Normal, Runs: []*proto.Run{{Boot: 1, First: first, Count: uint32(n)}}, Letters: bytes.Join(letters(t, now, n), nil)}
	if first > 1 {
		m.PrevBoot, m.PrevNumber = 1, first-1
	}
	return m
}

// newSim returns an idle simulator: its home has the boxes agent:a and agent:b.
func newSim(t testing.TB) *sim {
	s := simulate(0, 0)
	if s.failed != "" {
		t.Fatal(s.failed)
	}
	return s
}

// A bundle that no node sends is an error, and writes nothing.
func TestBadBundles(t *testing.T) {
	s := newSim(t)
	h, now := s.home(), s.clock.Clock().Now()
	before := len(h.log.recs)
	for _, tt := range []struct {
		name string
		edit func(m *proto.Bundle)
		want error
	}{
		{"no number", func(m *proto.Bundle) { m.Number = 0 }, proto.ErrBadMail},
		{"no box", func(m *proto.Bundle) { m.Box = "" }, proto.ErrBadMail},
		{"a spool", func(m *proto.Bundle) { m.Box = "out:agent:a" }, proto.ErrBadMail},
		{"a box of 257 bytes", func(m *proto.Bundle) { m.Box = strings.Repeat("b", 257) }, proto.ErrBadMail},
		{"no class", func(m *proto.Bundle) { m.Chain = 0 }, proto.ErrBadMail},
		{"class 5", func(m *proto.Bundle) { m.Chain = 5 }, proto.ErrBadMail},
		{"no mail", func(m *proto.Bundle) { m.Runs, m.Letters = nil, nil }, proto.ErrBadMail},
		{"prev above n", func(m *proto.Bundle) { m.PrevBoot, m.PrevNumber = 1, 3 }, proto.ErrBadMail},
		{"prev is n", func(m *proto.Bundle) { m.PrevBoot, m.PrevNumber = 1, 1 }, proto.ErrBadMail},
		{"prev without a boot", func(m *proto.Bundle) { m.PrevNumber = 1 }, proto.ErrBadMail},
		{"513 mails", func(m *proto.Bundle) {
			m.Runs[0].Count, m.Letters = 513, bytes.Join(letters(t, now, 513), nil)
		}, proto.ErrBadMail},
		{"a run of 2^32", func(m *proto.Bundle) { m.Runs[0].Count = math.MaxUint32 }, proto.ErrBadMail},
		{"runs beyond 64 bits", func(m *proto.Bundle) { m.Runs[0].First = math.MaxUint64 }, proto.ErrBadMail},
		{"runs that fall", func(m *proto.Bundle) { m.Runs = append(m.Runs, &proto.Run{Boot: 1, First: 1, Count: 1}) }, proto.ErrBadMail},
		{"a letter too few", func(m *proto.Bundle) { m.Runs[0].Count++ }, proto.ErrBadLetter},
		{"a letter too many", func(m *proto.Bundle) { m.Runs[0].Count-- }, proto.ErrBadMail},
		{"half a letter", func(m *proto.Bundle) { m.Letters = m.Letters[:len(m.Letters)-1] }, proto.ErrBadLetter},
		{"a second letter that does not parse", func(m *proto.Bundle) { m.Letters[len(m.Letters)/2+1] = 9 }, proto.ErrBadLetter},
		{"a letter that ends in 1970", func(m *proto.Bundle) { clear(m.Letters[20:36]) }, proto.ErrBadMail},
		{"a letter that ends after the calendar", func(m *proto.Bundle) {
			copy(m.Letters[20:], bytes.Repeat([]byte{0x7f}, 16))
		}, proto.ErrBadMail},
	} {
		m := bundleOf(t, now, 1, 2)
		tt.edit(m)
		a, err := h.Arrive(originID, m, nil)
		if !errors.Is(err, tt.want) || a != nil {
			t.Errorf("%s: %v, %v", tt.name, a, err)
		}
	}
	if _, err := h.Arrive(proto.PeerID{}, bundleOf(t, now, 1, 2), nil); !errors.Is(err, proto.ErrBadMail) {
		t.Errorf("of nobody: %v", err)
	}
	h.work()
	if len(h.log.recs) != before {
		t.Errorf("%d records were written", len(h.log.recs)-before)
	}
}

// The home answers what it has on disk, and nothing else.
func TestTake(t *testing.T) {
	s := newSim(t)
	h, now := s.home(), s.clock.Clock().Now()
	var admit Admit
	arrive := func(m *proto.Bundle) *Arrival {
		t.Helper()
		a, err := h.Arrive(originID, m, admit)
		if err != nil {
			t.Fatal(err)
		}
		h.step()
		return a
	}
	answered := func(a *Arrival) *proto.Bundled {
		t.Helper()
		select {
		case <-a.done:
		default:
			return nil
		}
		if err := a.answer.Check(); err != nil || a.err != nil {
			t.Fatalf("%v: %v, %v", a.answer, err, a.err)
		}
		return a.answer
	}
	want := func(name string, a *Arrival, code proto.Code, upTo uint64, skipped ...uint64) {
		t.Helper()
		got := answered(a)
		var refused []uint64
		for _, x := range got.GetSkipped() {
			refused = append(refused, x.GetNumber())
		}
		if got == nil || got.GetCode() != code || got.UpTo().Counter != upTo || fmt.Sprint(refused) != fmt.Sprint(skipped) {
			t.Errorf("%s: %v", name, got)
		}
	}
	first := arrive(bundleOf(t, now, 1, 3))
	if len(h.log.queue) != 1 || len(h.log.queue[0]) != 4 { // with the record of the origin
		t.Errorf("a bundle is %d calls of Queue", len(h.log.queue))
	}
	second := arrive(bundleOf(t, now, 4, 2))
	again := arrive(bundleOf(t, now, 1, 3))
	if answered(first) != nil || answered(second) != nil || answered(again) != nil {
		t.Fatal("answered before it is on disk")
	}
	h.work()
	want("three", first, proto.CodeOK, 3)
	want("what follows, while they are written", second, proto.CodeOK, 5)
	want("the same again", again, proto.CodeOK, 3)
	before := len(h.log.recs)
	want("behind what is missing", arrive(bundleOf(t, now, 7, 2)), proto.CodeBusy, 0)
	want("known ones", arrive(bundleOf(t, now, 1, 5)), proto.CodeOK, 5)
	for _, tt := range []struct {
		name string
		edit func(m *proto.Bundle)
		want proto.Code
	}{
		{"no such box", func(m *proto.Bundle) { m.Box = "agent:other" }, proto.CodeNoHandler},
		{"of an earlier generation", func(m *proto.Bundle) { m.Generation = 0 }, proto.CodeMoved},
		{"of a later generation", func(m *proto.Bundle) { m.Generation = 2 }, proto.CodeBusy},
		{"a letter of a later version", func(m *proto.Bundle) { m.Letters[0] = 9 }, proto.CodeUnknownVersion},
		{"a letter with an unknown flag", func(m *proto.Bundle) { m.Letters[2] = 0x80 }, proto.CodeUnknownVersion},
	} {
		m := bundleOf(t, now, 6, 2)
		tt.edit(m)
		want(tt.name, arrive(m), tt.want, 0)
	}
	if h.work(); len(h.log.recs) != before {
		t.Errorf("%d records were written for nothing", len(h.log.recs)-before)
	}
	admit = func(_ string, l *proto.Letter) (proto.Code, string) {
		switch string(l.Body) {
		case "1":
			return proto.CodeTooLarge, strings.Repeat("é", 300)
		case "3":
			return proto.CodeDraining, "later"
		}
		return proto.CodeOK, ""
	}
	a := arrive(bundleOf(t, now, 6, 5))
	h.work()
	want("one refused for good, another for now", a, proto.CodeDraining, 8, 7)
	if d := answered(a).GetSkipped()[0]; d.GetCode() != proto.CodeTooLarge || len(d.GetDetail()) > 256 || len(d.GetDetail()) < 250 {
		t.Errorf("%v", d)
	}
	want("the same again", arrive(bundleOf(t, now, 6, 3)), proto.CodeOK, 8, 7)
	admit = nil
	h.start() // nothing of it was in memory only
	want("after a restart", arrive(bundleOf(t, now, 6, 3)), proto.CodeOK, 8, 7)
	a = arrive(bundleOf(t, now, 9, 12))
	h.work()
	want("until its origin has its share of the box", a, proto.CodeFull, 12)
	before = len(h.log.recs)
	want("a full box", arrive(bundleOf(t, now, 13, 3)), proto.CodeFull, 0)
	if h.work(); len(h.log.recs) != before {
		t.Error("mail for a full box was written")
	}
}

// What is refused for good is new work too: a node that may send nothing does not fill the
// disk behind the reserve.
func TestRefusedMailOnAFullDisk(t *testing.T) {
	s := newSim(t)
	h, now := s.home(), s.clock.Clock().Now()
	refused := func(string, *proto.Letter) (proto.Code, string) { return proto.CodeDenied, "not you" }
	take := func(first uint64) *proto.Bundled {
		t.Helper()
		a, err := h.Arrive(originID, bundleOf(t, now, first, 3), refused)
		if err != nil {
			t.Fatal(err)
		}
		h.step()
		h.work()
		if a.err != nil || a.answer.Check() != nil {
			t.Fatalf("%v, %v", a.answer, a.err)
		}
		return a.answer
	}
	take(1) // with the record of the origin
	h.log.full = true
	before := len(h.log.recs)
	if m := take(4); m.GetCode() != proto.CodeFull || len(m.GetSkipped()) > 0 || len(h.log.recs) != before {
		t.Errorf("%v, %d records", m, len(h.log.recs)-before)
	}
	h.log.full = false
	if m := take(4); m.GetCode() != proto.CodeOK || m.UpTo().Counter != 6 || len(m.GetSkipped()) != 3 {
		t.Errorf("%v", m)
	}
}

// Without a box, what is refused for good ends, up to the first mail that is not.
func TestRefusedMailWithoutABox(t *testing.T) {
	s := newSim(t)
	h, now := s.home(), s.clock.Clock().Now()
	for _, tt := range []struct {
		wait string // the body of the mail that is not refused
		code proto.Code
		upTo uint64
	}{{"", proto.CodeOK, 3}, {"2", proto.CodeNoHandler, 2}, {"0", proto.CodeNoHandler, 0}} {
		m := bundleOf(t, now, 1, 3)
		m.Box = "agent:other"
		a, err := h.Arrive(originID, m, func(_ string, l *proto.Letter) (proto.Code, string) {
			if string(l.Body) == tt.wait {
				return proto.CodeNoHandler, "no box"
			}
			return proto.CodeDenied, "not you"
		})
		if err != nil {
			t.Fatal(err)
		}
		before := len(h.log.recs)
		h.step()
		h.work()
		if got := a.answer; got.Check() != nil || got.GetCode() != tt.code || got.UpTo().Counter != tt.upTo || len(got.GetSkipped()) != int(tt.upTo) || len(h.log.recs) != before {
			t.Errorf("all but %q: %v", tt.wait, got)
		}
	}
}

// A sender that lost the answer of a box is told what that had, also when it is gone.
func TestMailOfABoxThatIsGone(t *testing.T) {
	s := newSim(t)
	h, now := s.home(), s.clock.Clock().Now()
	arrive := func(m *proto.Bundle, refused string) *proto.Bundled {
		t.Helper()
		a, err := h.Arrive(originID, m, func(_ string, l *proto.Letter) (proto.Code, string) {
			if string(l.Body) == refused {
				return proto.CodeDenied, "not you"
			}
			return proto.CodeOK, ""
		})
		if err != nil {
			t.Fatal(err)
		}
		h.step()
		h.work()
		return a.answer
	}
	first := arrive(bundleOf(t, now, 1, 3), "1")
	if first.UpTo().Counter != 3 || len(first.GetSkipped()) != 1 {
		t.Fatalf("%v", first)
	}
	id, _ := h.state.Find("agent:a")
	if err := h.state.Apply(1<<40, box.EncodeRemoveBox(id), new(box.Output)); err != nil {
		t.Fatal(err)
	}
	h.chains.Drop("agent:a") // as of a box whose name never comes back
	if again := arrive(bundleOf(t, now, 1, 3), "0"); again.Check() != nil || again.UpTo() != first.UpTo() || len(again.GetSkipped()) != 1 || again.GetSkipped()[0].GetNumber() != 2 || again.GetCode() != proto.CodeOK {
		t.Errorf("again: %v", again)
	}
	if more := arrive(bundleOf(t, now, 1, 5), ""); more.Check() != nil || more.UpTo() != first.UpTo() || more.GetCode() != proto.CodeNoHandler {
		t.Errorf("with two that are new: %v", more)
	}
}

// A chain whose mails cannot be read stops; the others go on.
func TestUnreadableSpool(t *testing.T) {
	s := newSim(t)
	o := s.nodes[0]
	for range 20 {
		s.create(o)
		o.work()
	}
	var lost box.Kept
	for i := range o.state.Mails(o.spools.targets["agent:a"].id, 0, 0) {
		lost, _ = o.state.Mail(o.spools.targets["agent:a"].id, i.Seq)
		break
	}
	o.log.recs[lost.Place&(1<<offsetBits-1)-1] = nil
	l := o.lane(s.home().id)
	bundles := 0
	for x := l.take(math.MaxInt); x != nil; x = l.take(math.MaxInt) {
		if _, err := l.fetch(s.ended, x); err != nil {
			l.unread(o.now(), x, err)
			continue
		}
		bundles++
	}
	stopped := 0
	for t := range o.spools.all() {
		for _, c := range t.chains {
			if c.stop.Code == proto.CodeInternal {
				stopped++
			}
		}
	}
	if stopped != 1 || bundles < 4 {
		t.Errorf("%d chains are stopped, %d bundles are sent", stopped, bundles)
	}
}

// There are not more spools than there may be: an empty one makes space, at last one with receipts.
func TestTooManySpools(t *testing.T) {
	s := newSim(t)
	o := s.nodes[0]
	kept, now := o.spools.targets[simBoxes[0]].id, time.UnixMilli(1<<40)
	letter := bundleOf(t, now, 1, 1).GetLetters()
	for _, rec := range [][]byte{
		box.AppendMail(nil, &box.Mail{Box: kept, At: now.UnixMilli(), Chain: proto.Normal, Number: proto.Seq{Boot: 1, Counter: 1}, Letter: letter}), box.EncodeTaken(kept, []box.Receipt{{Seq: 1}}),
	} {
		if err := o.state.Apply(1, rec, &o.out); err != nil {
			t.Fatal(err)
		}
	}
	if o.out.Reset(); o.state.Receipts(kept) != 1 {
		t.Fatal("no receipt")
	}
	for i := len(o.spools.targets); i < MaxSpools; i++ {
		name := fmt.Sprint("agent:x", i)
		o.spools.targets[name] = &target{box: name}
		o.spools.origin.Add(name, chain.Mail{})
	}
	for range 20 { // in any order
		o.out.Reset()
		if err := o.makeSpace(); err != nil || len(o.out.Records) != 1 || bytes.Equal(o.out.Records[0], box.EncodeRemoveBox(kept)) {
			t.Errorf("records %x, %v", o.out.Records, err)
		}
	}
	for _, name := range simBoxes[1:] {
		o.spools.origin.Add(name, chain.Mail{})
	}
	o.out.Reset()
	if err := o.makeSpace(); err != nil || len(o.out.Records) != 1 || !bytes.Equal(o.out.Records[0], box.EncodeRemoveBox(kept)) {
		t.Errorf("records %x, %v", o.out.Records, err)
	}
	for _, name := range simBoxes {
		o.spools.origin.Add(name, chain.Mail{})
	}
	if e := (*RefusedError)(nil); !errors.As(o.makeSpace(), &e) || e.Code != proto.CodeFull {
		t.Errorf("%v", e)
	}
}

// FuzzTake hands arbitrary bundles to a home: a typed error, or an answer that an origin takes.
func FuzzTake(f *testing.F) {
	now := time.UnixMilli(1 << 40)
	for _, m := range []*proto.Bundle{bundleOf(f, now, 1, 1), bundleOf(f, now, 1, 3), bundleOf(f, now, 4, 2)} {
		b, err := proto.Encode(nil, m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m := new(proto.Bundle)
		if proto.Decode(b, m) != nil {
			return
		}
		s := newSim(t)
		h := s.home()
		before := len(h.log.recs)
		for range 2 {
			a, err := h.Arrive(originID, pb.Clone(m).(*proto.Bundle), s.admit)
			if err != nil {
				if !errors.Is(err, proto.ErrBadMail) && !errors.Is(err, proto.ErrBadLetter) {
					t.Errorf("%v is not an error of the package", err)
				}
				if h.work(); len(h.log.recs) != before {
					t.Error("a bad bundle was written")
				}
				return
			}
			h.work()
			if err := a.answer.Check(); err != nil || a.err != nil {
				t.Errorf("%v: %v, %v", a.answer, err, a.err)
			}
		}
		h.start()
		if s.failed != "" {
			t.Error(s.failed)
		}
	})
}

// FuzzAnswer hands arbitrary answers to an origin: a typed error changes nothing, and whatever
// was said, the spool can be read and sent.
func FuzzAnswer(f *testing.F) {
	for _, m := range []*proto.Bundled{
		{Number: 1, Boot: 1, UpToNumber: 2}, {Number: 1, Code: proto.CodeFull, Boot: 1, UpToNumber: 1}, {Number: 1, Code: proto.CodeMoved, Home: homeID[:], Generation: 9},
		{Number: 1, Boot: 1, UpToNumber: 2, Skipped: []*proto.Skipped{{Boot: 1, Number: 1, Code: proto.CodeDenied, Detail: "no"}}},
	} {
		b, err := proto.Encode(nil, m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m := new(proto.Bundled)
		if proto.Decode(b, m) != nil {
			return
		}
		s := newSim(t)
		o := s.nodes[0]
		for range 4 {
			s.create(o)
			o.work()
		}
		waiting := func() (n int) {
			for t := range o.spools.all() {
				n += o.waitingIn(t)
			}
			return n
		}
		l := o.lane(s.home().id)
		for l.take(1) != nil {
		}
		before := waiting()
		err := m.Check()
		if err == nil {
			err = l.answer(o.now(), m)
		}
		if err != nil && (!errors.Is(err, proto.ErrBadMail) && !errors.Is(err, chain.ErrAnswer) || waiting() != before) {
			t.Errorf("%v, and %d of %d wait", err, waiting(), before)
		}
		o.work()
		o.start()
		if s.failed != "" {
			t.Error(s.failed)
		}
	})
}
