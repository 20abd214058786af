package box

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/balefire/balefire/fair"
	"github.com/balefire/balefire/proto"
)

// TestNothingOutside checks that the package reads no clock, disk, network or randomness,
// and starts no goroutine.
func TestNothingOutside(t *testing.T) {
	allowed := []string{
		"bytes", "cmp", "crypto/sha256", "encoding/binary", "encoding/json", "errors", "fmt", "io", "iter", "maps", "math", "math/bits", "slices", "sort", "strconv",
		"strings", "time", "unicode/utf8", "github.com/balefire/balefire/fair", "github.com/balefire/balefire/proto",
	}
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	files := 0
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".go") || strings.HasSuffix(e.Name(), "_test.go") {
			continue
		}
		files++
		f, err := parser.ParseFile(token.NewFileSet(), e.Name(), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, spec := range f.Imports {
			if path, _ := strconv.Unquote(spec.Path.Value); !slices.Contains(allowed, path) {
				t.Errorf("%s imports %s", e.Name(), path)
			}
		}
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				t.Errorf("%s starts a goroutine", e.Name())
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok && x.Name == "time" && slices.Contains([]string{"Now", "Since", "Until", "After", "NewTimer", "Sleep", "Tick"}, n.Sel.Name) {
					t.Errorf("%s uses time.%s", e.Name(), n.Sel.Name)
				}
			}
			return true
		})
	}
	if files < 10 {
		t.Errorf("only %d files", files)
	}
}

func TestLeases(t *testing.T) {
	for _, tt := range []struct {
		name  string
		class proto.Class
		lease time.Duration // of the subscription
		want  time.Duration
	}{
		{"critical", proto.Critical, 0, 5 * time.Second},
		{"high", proto.High, 0, 10 * time.Second},
		{"normal", proto.Normal, 0, 30 * time.Second},
		{"low", proto.Low, 0, time.Minute},
		{"of the subscription", proto.Low, time.Second, time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t)
			b.apply(EncodeSub(1, 0, &SubSettings{Lease: tt.lease}, Start{}))
			b.mustSend(note{class: tt.class})
			x := b.attach(1, 0)
			b.want(x, 1)
			b.wait(tt.want - time.Millisecond)
			b.want(x)
			b.wait(time.Millisecond)
			if x.held != 0 {
				t.Error("it is held after its lease")
			}
			b.want(x) // the backoff
			b.wait(2 * time.Second)
			if d := b.want(x, 1)[0]; d.Attempt != 2 || !d.Redelivered {
				t.Errorf("%+v: a lapse spends an attempt (I23)", d)
			}
		})
	}
}

func TestExtend(t *testing.T) {
	b := newBench(t)
	b.mustSend(note{ttl: 24 * time.Hour})
	x := b.attach(1, 0)
	h := b.want(x, 1)[0].Handle
	began := b.now.Mono
	for range 24 {
		b.out.Reset()
		b.s.Settle(b.now, []Settlement{{Box: 1, Handle: h, Op: Extend, Delay: time.Hour}}, &b.out)
		if r := b.out.Settled[0]; r.Code != proto.CodeOK || r.Until > began+MaxLease.Milliseconds() || len(b.out.Records) > 0 {
			t.Fatalf("%+v", r)
		}
		if b.now.Mono-began >= MaxLease.Milliseconds()-time.Hour.Milliseconds() {
			break
		}
		b.wait(time.Hour - time.Second)
	}
	b.wait(2 * time.Hour)
	if x.held != 0 {
		t.Error("a lease was extended beyond 12 hours")
	}
	if code := b.settle(Settlement{Handle: h, Op: Extend, Delay: time.Hour}); code != proto.CodeStale {
		t.Errorf("extended after its end: %v", code)
	}
}

// TestAckRule has the rule of I23: an acknowledgment counts if and only if the mail has not
// ended, nobody else was given it since, and of the mails of one key that were leased together
// each before it was acknowledged ([TestKeyBatch]). A restart of the home forgets who was given
// what before it.
func TestAckRule(t *testing.T) {
	for _, tt := range []struct {
		name   string
		before func(b *bench, x *Session, h *Handle)
		op     Op
		want   proto.Code
		state  MailState // of the mail afterwards
	}{
		{"the newest delivery", nil, Ack, proto.CodeOK, Done},
		{"done already", func(b *bench, _ *Session, h *Handle) { b.must(Ack, *h) }, Ack, proto.CodeOK, Done},
		{"lapsed, and nobody has it", func(b *bench, _ *Session, _ *Handle) { b.wait(time.Minute) }, Ack, proto.CodeOK, Done},
		{"lapsed, and another has it", func(b *bench, x *Session, _ *Handle) { b.wait(time.Minute); b.wait(time.Minute); b.want(x, 1) }, Ack, proto.CodeStale, Leased},
		{"another had it, and gave it back", func(b *bench, x *Session, _ *Handle) {
			b.wait(time.Minute)
			b.wait(time.Minute)
			b.must(Defer, b.want(x, 1)[0].Handle)
		}, Ack, proto.CodeStale, Retrying},
		{"the home restarted", func(b *bench, _ *Session, _ *Handle) { b.restart() }, Ack, proto.CodeOK, Done},
		{"the home restarted, and another has it", func(b *bench, _ *Session, _ *Handle) { b.restart(); b.want(b.attach(1, 0), 1) }, Ack, proto.CodeStale, Leased},
		{"another had it, and the home restarted", func(b *bench, x *Session, _ *Handle) {
			b.wait(time.Minute)
			b.wait(time.Minute)
			b.want(x, 1)
			b.restart()
		}, Ack, proto.CodeOK, Done},
		{"another home gave it, for a mail with the same number", func(b *bench, _ *Session, h *Handle) { b.restart(); h.Seq = b.mustSend(note{}) }, Ack, proto.CodeBadForm, Waiting},
		{"dead", func(b *bench, _ *Session, h *Handle) { b.must(Final, *h) }, Ack, proto.CodeStale, Dead},
		{"bounced", func(b *bench, _ *Session, h *Handle) { b.must(Bounce, *h) }, Ack, proto.CodeStale, Cancelled},
		{"a purge was made after the session ended", func(b *bench, x *Session, _ *Handle) {
			b.s.Detach(b.now, x, false, &b.out)
			b.s.Purge(b.now, 1, 10, "", &b.out)
		}, Ack, proto.CodeStale, Waiting},
		{"a sequence that is not there", func(_ *bench, _ *Session, h *Handle) { h.Seq = 2 }, Ack, proto.CodeBadForm, Leased},
		{"sequence 0", func(_ *bench, _ *Session, h *Handle) { h.Seq = 0 }, Ack, proto.CodeBadForm, Leased},
		{"a start that is to come", func(_ *bench, _ *Session, h *Handle) { h.Boot++ }, Ack, proto.CodeBadForm, Leased},
		{"a delivery that is to come", func(_ *bench, _ *Session, h *Handle) { h.N++ }, Ack, proto.CodeBadForm, Leased},
		{"delivery 0", func(_ *bench, _ *Session, h *Handle) { h.N = 0 }, Ack, proto.CodeBadForm, Leased},
		{"a handle of another box", func(b *bench, _ *Session, h *Handle) {
			b.apply(EncodeBox(2, &BoxSettings{Name: "other", Kind: Mailbox}))
			b.mustSend(note{box: 2})
			*h = b.want(b.attach(2, 0), 1)[0].Handle
		}, Ack, proto.CodeStale, Leased},
		{"nothing to do", nil, 0, proto.CodeBadForm, Leased},
		{"an unknown op", nil, Abandon + 1, proto.CodeBadForm, Leased},

		{"nack", nil, Nack, proto.CodeOK, Retrying},
		{"nack after the lease", func(b *bench, _ *Session, _ *Handle) { b.wait(time.Minute) }, Nack, proto.CodeStale, Retrying},
		{"nack after a restart", func(b *bench, _ *Session, _ *Handle) { b.restart() }, Nack, proto.CodeStale, Waiting},
		{"nack when it is done", func(b *bench, _ *Session, h *Handle) { b.must(Ack, *h) }, Nack, proto.CodeStale, Done},
		{"nack when another has it", func(b *bench, x *Session, _ *Handle) { b.wait(time.Minute); b.wait(time.Minute); b.want(x, 1) }, Nack, proto.CodeStale, Leased},
		{"defer after the lease", func(b *bench, _ *Session, _ *Handle) { b.wait(time.Minute) }, Defer, proto.CodeStale, Retrying},
		{"final after the lease", func(b *bench, _ *Session, _ *Handle) { b.wait(time.Minute) }, Final, proto.CodeStale, Retrying},
		{"return", nil, Return, proto.CodeOK, Waiting},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t)
			b.mustSend(note{})
			x := b.attach(1, 0)
			h := b.want(x, 1)[0].Handle
			if tt.before != nil {
				tt.before(b, x, &h)
			}
			if code := b.settle(Settlement{Handle: h, Op: tt.op}); code != tt.want {
				t.Errorf("%v, want %v", code, tt.want)
			}
			got := MailState(0)
			for m := range b.s.Mails(1, 0, 0) {
				got = m.State
			}
			for state := Done; got == 0; state++ {
				if i := b.info(); i.EndedAs(state) > 0 {
					got = state
				}
			}
			if got != tt.state {
				t.Errorf("it is %v, want %v", got, tt.state)
			}
		})
	}
	b := newBench(t)
	if code := b.settle(Settlement{Box: 7, Op: Ack}); code != proto.CodeNoHandler {
		t.Errorf("no such box: %v", code)
	}
	b.mustSend(note{})
	h := b.want(b.attach(1, 0), 1)[0].Handle
	if code := b.settle(Settlement{Handle: h, Op: Nack, Delay: MaxDelay + 1}); code != proto.CodeBadForm {
		t.Errorf("a delay of more than %v: %v", MaxDelay, code)
	}
}

func TestRetries(t *testing.T) {
	for _, tt := range []struct {
		name     string
		settings SubSettings
		fail     func(b *bench, x *Session, h Handle) *Session
		want     int // failures until it is dead
		cause    Cause
	}{
		{"nack", SubSettings{}, func(b *bench, x *Session, h Handle) *Session { b.must(Nack, h); return x }, 3, CauseNacked},
		{"one attempt", SubSettings{Attempts: 1}, func(b *bench, x *Session, h Handle) *Session { b.must(Nack, h); return x }, 1, CauseNacked},
		{"lapse", SubSettings{}, func(b *bench, x *Session, _ Handle) *Session { b.wait(time.Minute); return x }, 3, CauseLapsed},
		{"final", SubSettings{}, func(b *bench, x *Session, h Handle) *Session { b.must(Final, h); return x }, 1, CauseFinal},
		{"broken sessions", SubSettings{Attempts: 1}, func(b *bench, x *Session, _ Handle) *Session {
			b.out.Reset()
			b.s.Detach(b.now, x, true, &b.out)
			b.commit()
			return b.attach(1, 0)
		}, MaxAbandons, CauseAbandoned},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t)
			b.apply(EncodeSub(1, 0, &tt.settings, Start{}))
			b.mustSend(note{ttl: 24 * time.Hour})
			x := b.attach(1, 0)
			for n := range tt.want {
				if b.info().Waiting != 1 {
					t.Fatalf("it ended after %d failures", n)
				}
				b.wait(10 * time.Minute)
				x = tt.fail(b, x, b.want(x, 1)[0].Handle)
			}
			if ends := b.ends(); !slices.Equal(ends, []MailState{Dead}) || len(b.out.Bounces) != 1 {
				t.Fatalf("ends %v, bounces %v (I21)", ends, b.out.Bounces)
			}
			dead := slices.Collect(b.s.DeadLetters(1, 0, 0))
			if len(dead) != 1 || dead[0].Cause != tt.cause || len(dead[0].Tries) != tt.want-1 || dead[0].Reader != x.Reader && tt.cause != CauseAbandoned {
				t.Errorf("%+v", dead)
			}
		})
	}
}

// Neither a restart, nor a session that ends in order, nor a deferral spends anything.
func TestNothingSpent(t *testing.T) {
	b := newBench(t)
	b.apply(EncodeSub(1, 0, &SubSettings{Attempts: 1}, Start{}))
	b.mustSend(note{ttl: 24 * time.Hour})
	for range 20 {
		x := b.attach(1, 0)
		b.want(x, 1)
		b.restart()
		x = b.attach(1, 0)
		b.must(Return, b.want(x, 1)[0].Handle)
		b.must(Defer, b.want(x, 1)[0].Handle)
		b.want(x, 1)
		b.s.Detach(b.now, x, false, &b.out)
	}
	for m := range b.s.Mails(1, 0, 0) {
		if m.Attempts != 0 || m.Abandons != 0 || len(m.Tries) > MaxTries {
			t.Errorf("%+v", m)
		}
	}
	if b.info().Waiting != 1 {
		t.Error("it has ended")
	}
}

// What was on its way to a reader is taken back for nothing, with what is behind it in its
// lane; what it has stays leased.
func TestTakeBack(t *testing.T) {
	b := newBench(t)
	b.apply(EncodeSub(1, 0, &SubSettings{Attempts: 1, KeyBatch: 4}, Start{}))
	for _, key := range []string{"", "k", "k", "", "k"} {
		b.mustSend(note{ttl: time.Hour, key: key})
	}
	x := b.attach(1, 0)
	given := b.want(x, 1, 2, 3, 5, 4)
	b.out.Reset()
	b.s.TakeBack(x, given[2].Handle.N, &b.out)
	if len(b.out.Records) > 0 || x.held != 3 {
		t.Errorf("%d records, and it has %d", len(b.out.Records), x.held)
	}
	again := b.want(x, 4)
	for _, d := range given[:3] {
		b.must(Ack, d.Handle)
	}
	for _, d := range append(again, b.want(x, 5)...) {
		if d.Attempt != 1 || !d.Redelivered {
			t.Errorf("%+v", d)
		}
		b.must(Ack, d.Handle)
	}
	if b.info().Waiting != 0 {
		t.Errorf("%d wait", b.info().Waiting)
	}
	b.s.Detach(b.now, x, false, &b.out)
	b.s.TakeBack(x, 0, &b.out) // it has ended
}

func TestBackoff(t *testing.T) {
	for n, want := range map[uint8]time.Duration{1: time.Second, 2: 2 * time.Second, 3: 4 * time.Second, 9: 256 * time.Second, 10: MaxBackoff, 100: MaxBackoff} {
		seen := map[time.Duration]bool{}
		for r := range uint64(1000) {
			got := backoff(n, r<<32|r)
			if got < want || got > want*5/4 || got != backoff(n, r<<32|r) {
				t.Fatalf("attempt %d: %v, want %v and up to a quarter more", n, got, want)
			}
			seen[got] = true
		}
		if len(seen) < 100 {
			t.Errorf("attempt %d: %d different waits", n, len(seen))
		}
	}
}

// A retry waits for its delay by a clock that nobody sets, and at most once more after a
// restart.
func TestDelayUnderAnyWallClock(t *testing.T) {
	for _, tt := range []struct {
		name string
		jump time.Duration // of the wall clock
		wait time.Duration // more until it is due
	}{
		{"right", 0, 30 * time.Second},
		{"set back by a year", -365 * 24 * time.Hour, 30 * time.Second},
		{"set forward by an hour", time.Hour, 30 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t)
			b.mustSend(note{ttl: 24 * time.Hour})
			x := b.attach(1, 0)
			h := b.want(x, 1)[0].Handle
			if code := b.settle(Settlement{Handle: h, Op: Nack, Delay: tt.wait}); code != proto.CodeOK {
				t.Fatal(code)
			}
			b.want(x)
			b.now.Wall += tt.jump.Milliseconds()
			b.wait(tt.wait - time.Millisecond)
			b.want(x)
			b.wait(time.Millisecond)
			b.want(x, 1)
		})
	}
}

func TestOrder(t *testing.T) {
	const c, h, n, l = proto.Critical, proto.High, proto.Normal, proto.Low
	for _, tt := range []struct {
		name  string
		mails []note
		want  []uint64
	}{
		{"without keys by sequence", []note{{}, {}, {}}, []uint64{1, 2, 3}},
		{"by class", []note{{class: l}, {class: n}, {class: h}, {class: c}}, []uint64{4, 3, 2, 1}},
		{"one of each key", []note{{key: "a"}, {key: "a"}, {key: "b"}, {key: "b"}, {}}, []uint64{1, 3, 5}},
		{"urgent mail pulls its key forward", []note{{class: l}, {class: l, key: "a"}, {class: h}, {class: c, key: "a"}}, []uint64{2, 3, 1}},
		{"and not that of others", []note{{class: l, key: "b"}, {class: l, key: "a"}, {class: c, key: "a"}}, []uint64{2, 1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t)
			for _, m := range tt.mails {
				b.mustSend(m)
			}
			b.want(b.attach(1, 0), tt.want...)
		})
	}
}

// TestClassesShare checks that package fair chooses: critical has nine of ten, low is one
// of any hundred (S14).
func TestClassesShare(t *testing.T) {
	b := newBench(t)
	b.apply(EncodeBox(1, &BoxSettings{Name: "agent:ceo", Kind: Mailbox, Mails: 1 << 20}))
	for range 1200 {
		for class := proto.Critical; class <= proto.Low; class++ {
			b.mustSend(note{class: class})
		}
	}
	x, got := b.attach(1, 0), [fair.Classes]int{}
	b.s.AddCredit(x, 2000, &b.out)
	for _, d := range b.deliver(x, 1200) {
		got[b.s.classOf(1, d)]++
	}
	for c, want := range [fair.Classes]int{1080, 75, 29, 16} {
		if d := got[c] - want; d < -3 || d > 3 {
			t.Errorf("delivered %v: %d of class %d, want about %d", got, got[c], c, want)
		}
	}
}

// TestLanes checks S15: mails of one key are delivered one after the other, and a mail that
// fails holds up those behind it until it ends.
func TestLanes(t *testing.T) {
	b := newBench(t)
	for range 3 {
		b.mustSend(note{key: "a", ttl: 24 * time.Hour})
	}
	x, y := b.attach(1, 0), b.attach(1, 0)
	h := b.want(x, 1)[0].Handle
	b.want(y) // the lane is held
	if code := b.settle(Settlement{Handle: h, Op: Nack, Delay: time.Minute}); code != proto.CodeOK {
		t.Fatal(code)
	}
	b.want(y) // the delay holds it, too
	b.wait(time.Minute)
	b.must(Ack, b.want(y, 1)[0].Handle)
	b.must(Final, b.want(x, 2)[0].Handle) // on_dead: skip
	b.want(y, 3)
}

func TestBlockedLane(t *testing.T) {
	b := newBench(t)
	b.apply(EncodeSub(1, 0, &SubSettings{Block: true}, Start{}))
	for range 2 {
		b.mustSend(note{key: "a"})
		b.mustSend(note{key: "b"})
	}
	x := b.attach(1, 0)
	list := b.want(x, 1, 2)
	b.must(Final, list[0].Handle)
	if len(b.out.Events) != 1 || b.out.Events[0].Kind != EventBlocked {
		t.Errorf("events %+v", b.out.Events)
	}
	b.must(Final, list[1].Handle)
	b.want(x)
	b.restart()
	x = b.attach(1, 0)
	b.want(x)
	b.apply(EncodeUnblock(1, 0, 0, []byte("a")))
	b.want(x, 3)
	if i, _ := b.s.SubInfo(1, 0); i.Blocked != 1 || i.Dead != 2 || i.Leased != 1 {
		t.Errorf("%+v", i)
	}
	u := b.s.boxes[1].subs[0]
	for i := range MaxBlocked {
		u.block([16]byte{byte(i), byte(i >> 8), 1}, 1, &b.out)
	}
	if len(u.blocked) != MaxBlocked || b.out.Events[len(b.out.Events)-1].Kind != EventUnblocked {
		t.Errorf("%d lanes are blocked", len(u.blocked))
	}
}

// I23: mails of one key that are leased together are acknowledged in order, and what is behind
// a failure is taken back.
func TestKeyBatch(t *testing.T) {
	b := newBench(t)
	b.apply(EncodeSub(1, 0, &SubSettings{KeyBatch: 3}, Start{}))
	for range 5 {
		b.mustSend(note{key: "a", ttl: 24 * time.Hour})
	}
	x, y := b.attach(1, 0), b.attach(1, 0)
	list := b.want(x, 1, 2, 3)
	b.want(y)
	if code := b.settle(Settlement{Handle: list[1].Handle, Op: Ack}); code != proto.CodeBusy {
		t.Errorf("an ack out of order: %v", code)
	}
	b.must(Ack, list[0].Handle)
	b.must(Nack, list[1].Handle)
	if x.held != 0 {
		t.Error("what is behind a failure is still held")
	}
	if code := b.settle(Settlement{Handle: list[2].Handle, Op: Ack}); code != proto.CodeBusy {
		t.Errorf("an ack ahead of a failure: %v", code)
	}
	b.wait(2 * time.Second)
	list = b.want(y, 2, 3, 4)
	if list[0].Attempt != 2 || list[1].Attempt != 1 {
		t.Errorf("%+v", list)
	}
	var all []Settlement
	for _, d := range list {
		all = append(all, Settlement{Box: 1, Handle: d.Handle, Op: Ack})
	}
	b.out.Reset()
	b.s.Settle(b.now, all, &b.out)
	if len(b.out.Records) != 1 {
		t.Errorf("%d records for three acks in order", len(b.out.Records))
	}
	b.commit()
	b.want(x, 5)
}

func TestLanesOfOrigins(t *testing.T) {
	for _, separate := range []bool{false, true} {
		b := newBench(t)
		b.apply(EncodeBox(2, &BoxSettings{Name: "b", Kind: Mailbox, PerPeer: separate}))
		b.apply(EncodePeer(1, proto.PeerID{1}))
		b.mustSend(note{box: 2, key: "a"})
		b.mustSend(note{box: 2, key: "a", origin: 1})
		want := []uint64{1}
		if separate {
			want = []uint64{1, 2}
		}
		b.want(b.attach(2, 0), want...)
	}
}

func TestTimesOfAMail(t *testing.T) {
	b := newBench(t)
	b.mustSend(note{ttl: 10 * time.Second})
	b.mustSend(note{ttl: time.Hour, after: 3 * time.Minute})
	b.mustSend(note{ttl: 20 * time.Second})
	x := b.attach(1, 0)
	h := b.want(x, 1, 3)[1].Handle
	b.must(Ack, h)
	b.wait(15 * time.Second) // mail 1 is leased: it does not expire
	if b.info().Waiting != 2 {
		t.Error("a leased mail expired")
	}
	b.wait(30 * time.Second)
	b.wait(100 * time.Millisecond)
	if b.info().EndedAs(Expired) != 1 || !slices.Equal(b.ends(), []MailState{Expired}) || len(b.out.Bounces) != 1 {
		t.Errorf("%+v, ends %v", b.info(), b.ends())
	}
	b.wait(2 * time.Minute)
	b.want(x)
	b.wait(time.Minute)
	b.want(x, 2)
	for _, ttl := range []time.Duration{-1, 0} {
		rec := b.record(note{})
		m, _ := ParseMail(rec)
		l, _ := proto.ParseLetter(m.Letter)
		m.At = l.NotAfter - ttl.Milliseconds()
		if r := b.apply(AppendMail(nil, &m)); r.Code != proto.CodeExpired || !r.ForGood {
			t.Errorf("past its not_after: %+v", r)
		}
	}
}

// TestLoop checks S10: a mail that causes itself ends.
func TestLoop(t *testing.T) {
	b := newBench(t)
	b.mustSend(note{hops: MaxHops})
	if b.info().Waiting != 1 {
		t.Error("it ended at the limit of hops")
	}
	b.mustSend(note{hops: MaxHops + 1})
	dead := slices.Collect(b.s.DeadLetters(1, 0, 0))
	if !slices.Equal(b.ends(), []MailState{Dead}) || len(b.out.Bounces) != 1 || len(dead) != 1 || dead[0].Cause.String() != "loop" {
		t.Errorf("ends %v, dead %+v", b.ends(), dead)
	}
}

// One origin cannot use up the dedupe keys of a state, also over a checkpoint, and gets back
// those that are forgotten.
func TestDedupeKeysOfOneOriginLeaveSpaceForOthers(t *testing.T) {
	b := newBench(t)
	b.apply(EncodeLimits(Limits{Keys: 20}))
	b.apply(EncodePeer(1, proto.PeerID{1}))
	b.apply(EncodePeer(2, proto.PeerID{2}))
	counter := 0
	flood := func(origin uint32) (taken int) {
		for range 30 {
			counter++
			if r := b.send(note{origin: origin, dedupe: fmt.Sprint(counter)}); r.Code == proto.CodeFull {
				return taken
			}
			taken++
		}
		return taken
	}
	if n := flood(1); n != 18 {
		t.Errorf("an origin has %d of 20 keys", n)
	}
	var image bytes.Buffer
	if err := b.s.Save(&image); err != nil {
		t.Fatal(err)
	}
	var err error
	if b.s, err = Load(&image, chainNotes{}); err != nil {
		t.Fatal(err)
	}
	b.s.Start(b.now, b.s.Boot()+1, &b.out)
	b.commit()
	if n := flood(1); n != 0 {
		t.Errorf("after a checkpoint it has %d more", n)
	}
	b.mustSend(note{dedupe: "own"})
	if n := flood(2); n != 1 {
		t.Errorf("another one has %d", n)
	}
	for range 37 * 12 {
		b.wait(agePeriod)
	}
	if n := flood(1); n != 18 {
		t.Errorf("later it has %d of 20 keys", n)
	}
}

func TestDedupe(t *testing.T) {
	b := newBench(t)
	b.apply(EncodeBox(2, &BoxSettings{Name: "other", Kind: Mailbox}))
	b.apply(EncodeLimits(Limits{Keys: 4}))
	first := b.send(note{dedupe: "a", body: "x", ttl: 24 * 30 * time.Hour})
	if r := b.send(note{dedupe: "a", body: "x"}); r.Code != proto.CodeOK || !r.Duplicate || r.ID != first.ID || r.Seq != first.Seq {
		t.Errorf("again: %+v", r)
	}
	if r := b.send(note{dedupe: "a", body: "y"}); r.Code != proto.CodeDenied || !r.ForGood {
		t.Errorf("with another body: %+v", r)
	}
	b.mustSend(note{dedupe: "a", box: 2})
	b.mustSend(note{dedupe: "b"})
	b.mustSend(note{dedupe: "c"})
	if r := b.send(note{dedupe: "d"}); r.Code != proto.CodeFull {
		t.Errorf("with all keys in use: %+v", r)
	}
	b.mustSend(note{})
	// The wall clock forgets nothing.
	b.now.Wall += (365 * 24 * time.Hour).Milliseconds()
	b.restart()
	if r := b.send(note{dedupe: "a", body: "x"}); !r.Duplicate {
		t.Errorf("after a year by the wall clock: %+v", r)
	}
	// 24 hours of running time are kept, over restarts; after 37 hours all is forgotten.
	for range 24 * 12 {
		b.wait(agePeriod)
		if b.now.Mono%(6*3600_000) < agePeriod.Milliseconds() {
			b.restart()
		}
	}
	if r := b.send(note{dedupe: "a", body: "x"}); !r.Duplicate {
		t.Errorf("after 24 hours: %+v", r)
	}
	for range 13 * 12 {
		b.wait(agePeriod)
	}
	b.mustSend(note{dedupe: "a", body: "x"})
}

// Leases end in the order of their times, also if the state looks at the time late and the
// first one was extended: each spends its attempt.
func TestExtendedLeaseLapsesLater(t *testing.T) {
	b := newBench(t)
	b.apply(EncodeSub(1, 0, &SubSettings{KeyBatch: 2}, Start{}))
	b.mustSend(note{key: "k"})
	b.mustSend(note{key: "k"})
	got := b.want(b.attach(1, 0), 1, 2)
	if code := b.settle(Settlement{Handle: got[0].Handle, Op: Extend, Delay: time.Minute}); code != proto.CodeOK {
		t.Fatal(code)
	}
	b.wait(2 * time.Minute)
	n := 0
	for x := range b.s.Mails(1, 0, 0) {
		n++
		if x.Attempts != 1 {
			t.Errorf("mail %d has spent %d attempts", x.Seq, x.Attempts)
		}
	}
	if n != 2 {
		t.Errorf("%d mails wait, want 2", n)
	}
}
