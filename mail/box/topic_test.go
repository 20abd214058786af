package box

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/balefire/balefire/proto"
)

// topic makes box 2, a topic, with these subscriptions from 1 on.
func (b *bench) topic(settings BoxSettings, subs ...SubSettings) {
	b.Helper()
	settings.Name, settings.Kind = "topic:orders", Topic
	if r := b.apply(EncodeBox(2, &settings)); r.Code != proto.CodeOK {
		b.Fatalf("%+v", r)
	}
	for i, s := range subs {
		s.Name = or(s.Name, fmt.Sprint("sub", i+1))
		if r := b.apply(EncodeSub(2, SubID(i+1), &s, Start{})); r.Code != proto.CodeOK {
			b.Fatalf("%+v", r)
		}
	}
}

func (b *bench) publish(subject string) uint64 {
	b.Helper()
	return b.mustSend(note{box: 2, subject: subject, ttl: 24 * time.Hour})
}

// waits returns what a subscription of box 2 has not read.
func (b *bench) waits(sub SubID) (out []uint64) {
	for m := range b.s.Mails(2, sub, 0) {
		out = append(out, m.Seq)
	}
	return out
}

func TestEachSubscriptionReadsAll(t *testing.T) {
	b := newBench(t)
	b.topic(BoxSettings{}, SubSettings{}, SubSettings{Filter: "eu.>"}, SubSettings{Filter: "*.created"})
	for _, s := range []string{"eu.created", "us.created", "eu.deleted", ""} {
		b.publish(s)
	}
	b.want(b.attach(2, 1), 1, 2, 3, 4)
	x := b.attach(2, 2)
	h := b.want(x, 1, 3)[0].Handle
	b.want(b.attach(2, 3), 1, 2)
	if code := b.settle(Settlement{Box: 2, Sub: 2, Handle: h, Op: Ack}); code != proto.CodeOK {
		t.Error(code)
	}
	if i, _ := b.s.Info(2); i.Waiting != 4 {
		t.Error("an ack of one subscription ended the mail")
	}
	b.restart()
	b.want(b.attach(2, 2), 3)
	if i, _ := b.s.SubInfo(2, 2); b.s.find(2, 2).floor != 3 || i.Leased != 1 || len(i.Readers) != 1 {
		t.Errorf("%+v", i)
	}
}

func TestStarts(t *testing.T) {
	for _, tt := range []struct {
		name string
		from Start
		want []uint64
	}{
		{"new", Start{}, nil},
		{"first", Start{At: StartFirst}, []uint64{1, 2, 3, 4}},
		{"a sequence", Start{At: StartSeq, Seq: 3}, []uint64{3, 4}},
		{"a sequence that is gone", Start{At: StartSeq}, []uint64{1, 2, 3, 4}},
		{"a sequence that is to come", Start{At: StartSeq, Seq: 99}, nil},
		{"a time", Start{At: StartTime, Ms: start + 60_000}, []uint64{2, 3, 4}},
		{"a time to come", Start{At: StartTime, Ms: start + 3600_000}, nil},
		{"the last of each subject", Start{At: StartLast}, []uint64{3, 4}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t)
			b.topic(BoxSettings{})
			for _, s := range []string{"a", "b", "a", "b"} {
				b.publish(s)
				b.wait(time.Minute)
			}
			b.apply(EncodeSub(2, 1, &SubSettings{Name: "s"}, tt.from))
			x := b.attach(2, 1)
			b.want(x, tt.want...)
			b.publish("c")
			b.want(x, 5)
			// A seek finds the same place, whatever was read.
			b.apply(EncodeSeek(2, 1, Start{At: StartFirst}))
			b.want(x, 1, 2, 3, 4, 5)
			if x.held != 5 {
				t.Errorf("it holds %d after a seek", x.held)
			}
		})
	}
}

func TestRetention(t *testing.T) {
	drops := func(b *bench) (n int) {
		for _, e := range b.out.Ends {
			if e.State == Dropped {
				n++
			}
		}
		return n
	}
	b := newBench(t)
	b.topic(BoxSettings{Mails: 3, Age: time.Hour}, SubSettings{}, SubSettings{})
	for range 3 {
		b.publish("a")
	}
	x := b.attach(2, 1)
	h := b.want(x, 1, 2, 3)[0].Handle
	b.settle(Settlement{Box: 2, Sub: 1, Handle: h, Op: Ack})
	b.publish("a") // drops mail 1, which subscription 2 has not read
	if n := drops(b); n != 1 || len(b.out.Bounces) != 0 {
		t.Errorf("%d dropped: %+v", n, b.out)
	}
	b.wait(time.Hour - time.Second)
	if n := drops(b); n != 0 {
		t.Errorf("%d dropped early", n)
	}
	b.wait(10 * time.Second)
	b.wait(10 * time.Second)
	if i, _ := b.s.Info(2); i.Waiting != 0 || i.EndedAs(Dropped) != 4 {
		t.Errorf("after an hour: %+v", i)
	}
	b = newBench(t)
	b.topic(BoxSettings{Bytes: 200})
	for range 5 {
		b.publish("a")
	}
	if i, _ := b.s.Info(2); i.Bytes > 200 || i.Waiting != 3 || i.EndedAs(Done) != 2 {
		t.Errorf("by bytes, without readers: %+v", i)
	}
}

func TestInterest(t *testing.T) {
	b := newBench(t)
	b.topic(BoxSettings{Interest: true, Mails: 2}, SubSettings{}, SubSettings{Filter: "b"})
	b.publish("c")
	b.publish("b")
	if r := b.send(note{box: 2, subject: "a"}); r.Code != proto.CodeFull {
		t.Errorf("a full topic: %+v", r)
	}
	x, y := b.attach(2, 1), b.attach(2, 2)
	for _, d := range b.want(x, 1, 2) {
		b.settle(Settlement{Box: 2, Sub: 1, Handle: d.Handle, Op: Ack})
	}
	if i, _ := b.s.Info(2); i.Waiting != 1 || i.EndedAs(Done) != 1 {
		t.Errorf("%+v", i)
	}
	b.want(y, 2)
	b.apply(EncodeRemoveSub(2, 2))
	if len(b.out.Lost) != 1 || b.out.Lost[0] != y {
		t.Error("the session of a removed subscription was not told")
	}
	if got := b.deliver(y, 1); got != nil {
		t.Errorf("it is still given %v", got)
	}
	b.apply(EncodeRemoveSub(2, 1))
	b.publish("a") // nobody wants it
	if i, _ := b.s.Info(2); i.Waiting != 0 || i.EndedAs(Done) != 3 || len(i.Subs) != 0 {
		t.Errorf("%+v", i)
	}
}

func TestModes(t *testing.T) {
	b := newBench(t)
	b.topic(BoxSettings{}, SubSettings{Mode: Exclusive}, SubSettings{Mode: Failover})
	x := b.attach(2, 1)
	var held *HeldError
	if _, err := b.s.Attach(2, 1, "other", 0, 1); !errors.As(err, &held) || held.Reader != x.Reader {
		t.Errorf("a second session of an exclusive subscription: %v", err)
	}
	b.s.Detach(b.now, x, false, &b.out)
	b.attach(2, 1)
	if _, err := b.s.Attach(2, 9, "r", 0, 1); !errors.Is(err, ErrNotFound) {
		t.Errorf("no such subscription: %v", err)
	}
	low, old := b.attach(2, 2), b.attach(2, 2)
	low.priority = -1
	b.publish("a")
	b.want(low)
	b.want(old, 1)
	b.publish("a")
	b.out.Reset()
	b.s.Detach(b.now, old, false, &b.out)
	b.commit()
	b.want(low, 1, 2)
}

func TestALeavingSessionEndsWithItsLastDelivery(t *testing.T) {
	b := newBench(t)
	b.topic(BoxSettings{}, SubSettings{Mode: Exclusive}, SubSettings{Mode: Failover})
	b.publish("a")
	b.publish("a")
	x, _ := b.s.Attach(2, 1, "x", 0, 1)
	first := b.want(x, 1)[0]
	b.s.Leave(x, &b.out)
	b.want(x) // nothing more
	var held *HeldError
	if _, err := b.s.Attach(2, 1, "y", 0, 1); !errors.As(err, &held) || held.Reader != "x" {
		t.Errorf("it still has a mail, but somebody else may read: %v", err)
	}
	if again, err := b.s.Attach(2, 1, "x", 0, 1); err != nil || again != x {
		t.Errorf("its reader cannot continue: %v", err)
	}
	second := b.want(x, 2)[0]
	b.s.Leave(x, &b.out)
	b.settle(Settlement{Box: 2, Sub: 1, Handle: first.Handle, Op: Ack})
	if i, _ := b.s.SubInfo(2, 1); i.Leased != 1 || len(i.Readers) != 1 {
		t.Errorf("%+v", i)
	}
	b.wait(time.Minute) // the other one lapses
	if i, _ := b.s.SubInfo(2, 1); i.Leased != 0 || len(i.Readers) != 0 {
		t.Errorf("%+v", i)
	}
	if code := b.settle(Settlement{Box: 2, Sub: 1, Handle: second.Handle, Op: Ack}); code != proto.CodeOK {
		t.Errorf("late acknowledgment, nobody else was given it: %v", code)
	}

	old, next := b.attach(2, 2), b.attach(2, 2)
	b.settle(Settlement{Box: 2, Sub: 2, Handle: b.want(old, 1, 2)[0].Handle, Op: Ack})
	b.s.Leave(old, &b.out)
	b.want(next) // old has mail 2
	b.settle(Settlement{Box: 2, Sub: 2, Handle: Handle{2, 1, b.s.given}, Op: Ack})
	b.publish("a")
	b.want(next, 3)

	b.s.Leave(next, &b.out)
	b.s.Detach(b.now, next, false, &b.out)
	b.s.Leave(next, &b.out) // nothing happens
	if i, _ := b.s.SubInfo(2, 2); len(i.Readers) != 0 {
		t.Errorf("%+v", i)
	}
}

// What a reader had before it continued its session gives that session no credit.
func TestAContinuedSessionHasTheCreditOfItsReader(t *testing.T) {
	b := newBench(t)
	for range 5 {
		b.mustSend(note{ttl: time.Hour})
	}
	x, _ := b.s.Attach(1, 0, "x", 0, 1)
	first := b.want(x, 1)[0]
	b.s.Leave(x, &b.out)
	if again, err := b.s.Attach(1, 0, "x", 0, 1); err != nil || again != x {
		t.Fatal(err)
	}
	second := b.want(x, 2)[0]
	b.must(Ack, first.Handle)
	b.want(x)
	b.must(Ack, second.Handle)
	b.want(x, 3)
}

func TestDeadLettersOfATopic(t *testing.T) {
	b := newBench(t)
	b.topic(BoxSettings{Mails: 2}, SubSettings{Attempts: 1}, SubSettings{})
	b.publish("a")
	x := b.attach(2, 1)
	if code := b.settle(Settlement{Box: 2, Sub: 1, Handle: b.want(x, 1)[0].Handle, Op: Nack, Reason: "no"}); code != proto.CodeOK {
		t.Fatal(code)
	}
	if len(b.out.Bounces) != 1 || b.out.Bounces[0].Sub != 1 || b.out.Bounces[0].Reason != "no" {
		t.Errorf("bounces %+v", b.out.Bounces)
	}
	if !slices.Equal(b.waits(2), []uint64{1}) || len(b.waits(1)) != 0 {
		t.Error("the mail ended for the other subscription, or not for this one")
	}
	b.publish("a")
	b.publish("a") // drops mail 1: the dead letter stays
	dead := slices.Collect(b.s.DeadLetters(2, 1, 0))
	if len(dead) != 1 || dead[0].Seq != 1 || dead[0].Reader == "" {
		t.Fatalf("%+v", dead)
	}
	kept := records(b.s)
	if !slices.ContainsFunc(kept, func(k Kept) bool { return k.Seq == 1 && k.Place == dead[0].Place && k.Length == len(b.log[k.Place-1]) }) {
		t.Errorf("its record is not kept: %+v", kept)
	}
	// It may come again by a seek, and die again: it is one dead letter.
	b.apply(EncodeSeek(2, 1, Start{At: StartFirst}))
	b.settle(Settlement{Box: 2, Sub: 1, Handle: b.want(x, 2, 3)[0].Handle, Op: Final})
	b.apply(EncodeSeek(2, 1, Start{At: StartFirst}))
	before := b.s.bytes
	b.settle(Settlement{Box: 2, Sub: 1, Handle: b.want(x, 2, 3)[0].Handle, Op: Final})
	if i, _ := b.s.SubInfo(2, 1); i.Dead != 2 || b.s.bytes != before {
		t.Errorf("%+v, %d bytes, want %d", i, b.s.bytes, before)
	}
}

// TestArchive checks S17: the dead letters that are too many or too old are archived.
func TestArchive(t *testing.T) {
	b := newBench(t)
	b.apply(EncodeSub(1, 0, &SubSettings{Dead: 2, DeadAge: time.Hour}, Start{}))
	x := b.attach(1, 0)
	for range 4 {
		b.mustSend(note{})
		b.must(Final, b.deliver(x, 1)[0].Handle)
		b.wait(time.Second)
	}
	archived := func() (out []uint64) {
		b.out.Reset()
		b.s.Tick(b.now, &b.out)
		for _, a := range b.out.Archive {
			for _, d := range a.Letters {
				out = append(out, d.Seq)
			}
		}
		return out
	}
	b.now.Mono, b.now.Wall = b.now.Mono+20_000, b.now.Wall+20_000
	if got := archived(); !slices.Equal(got, []uint64{1, 2}) {
		t.Fatalf("too many: %v", got)
	}
	b.now.Mono, b.now.Wall = b.now.Mono+20_000, b.now.Wall+20_000
	if got := archived(); got != nil {
		t.Errorf("handed out twice: %v", got)
	}
	bytes := b.s.bytes
	b.apply(EncodeArchived(1, 0, []uint64{1, 2, 9}))
	if i, _ := b.s.SubInfo(1, 0); i.Dead != 2 || b.s.bytes != bytes/2 {
		t.Errorf("%+v, %d bytes", i, b.s.bytes)
	}
	b.apply(EncodeRedriven(1, 0, []uint64{4}))
	for d := range b.s.DeadLetters(1, 0, 0) {
		if d.Redriven != (d.Seq == 4) {
			t.Errorf("%+v", d)
		}
	}
	b.now.Mono, b.now.Wall = b.now.Mono+3600_000, b.now.Wall+3600_000
	if got := archived(); !slices.Equal(got, []uint64{3, 4}) {
		t.Errorf("too old: %v", got)
	}
}

// Those that died first are archived first, whatever their numbers, and those of one moment in
// their order, at most MaxSeqs at once.
func TestArchiveInOrderOfDeath(t *testing.T) {
	const all = 5*MaxSeqs + 3
	b := newBench(t)
	b.apply(EncodeSub(1, 0, &SubSettings{Dead: 7}, Start{}))
	for range all {
		b.mustSend(note{})
	}
	died := make([]uint64, 0, all) // in order of their deaths: two at a time, from the last mail on
	for seq := uint64(all); seq > 0; seq -= min(seq, 2) {
		b.now.Wall++
		list := []uint64{seq}
		if seq > 1 {
			list = []uint64{seq - 1, seq}
		}
		b.apply(appendEnd(nil, head{box: 1}, &end{state: Dead, cause: CauseFinal, at: b.now.Wall, seqs: list}))
		died = append(died, list...)
	}
	for len(died) > 7 {
		b.now.Mono += cleanPeriod.Milliseconds()
		b.out.Reset()
		b.s.Tick(b.now, &b.out)
		want := min(MaxSeqs, len(died)-7)
		if len(b.out.Archive) != 1 || len(b.out.Archive[0].Letters) != want {
			t.Fatalf("%d parts, want one of %d", len(b.out.Archive), want)
		}
		var got []uint64
		for _, d := range b.out.Archive[0].Letters {
			got = append(got, d.Seq)
		}
		if !slices.Equal(got, died[:want]) {
			t.Fatalf("archived %v, want %v", got, died[:want])
		}
		died = died[want:]
		slices.Sort(got)
		b.apply(EncodeArchived(1, 0, got))
		var left []uint64
		for d := range b.s.DeadLetters(1, 0, 0) {
			left = append(left, d.Seq)
		}
		if want := slices.Sorted(slices.Values(died)); !slices.Equal(left, want) {
			t.Fatalf("%v are left, want %v", left, want)
		}
	}
	b.now.Mono += cleanPeriod.Milliseconds()
	b.out.Reset()
	if b.s.Tick(b.now, &b.out); len(b.out.Archive) > 0 {
		t.Errorf("%d parts of those that are kept", len(b.out.Archive))
	}
}

func TestPurge(t *testing.T) {
	b := newBench(t)
	for range MaxSeqs + 3 {
		b.mustSend(note{})
	}
	x := b.attach(1, 0)
	b.deliver(x, 1)
	b.out.Reset()
	if n := b.s.Purge(b.now, 1, MaxSeqs+1, "old", &b.out); n != MaxSeqs+1 || len(b.out.Records) != 2 {
		t.Errorf("%d purged in %d records", n, len(b.out.Records))
	}
	b.commit()
	if i := b.info(); i.Waiting != 2 || i.EndedAs(Cancelled) != MaxSeqs+1 || len(b.out.Bounces) != MaxSeqs+1 || b.out.Bounces[0].Reason != "old" {
		t.Errorf("%+v, %d bounces (I21)", i, len(b.out.Bounces))
	}
	if n := b.s.Purge(b.now, 9, 1, "", &b.out); n != 0 {
		t.Errorf("%d purged of no box", n)
	}
}

func TestRemoveBox(t *testing.T) {
	b := newBench(t)
	b.mustSend(note{})
	b.mustSend(note{key: "a"})
	x := b.attach(1, 0)
	h := b.want(x, 1, 2)[0].Handle
	b.must(Final, h)
	if r := b.apply(EncodeRemoveBox(1)); r.Code != proto.CodeOK || len(b.out.Bounces) != 1 || len(b.out.Lost) != 1 {
		t.Errorf("%+v: %+v", r, b.out)
	}
	if _, ok := b.s.Find("agent:ceo"); ok || len(b.s.Boxes()) != 0 || b.s.bytes != 0 {
		t.Error("something is left")
	}
	if r := b.apply(EncodeRemoveBox(1)); r.Code != proto.CodeNoHandler {
		t.Errorf("removed twice: %+v", r)
	}
	if id := b.s.NewBox(); id != 2 {
		t.Errorf("the number %d is used again", id)
	}
}

func TestBoxesChangeWithinTheirLimits(t *testing.T) {
	b := newBench(t)
	b.topic(BoxSettings{}, SubSettings{Name: "s"})
	for _, tt := range []struct {
		name string
		rec  []byte
		want proto.Code
	}{
		{"another name", EncodeBox(1, &BoxSettings{Name: "x", Kind: Mailbox}), proto.CodeBusy},
		{"another kind", EncodeBox(1, &BoxSettings{Name: "agent:ceo", Kind: Topic}), proto.CodeBusy},
		{"other lanes", EncodeBox(1, &BoxSettings{Name: "agent:ceo", Kind: Mailbox, PerPeer: true}), proto.CodeBusy},
		{"a name that is used", EncodeBox(3, &BoxSettings{Name: "agent:ceo", Kind: Mailbox}), proto.CodeDuplicate},
		{"a number left out", EncodeBox(4, &BoxSettings{Name: "x", Kind: Mailbox}), proto.CodeBusy},
		{"a second subscription of a mailbox", EncodeSub(1, 1, &SubSettings{Name: "x"}, Start{}), proto.CodeBadForm},
		{"a mailbox that seeks", EncodeSeek(1, 0, Start{}), proto.CodeBadForm},
		{"a mailbox without itself", EncodeRemoveSub(1, 0), proto.CodeBadForm},
		{"a subscription without a name", EncodeSub(2, 2, &SubSettings{}, Start{}), proto.CodeBadForm},
		{"another name of a subscription", EncodeSub(2, 1, &SubSettings{Name: "x"}, Start{}), proto.CodeBusy},
		{"another filter", EncodeSub(2, 1, &SubSettings{Name: "s", Filter: "x"}, Start{}), proto.CodeBusy},
		{"a subscription's name that is used", EncodeSub(2, 2, &SubSettings{Name: "s"}, Start{}), proto.CodeDuplicate},
		{"a subscription's number left out", EncodeSub(2, 3, &SubSettings{Name: "x"}, Start{}), proto.CodeBusy},
		{"a subscription of no box", EncodeSub(9, 1, &SubSettings{Name: "x"}, Start{}), proto.CodeNoHandler},
		{"a seek of none", EncodeSeek(2, 9, Start{}), proto.CodeNoHandler},
	} {
		before := save(t, b.s)
		if r := b.apply(tt.rec); r.Code != tt.want || !bytes.Equal(before, save(t, b.s)) {
			t.Errorf("%s: %+v", tt.name, r)
		}
	}
	if r := b.apply(EncodeBox(1, &BoxSettings{Name: "agent:ceo", Kind: Mailbox, Mails: 7})); r.Code != proto.CodeOK || !r.Duplicate || b.info().Settings.Mails != 7 {
		t.Errorf("a change: %+v", r)
	}
	if id, ok := b.s.FindSub(2, "s"); !ok || id != 1 || b.s.NewSub(2) != 2 || b.s.NewSub(1) != 0 {
		t.Error("subscriptions are not found")
	}
}

func TestPause(t *testing.T) {
	b := newBench(t)
	x := b.attach(1, 0)
	b.apply(EncodeSub(1, 0, &SubSettings{Paused: true}, Start{}))
	b.mustSend(note{})
	if len(b.out.Ready) != 0 {
		t.Error("a paused session is woken")
	}
	b.want(x)
	b.apply(EncodeSub(1, 0, &SubSettings{}, Start{}))
	if !slices.Equal(b.out.Ready, []*Session{x}) {
		t.Error("it is not woken when the pause ends")
	}
	b.want(x, 1)
}

func TestCredit(t *testing.T) {
	b := newBench(t)
	x, err := b.s.Attach(1, 0, "r", 0, 2)
	if err != nil {
		t.Fatal(err)
	}
	for range 4 {
		b.mustSend(note{})
	}
	h := b.want(x, 1, 2)[0].Handle
	b.want(x)
	b.must(Ack, h)
	b.want(x, 3)
	b.out.Reset()
	b.s.AddCredit(x, 1, &b.out)
	if !slices.Equal(b.out.Ready, []*Session{x}) {
		t.Error("credit wakes nobody")
	}
	b.want(x, 4)
	b.s.AddCredit(x, -5, &b.out)
	b.s.AddCredit(x, 1<<62, &b.out)
	if x.credit < 0 || x.credit > 1<<30 {
		t.Errorf("credit %d", x.credit)
	}
}

// A topic's subscription chooses among maxAhead mails, and reads all of them in the end; a
// lane that is stuck keeps no other mail from being read.
func TestReadAhead(t *testing.T) {
	b := newBench(t)
	b.topic(BoxSettings{Mails: 3 * maxAhead}, SubSettings{})
	stuck := b.mustSend(note{box: 2, key: "stuck", ttl: 24 * time.Hour})
	x := b.attach(2, 1)
	b.settle(Settlement{Box: 2, Sub: 1, Handle: b.want(x, stuck)[0].Handle, Op: Nack, Delay: time.Hour})
	rec := b.record(note{box: 2, key: "stuck"})
	var out Output
	for range maxAhead + 10 {
		if err := b.s.Apply(1, rec, &out); err != nil {
			t.Fatal(err)
		}
	}
	rec = b.record(note{box: 2})
	for range maxAhead + 10 {
		if err := b.s.Apply(1, rec, &out); err != nil {
			t.Fatal(err)
		}
	}
	b.s.AddCredit(x, 2*maxAhead, &out)
	if got := b.deliver(x, 2*maxAhead); len(got) != maxAhead+10 {
		t.Errorf("%d delivered behind a stuck lane, want %d", len(got), maxAhead+10)
	}
	if n := b.s.boxes[2].subs[0].candidates(); n > maxAhead {
		t.Errorf("%d candidates", n)
	}
}

// What ended without DONE is remembered in maxEnded ranges: an older one is stale, and so is what
// is DONE before it.
func TestEndedIsRemembered(t *testing.T) {
	b := newBench(t)
	x := b.attach(1, 0)
	b.s.AddCredit(x, 1<<20, &b.out)
	b.mustSend(note{})
	done := Settlement{Handle: b.want(x, 1)[0].Handle, Op: Ack}
	b.must(Ack, done.Handle)
	if code := b.settle(done); code != proto.CodeOK {
		t.Errorf("again: %v", code)
	}
	var handles []Handle
	for range maxEnded + 1 {
		b.mustSend(note{})
		b.mustSend(note{})
		list := b.deliver(x, 2)
		b.must(Final, list[0].Handle)
		b.must(Ack, list[1].Handle)
		handles = append(handles, list[0].Handle, list[1].Handle)
	}
	u := b.s.boxes[1].subs[0]
	if len(u.ended) != maxEnded || u.known == 0 {
		t.Fatalf("%d ranges, known from %d", len(u.ended), u.known)
	}
	if code := b.settle(done); code != proto.CodeStale {
		t.Errorf("again, after many others: %v, want STALE", code)
	}
	for i, want := range map[int]proto.Code{0: proto.CodeStale, 2: proto.CodeStale, 3: proto.CodeOK, len(handles) - 2: proto.CodeStale, len(handles) - 1: proto.CodeOK} {
		if code := b.settle(Settlement{Handle: handles[i], Op: Ack}); code != want {
			t.Errorf("mail %d: %v, want %v", handles[i].Seq, code, want)
		}
	}
}

// A topic that is to keep what nobody has read yet, and nothing else, ends what everybody has read before.
func TestTopicBecomesOneOfInterest(t *testing.T) {
	b := newBench(t)
	b.topic(BoxSettings{Mails: 2}, SubSettings{})
	b.mustSend(note{box: 2})
	x := b.attach(2, 1)
	b.settle(Settlement{Box: 2, Sub: 1, Handle: b.want(x, 1)[0].Handle, Op: Ack})
	b.mustSend(note{box: 2})
	b.topic(BoxSettings{Mails: 2, Interest: true})
	if i, _ := b.s.Info(2); i.Waiting != 1 {
		t.Errorf("%d mails wait", i.Waiting)
	}
	b.mustSend(note{box: 2})
	b.want(x, 2, 3)
}
