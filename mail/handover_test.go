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
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/ledger"
)

// A handing is a box on its way from the broker at to the broker to.
type handing struct {
	t        *testing.T
	at, to   *fixture
	name     string
	moves    byte
	pieces   int
	settings box.BoxSettings
	handover box.Handover
}

// steps are what is done to hand the box over, one after the other.
func (h *handing) steps() []func() error {
	ctx := h.t.Context()
	h.moves++
	h.handover = box.Handover{ID: [16]byte{h.moves}, Peer: homeID, Generation: 1}
	there := h.handover
	there.Peer = originID
	var c *Copying
	return []func() error{
		func() (err error) { h.settings, err = h.at.Stand(ctx, h.name, h.handover); return err },
		func() error { return h.to.BeginCopy(ctx, h.settings, there) },
		func() (err error) { c, err = h.at.Copy(ctx, h.name); return err },
		func() error {
			p, err := c.Next(ctx)
			if err != nil {
				return err
			}
			return h.to.AddToCopy(ctx, h.name, there.ID, &p)
		},
		func() error {
			for {
				p, err := c.Next(ctx)
				if err != nil || len(p.Records) == 0 {
					return err
				}
				h.pieces++
				if err := h.to.AddToCopy(ctx, h.name, there.ID, &p); err != nil {
					return err
				}
			}
		},
		func() error { return h.to.EndCopy(ctx, h.name, there.ID) },
		func() error { return h.to.Serve(ctx, h.name, 2) },
		func() error { return h.at.Leave(ctx, h.name) },
	}
}

// must does some of the steps.
func (h *handing) must(steps []func() error) {
	h.t.Helper()
	for i, f := range steps {
		if err := f(); err != nil {
			h.t.Fatalf("step %d: %v", i, err)
		}
	}
}

// all reads and acknowledges what a box gives until it gives nothing more.
func (f *fixture) all(name string) (bodies []string) {
	f.t.Helper()
	s := f.read(name, 100)
	for {
		ctx, stop := context.WithTimeout(f.t.Context(), time.Minute)
		given, err := s.Next(ctx, 100)
		stop()
		if errors.Is(err, context.DeadlineExceeded) {
			return bodies
		}
		if err != nil {
			f.t.Fatal(err)
		}
		for _, d := range given {
			l, err := proto.ParseLetter(d.Letter)
			if err != nil {
				f.t.Fatal(err)
			}
			bodies = append(bodies, string(l.Body))
			f.settle(name, d, box.Ack, proto.CodeOK)
		}
	}
}

// I21, I22: whenever one of the two nodes dies, the box is served by one of them: mail that waits is
// given once and in order, and a mail of another node that was taken is not taken again. A copy that
// is not served yet is made again.
func TestHandoverIsWhole(t *testing.T) {
	for step := range 9 {
		for _, dies := range []string{"neither", "the old home", "the new home"} {
			t.Run(fmt.Sprintf("%d/%s", step, dies), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					h := &handing{t: t, at: newFixture(t, Config{Self: originID}), to: newFixture(t, Config{Self: homeID}), name: "agent:ceo"}
					h.at.mailbox(h.name)
					h.to.mailbox("agent:other")
					want := []string{}
					for i := range 2*maxPieceLen + 7 {
						want = append(want, fmt.Sprint(i))
					}
					h.at.send(h.name, want[:maxPieceLen]...)
					h.at.send(h.name, want[maxPieceLen:2*maxPieceLen]...)
					h.at.send(h.name, want[2*maxPieceLen:]...)
					taken := &proto.Bundle{Number: 1, Box: h.name, Chain: proto.Normal, Runs: []*proto.Run{{Boot: 5, First: 1, Count: 1}}, Letters: h.at.letter("taken", nil)}
					h.at.take(taken, nil)
					want = append(want, "taken")
					h.at.settle(h.name, h.at.first(h.name), box.Ack, proto.CodeOK)
					want = want[1:]
					steps := h.steps()
					h.must(steps[:min(step, len(steps))])
					switch dies {
					case "the old home":
						h.at.restart()
					case "the new home":
						h.to.restart()
					}
					if step < 6 { // it cannot be served: the next move is another one
						if err := h.to.Serve(t.Context(), h.name, 2); err == nil {
							t.Fatal("a copy that is not whole is served")
						}
						if step > 0 {
							if err := h.at.SetHandover(t.Context(), h.name, box.Handover{}); err != nil {
								t.Fatal(err)
							}
						}
						h.at.send(h.name, "more")
						want = append(want, "more")
						h.must(h.steps())
					} else if step < len(steps) {
						h.must(steps[step:])
					}
					if h.at.Has(h.name) || h.at.HandoverOf(h.name).Stage > 0 {
						t.Error("the old home still has it")
					}
					h.to.restart()
					if got := h.to.take(taken, nil); got.GetUpToNumber() != 1 || got.GetCode() != proto.CodeMoved { // for another generation
						taken.Generation = 2
						if got := h.to.take(taken, nil); got.GetUpToNumber() != 1 {
							t.Errorf("the mail that was taken: %v", got)
						}
					}
					if got := h.to.all(h.name); !slices.Equal(got, want) {
						t.Errorf("%d mails, want %d: %s", len(got), len(want), strings.Join(got, " "))
					}
					if err := errors.Join(h.to.SetHandover(t.Context(), h.name, box.Handover{ID: [16]byte{9}, Peer: originID, Generation: 2, Stage: box.Still}), h.to.Leave(t.Context(), h.name)); err != nil {
						t.Error(err) // it goes on
					}
					h.to.restart()
					if served, err := h.to.Served(t.Context(), h.handover.ID); !served || err != nil {
						t.Errorf("the new home does not know that it served the box: %v", err)
					}
					if h.pieces < 3 {
						t.Errorf("%d pieces", h.pieces)
					}
				})
			})
		}
	}
}

// first returns the next delivery of a box.
func (f *fixture) first(name string) Delivery {
	f.t.Helper()
	s := f.read(name, 1)
	given, _ := f.next(s, 1)
	return given[0]
}

// What readers settle while the box closes counts; a lease that nobody settles is over after a
// second. A box that is still takes nothing.
func TestReadersMayFinishBeforeAMove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, Config{Self: originID})
		f.mailbox("agent:ceo")
		f.send("agent:ceo", "a", "b")
		given, _ := f.next(f.read("agent:ceo", 2), 2)
		began, done := time.Now(), make(chan error, 1)
		go func() {
			_, err := f.Stand(t.Context(), "agent:ceo", box.Handover{ID: [16]byte{1}, Peer: homeID, Generation: 1})
			done <- err
		}()
		time.Sleep(leaseWait / 2)
		f.settle("agent:ceo", given[0], box.Ack, proto.CodeOK)
		if err := <-done; err != nil || time.Since(began) < leaseWait || time.Since(began) > 2*leaseWait {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		f.settle("agent:ceo", given[1], box.Ack, proto.CodeStale)
		f.settle("agent:ceo", given[0], box.Ack, proto.CodeOK)
		sent, err := f.Send(t.Context(), []Item{{Box: "agent:ceo", Letter: f.letter("c", nil)}}, false)
		if err != nil || sent[0].Code != proto.CodeBusy || sent[0].ForGood {
			t.Errorf("%+v, %v", sent, err)
		}
		if i := f.info("agent:ceo"); i.Waiting != 1 {
			t.Errorf("%+v", i)
		}
	})
}

// A piece that no home sends, one for a copy that is not there, and one for which there is no space
// are refused, and the copy goes without a trace.
func TestBadPieces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &handing{t: t, at: newFixture(t, Config{Self: originID}), to: newFixture(t, Config{Self: homeID}), name: "agent:ceo"}
		h.at.mailbox(h.name)
		h.at.send(h.name, "a")
		steps := h.steps()
		h.must(steps[:2])
		c, err := h.at.Copy(t.Context(), h.name)
		if err != nil {
			t.Fatal(err)
		}
		head, err := c.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		mails, err := c.Next(t.Context())
		if err != nil || len(mails.Records) != 1 || mails.Origins[0] != originID {
			t.Fatalf("%+v, %v", mails, err)
		}
		var refused *RefusedError
		id := h.handover.ID
		for name, tt := range map[string]struct {
			id   [16]byte
			p    Piece
			want error
		}{
			"of another move":          {[16]byte{9}, head, box.ErrNotFound},
			"before those before it":   {id, mails, nil},
			"with an unknown origin":   {id, Piece{Records: mails.Records}, box.ErrBadRecord},
			"with an origin that is 0": {id, Piece{Records: mails.Records, Origins: []proto.PeerID{{}}}, box.ErrBadRecord},
			"of other records":         {id, Piece{Records: [][]byte{box.EncodeRemoveBox(0)}}, box.ErrBadRecord},
			"of another box":           {id, Piece{Records: [][]byte{box.EncodeLeave(1)}}, box.ErrBadRecord},
			"of no record":             {id, Piece{Records: [][]byte{{1}}}, box.ErrBadRecord},
		} {
			err := h.to.AddToCopy(t.Context(), h.name, tt.id, &tt.p)
			if tt.want == nil && !errors.As(err, &refused) || tt.want != nil && !errors.Is(err, tt.want) {
				t.Errorf("a piece %s: %v", name, err)
			}
		}
		if err := h.to.SetLimits(t.Context(), box.Limits{Bytes: 1}); err != nil {
			t.Fatal(err)
		}
		if err := h.to.AddToCopy(t.Context(), h.name, id, &head); err != nil {
			t.Fatal(err)
		}
		if err := h.to.AddToCopy(t.Context(), h.name, id, &mails); !errors.As(err, &refused) || refused.Code != proto.CodeFull {
			t.Errorf("without space: %v", err)
		}
		h.to.mailbox("agent:taken")
		taken := h.settings
		taken.Name = "agent:taken"
		if err := h.to.BeginCopy(t.Context(), taken, h.handover); !errors.As(err, &refused) || refused.Code != proto.CodeDuplicate {
			t.Errorf("of a box that is there: %v", err)
		}
		if err := errors.Join(h.to.DropCopy(t.Context(), h.name), h.to.DropCopy(t.Context(), h.name)); err != nil || h.to.HandoverOf(h.name).Stage > 0 {
			t.Errorf("%v, %+v", err, h.to.HandoverOf(h.name))
		}
		if err := h.to.EndCopy(t.Context(), h.name, id); !errors.Is(err, box.ErrNotFound) {
			t.Errorf("the end of no copy: %v", err)
		}
	})
}

// The bodies of large mail are needed by a copy as by a box, and no more at the old home.
func TestBodiesOfAMove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		freed := 0
		h := &handing{t: t, at: newFixture(t, Config{Self: originID, Freed: func([32]byte) { freed++ }}), to: newFixture(t, Config{Self: homeID}), name: "agent:ceo"}
		h.at.mailbox(h.name)
		if _, err := h.at.Send(t.Context(), []Item{{Box: h.name, Letter: h.at.letter("", large('a'))}}, false); err != nil {
			t.Fatal(err)
		}
		steps := h.steps()
		h.must(steps[:5])
		if got := h.to.objects(); !strings.HasPrefix(got, "a") {
			t.Errorf("the copy needs %q", got)
		}
		h.must(steps[5:])
		synctest.Wait()
		if got := h.at.objects(); got != "" || freed != 1 {
			t.Errorf("the old home needs %q, %d are free", got, freed)
		}
	})
}

// TestBodiesOfAWrittenPieceAreNeeded checks that a sweep which comes while the disk writes a piece spares
// the bodies of its mails.
func TestBodiesOfAWrittenPieceAreNeeded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &handing{t: t, at: newFixture(t, Config{Self: originID}), to: newFixture(t, Config{Self: homeID}), name: "agent:ceo"}
		h.to.late = new(lateLog)
		h.to.restart()
		h.at.mailbox(h.name)
		if _, err := h.at.Send(t.Context(), []Item{{Box: h.name, Letter: h.at.letter("", large('a'))}}, false); err != nil {
			t.Fatal(err)
		}
		steps := h.steps()
		h.must(steps[:4])
		h.to.late.hold()
		added := make(chan error, 1)
		go func() { added <- steps[4]() }()
		synctest.Wait()
		if got := h.to.objects(); got != "a" {
			t.Errorf("while the piece is written the copy needs %q, want a", got)
		}
		if err := h.to.Objects(t.Context(), func(_ [32]byte, origin proto.PeerID) {
			if origin != originID {
				t.Errorf("the body is said to come from %s, want the old home", origin)
			}
		}); err != nil {
			t.Fatal(err)
		}
		h.to.late.release()
		if err := <-added; err != nil {
			t.Fatal(err)
		}
		h.must(steps[5:])
		if got := h.to.objects(); got != "a" {
			t.Errorf("the new home needs %q, want a", got)
		}
		h.to.settle(h.name, h.to.first(h.name), box.Ack, proto.CodeOK)
		if got := h.to.objects(); got != "" {
			t.Errorf("after the mail has ended it needs %q", got)
		}
	})
}

// What was settled before a box is still is on disk and applied when it is.
func TestSettledBeforeABoxIsStill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, Config{Self: originID})
		f.late = new(lateLog)
		f.restart()
		f.mailbox("agent:ceo")
		f.send("agent:ceo", "a")
		d := f.first("agent:ceo")
		still, settled := make(chan error, 1), make(chan []Settled, 1)
		go func() {
			_, err := f.Stand(t.Context(), "agent:ceo", box.Handover{ID: [16]byte{1}, Peer: homeID, Generation: 1})
			still <- err
		}()
		time.Sleep(leaseWait / 2)
		f.late.hold()
		time.Sleep(leaseWait)
		go func() {
			r, err := f.Settle(t.Context(), "agent:ceo", "", []Settlement{{Handle: d.Handle, Op: box.Ack}})
			if err != nil {
				t.Error(err)
			}
			settled <- r
		}()
		synctest.Wait()
		f.late.answer(1) // it is still; the acknowledgment was written after that, and decided before
		synctest.Wait()
		select {
		case err := <-still:
			t.Fatalf("it is copied before that is applied: %v", err)
		default:
		}
		for range 2 {
			f.late.answer(1)
			synctest.Wait()
		}
		if err := <-still; err != nil {
			t.Error(err)
		}
		if r := <-settled; r[0].Code != proto.CodeOK {
			t.Errorf("%+v", r)
		}
		if i := f.info("agent:ceo"); i.Waiting != 0 {
			t.Errorf("%+v", i)
		}
	})
}

// I21: a mail with a dedupe key that a program sends again is the same mail, though the box came to its
// node, or went from it and came back.
func TestDedupeKeysOfAMove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here, there := newFixture(t, Config{Self: homeID}), newFixture(t, Config{Self: originID})
		h := &handing{t: t, at: here, to: there, name: "agent:ceo"}
		h.at.mailbox(h.name)
		keyed := func(f *fixture, body string) []byte {
			return f.letter(body, func(l *proto.Letter) { l.Dedupe = []byte("k") })
		}
		again := func(f *fixture, body string) {
			t.Helper()
			sent, err := f.Send(t.Context(), []Item{{Box: h.name, Letter: keyed(f, body)}}, false)
			if err != nil || sent[0].Code != proto.CodeOK || !sent[0].Duplicate || sent[0].ID.IsZero() {
				t.Errorf("%s is sent again: %+v, %v", body, sent, err)
			}
		}
		if _, err := here.Send(t.Context(), []Item{{Box: h.name, Letter: keyed(here, "mine")}}, false); err != nil {
			t.Fatal(err)
		}
		here.take(&proto.Bundle{Number: 1, Box: h.name, Chain: proto.Normal, Runs: []*proto.Run{{Boot: 5, First: 1, Count: 1}}, Letters: keyed(here, "yours")}, nil)
		h.must(h.steps())
		again(there, "yours")
		h.at, h.to, h.moves = there, here, 9
		h.must(h.steps())
		again(here, "mine")
		if got := here.all(h.name); !slices.Equal(got, []string{"mine", "yours"}) {
			t.Errorf("%q", got)
		}
	})
}

// I21: a ledger that has lost a batch from before a box came there has all mail of the box, of which
// some may be delivered again.
func TestBoxThatCameBehindAGap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &handing{t: t, at: newFixture(t, Config{Self: originID}), to: newFixture(t, Config{Self: homeID}), name: "agent:ceo"}
		h.at.mailbox(h.name)
		h.at.send(h.name, "one", "two", "three")
		h.to.mailbox("agent:other")
		h.to.send("agent:other", "what is lost")
		h.must(h.steps())
		h.to.settle(h.name, h.to.first(h.name), box.Ack, proto.CodeOK)
		h.to.stop()
		damage(t, h.to.dir, "what is lost")
		dir := h.to.dir + "-rebuilt"
		if _, err := ledger.Rebuild(h.to.dir, dir); err != nil {
			t.Fatal(err)
		}
		h.to.dir = dir
		h.to.start()
		if got := h.to.all(h.name); !slices.Equal(got, []string{"one", "two", "three"}) {
			t.Errorf("mail %q", got)
		}
		h.to.restart()
		if got := h.to.all(h.name); len(got) > 0 {
			t.Errorf("after a restart: %q", got)
		}
	})
}

// Mail of the new home is in a box that came there as if it had been sent there: a dedupe key of its
// programs and of those of other nodes counts on, a lane of its own stays one lane, and a number that
// its spool had is known.
func TestMailOfTheNewHome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &handing{t: t, at: newFixture(t, Config{Self: originID}), to: newFixture(t, Config{Self: homeID}), name: "agent:ceo"}
		ctx := t.Context()
		if err := h.at.SetBox(ctx, box.BoxSettings{Name: h.name, Kind: box.Mailbox, PerPeer: true}); err != nil {
			t.Fatal(err)
		}
		letter := func(n int) []byte {
			return h.to.letter(fmt.Sprint(n), func(l *proto.Letter) { l.Dedupe, l.Key = []byte(fmt.Sprint("inv-", n)), []byte("k") })
		}
		bundle := func(n, generation uint64) *proto.Bundle {
			return &proto.Bundle{Number: n, Box: h.name, Generation: generation, Chain: proto.Normal, Runs: []*proto.Run{{Boot: 5, First: n, Count: 1}}, Letters: letter(int(n))}
		}
		third := proto.PeerID{7}
		for from, n := range map[proto.PeerID]uint64{homeID: 1, third: 2} {
			if a := h.at.arrived(from, bundle(n, 0)); a.GetUpToNumber() != n {
				t.Fatalf("%v", a)
			}
		}
		h.must(h.steps())
		sent, err := h.to.Send(ctx, []Item{{Box: h.name, Letter: letter(1)}, {Box: h.name, Letter: letter(3)}}, false)
		if err != nil || !sent[0].Duplicate || sent[1].Duplicate {
			t.Errorf("a key of its own program: %+v, %v", sent, err)
		}
		for from, n := range map[proto.PeerID]uint64{homeID: 1, third: 2} {
			if a := h.to.arrived(from, bundle(n, 2)); a.GetUpToNumber() != n {
				t.Errorf("a number that was taken: %v", a)
			}
		}
		again := bundle(3, 2)
		again.Letters = letter(2)
		if a := h.to.arrived(third, again); a.GetUpToNumber() != 3 {
			t.Errorf("a key of a third node: %v", a)
		}
		if i := h.to.info(h.name); i.Waiting != 3 {
			t.Errorf("%d mails wait", i.Waiting)
		}
		given, bodies := h.to.next(h.to.read(h.name, 3), 2)
		slices.Sort(bodies)
		if !slices.Equal(bodies, []string{"1", "2"}) || !given[0].From.IsZero() && !given[1].From.IsZero() {
			t.Errorf("given %q, %+v: 3 is behind 1", bodies, given)
		}
	})
}

// arrived hands over a bundle of a node, and returns the answer.
func (f *fixture) arrived(from proto.PeerID, m *proto.Bundle) *proto.Bundled {
	f.t.Helper()
	a, err := f.Arrive(from, m, nil)
	if err != nil {
		f.t.Fatal(err)
	}
	answer, err := a.Wait(f.t.Context())
	if err != nil {
		f.t.Fatal(err)
	}
	return answer
}

// A mail that is done and that the disk has lost keeps no box at its home; one that waits does.
func TestHandoverOfAnUnreadableMail(t *testing.T) {
	for lost, want := range map[string]error{"is done": nil, "waits": store.ErrCorrupt} {
		synctest.Test(t, func(t *testing.T) {
			h := &handing{t: t, at: newFixture(t, Config{Self: originID}), to: newFixture(t, Config{Self: homeID}), name: "agent:ceo"}
			if err := h.at.SetBox(t.Context(), box.BoxSettings{Name: h.name, Kind: box.Mailbox, Keep: time.Hour}); err != nil {
				t.Fatal(err)
			}
			h.at.send(h.name, "first", "a mail that is done", "a mail that waits", "last")
			given, _ := h.at.next(h.at.read(h.name, 2), 2)
			for _, d := range given {
				h.at.settle(h.name, d, box.Ack, proto.CodeOK)
			}
			h.at.restart()
			damage(t, h.at.dir, "a mail that "+lost)
			var err error
			for _, step := range h.steps() {
				if err = step(); err != nil {
					break
				}
			}
			if !errors.Is(err, want) {
				t.Errorf("the mail that %s is lost: %v, want %v", lost, err, want)
			}
			if err != nil {
				return
			}
			kept := -2 // those that wait
			if err := h.to.View(t.Context(), func(s *box.State) {
				for range s.Places(box.Cursor{}) {
					kept++
				}
			}); err != nil {
				t.Fatal(err)
			}
			if i := h.to.info(h.name); i.Waiting != 2 || kept != 1 {
				t.Errorf("%d mails wait, %d are kept", i.Waiting, kept)
			}
		})
	}
}

// A mail that is done and that the disk has lost stays behind alone, also if its piece has no
// other one: dead letters and the numbers of chains go to the new home.
func TestHandoverOfAPieceThatCannotBeRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &handing{t: t, at: newFixture(t, Config{Self: originID}), to: newFixture(t, Config{Self: homeID}), name: "agent:ceo"}
		if err := h.at.SetBox(t.Context(), box.BoxSettings{Name: h.name, Kind: box.Mailbox, Keep: time.Hour}); err != nil {
			t.Fatal(err)
		}
		long := "a mail that is done" + strings.Repeat(".", lookingMails) // it fills a piece
		h.at.send(h.name, "a mail that dies", long)
		given, _ := h.at.next(h.at.read(h.name, 2), 2)
		h.at.settle(h.name, given[0], box.Final, proto.CodeOK)
		h.at.settle(h.name, given[1], box.Ack, proto.CodeOK)
		taken := &proto.Bundle{Number: 1, Box: h.name, Chain: proto.Normal, Runs: []*proto.Run{{Boot: 5, First: 1, Count: 1}}, Letters: h.at.letter("taken", nil)}
		h.at.take(taken, nil)
		h.at.restart()
		damage(t, h.at.dir, "a mail that is done")
		h.must(h.steps())
		dead := 0
		if err := h.to.View(t.Context(), func(s *box.State) {
			id, _ := s.Find(h.name)
			for range s.DeadLetters(id, 0, 0) {
				dead++
			}
		}); err != nil {
			t.Fatal(err)
		}
		if dead != 1 {
			t.Errorf("%d dead letters at the new home, want 1; the old home has the box: %v", dead, h.at.Has(h.name))
		}
		taken.Generation = 2
		h.to.take(taken, nil) // its answer was lost: it is sent again
		if i := h.to.info(h.name); i.Waiting != 1 {
			t.Errorf("%d mails wait, want 1: the mail was taken again", i.Waiting)
		}
	})
}
