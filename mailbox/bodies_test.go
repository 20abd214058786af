package mailbox

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/bodies"
	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/mail"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport"
	"github.com/balefire/balefire/wire"
)

// A sender stands in for the transfer of bodies to other nodes.
type sender struct {
	err  error
	sent []string
	to   func(offer *proto.Offer, name string) error // nil: nobody
}

func (s *sender) Send(_ context.Context, _ proto.PeerID, offer *proto.Offer, name string) error {
	if s.sent = append(s.sent, name); s.to != nil {
		return s.to(offer, name)
	}
	return s.err
}

// openBodies opens the store of bodies as a start does.
func (f *fixture) openBodies() {
	f.t.Helper()
	var err error
	f.objects, err = bodies.Open(f.blobs, bodies.Config{Clock: clock.Runtime(), MaxTotal: 8 << 20})
	f.must(err)
}

// crash ends the boxes and the store of bodies, and starts both again.
func (f *fixture) crash() {
	f.t.Helper()
	f.stop()
	f.must(f.objects.Close())
	f.openBodies()
	f.start()
}

// needs are the records of a node that has only mail.
type needs struct{ *fixture }

func (n needs) Mark(refer func(name string, origin proto.PeerID)) error {
	return n.Objects(context.Background(), func(name [32]byte, origin proto.PeerID) { refer(proto.ObjectFile(name), origin) })
}

func (needs) Awaits(proto.TaskID) bool { return false }

// stored sweeps, and checks how many bodies are left. What has ended has been told before: a sweep
// spares a body of which it is told meanwhile.
func (f *fixture) stored(want int) {
	f.t.Helper()
	synctest.Wait()
	if _, err := f.objects.Sweep(f.t.Context(), needs{f}); err != nil {
		f.t.Fatal(err)
	}
	if u := f.objects.Usage(); u.Blobs != want || u.Parts != 0 {
		f.t.Errorf("%d bodies and %d parts are stored, want %d", u.Blobs, u.Parts, want)
	}
}

// large returns a body that is no letter's, and does not compress.
func large(size int) []byte {
	b := make([]byte, size)
	rand.NewChaCha8([32]byte{byte(size)}).Read(b)
	return b
}

// stream lets a mail have a body of any size.
func stream(body []byte) func(*wire.Mail) {
	return func(m *wire.Mail) { m.Body, m.Stream = nil, bytes.NewReader(body) }
}

// body reads the body of a delivery.
func (f *fixture) body(name, sub string, d wire.DeliveredMail) ([]byte, error) {
	f.t.Helper()
	r, m, err := f.DeliveredBody(f.t.Context(), name, sub, d.Lease)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	if m.ID != d.Mail.ID {
		f.t.Errorf("the body of %s, not of %s", m.ID, d.Mail.ID)
	}
	return io.ReadAll(r)
}

// damage changes a byte in the middle of each body that is stored.
func (f *fixture) damage() {
	f.t.Helper()
	files, err := filepath.Glob(filepath.Join(f.blobs, "o-*"))
	f.must(err)
	for _, name := range files {
		b, err := os.ReadFile(name)
		f.must(err)
		b[len(b)/2] ^= 1
		f.must(os.WriteFile(name, b, 0o600))
	}
}

// TestLargeBodies sends bodies around the limit of a letter, and larger ones, and reads them by the
// lease and by the id of their mail.
func TestLargeBodies(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", nil)
		for _, size := range []int{0, 1, proto.MaxInlineBody, proto.MaxInlineBody + 1, 1 << 20, 3<<20 + 5} {
			body := large(size)
			sent := f.mail("agent:ceo", "", stream(body))
			d := f.one("ceo", "", string(body[:size*min(1, proto.MaxInlineBody/max(size, 1))]))
			if isLarge := size > proto.MaxInlineBody; d.Mail.Size != int64(size) || (d.Mail.Digest != "") != isLarge || isLarge && len(d.Mail.Body) > 0 {
				t.Errorf("%d bytes: %+v", size, d.Mail.Digest)
			}
			if got, err := f.body("ceo", "", d); err != nil || !bytes.Equal(got, body) {
				t.Errorf("%d bytes by its lease: %d, %v", size, len(got), err)
			}
			r, _, err := f.Body(t.Context(), sent.ID)
			f.must(err)
			if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, body) {
				t.Errorf("%d bytes by its id: %d, %v", size, len(got), err)
			}
			f.must(r.Close())
			f.ack("ceo", "", d)
			if _, err := f.body("ceo", "", d); !errors.Is(err, wire.ErrNotFound) {
				t.Errorf("the body of a mail that has ended: %v", err)
			}
			f.stored(0)
		}
	})
}

// TestRefusedLargeBodies leaves nothing of what is refused.
func TestRefusedLargeBodies(t *testing.T) {
	errBody := errors.New("the program died")
	for _, tt := range []struct {
		name, to string
		before   int // bodies of 3 MiB
		body     io.Reader
		want     error
		says     string
	}{
		{"above the limit", "agent:ceo", 0, bytes.NewReader(large(4<<20 + 1)), wire.ErrTooLarge, "at most 4194304"},
		{"above the limit, and small when it is compressed", "agent:ceo", 0, bytes.NewReader(make([]byte, 5<<20)), wire.ErrTooLarge, "5242880 bytes, at most 4194304"},
		{"no space", "agent:ceo", 2, bytes.NewReader(large(3 << 20)), wire.ErrFull, "no space for the body"},
		{"no such box", "agent:none", 0, bytes.NewReader(large(1 << 20)), wire.ErrNotFound, "mailbox add none"},
		{"a box that takes nothing", "agent:draining", 0, bytes.NewReader(large(1 << 20)), wire.ErrRefused, "takes no new mail"},
		{"cut off", "agent:ceo", 0, io.MultiReader(bytes.NewReader(large(1<<20)), brokenBody{errBody}), errBody, "store the body"},
		{"nonsense", "nobody@nowhere", 0, brokenBody{errors.New("it was read")}, wire.ErrInvalid, "agent:"},
		{"a reply", "agent:" + wire.ReplyBoxName([16]byte{1}) + "@beta", 0, bytes.NewReader(large(1 << 20)), wire.ErrTooLarge, "a reply to a request"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, f *fixture) {
				f.mailbox("ceo", nil)
				f.mailbox("draining", func(s *wire.MailboxSettings) { s.Draining = new(bool); *s.Draining = true })
				for range tt.before {
					f.mail("agent:ceo", "", stream(large(3<<20)))
				}
				_, err := f.trySend(tt.to, "", func(m *wire.Mail) { m.Stream = tt.body })
				f.refused(err, tt.want, tt.says)
				f.stored(tt.before)
			})
		})
	}
}

// A brokenBody cannot be read.
type brokenBody struct{ err error }

func (b brokenBody) Read([]byte) (int, error) { return 0, b.err }

// I21: TestSweepsSpareBodiesOnTheirWay sweeps between a body and its letter, and crashes there and
// behind the letter.
func TestSweepsSpareBodiesOnTheirWay(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		at := ""
		f.fail = func(point string) error {
			if point == at {
				f.stored(1)
			}
			return nil
		}
		f.stop()
		f.start()
		f.mailbox("ceo", nil)
		body := large(1 << 20)
		for _, at = range []string{PointSend, PointSent} {
			f.mail("agent:ceo", "", stream(body))
			d, _ := f.lease("ceo", "", 9, 0)
			if got, err := f.body("ceo", "", d[0]); err != nil || !bytes.Equal(got, body) {
				t.Errorf("%s: %d bytes, %v", at, len(got), err)
			}
			f.ack("ceo", "", d[0])
			f.stored(0)
		}
		at = ""
		f.mail("agent:ceo", "", stream(body)) // killed behind the letter
		f.crash()
		f.stored(1)
		d, _ := f.lease("ceo", "", 9, time.Minute)
		if got, err := f.body("ceo", "", d[0]); err != nil || !bytes.Equal(got, body) {
			t.Errorf("%d bytes, %v", len(got), err)
		}
		f.ack("ceo", "", d[0])
		if _, err := f.bodies.seal(t.Context(), bytes.NewReader(body)); err != nil { // killed before the letter
			t.Fatal(err)
		}
		if n := f.objects.Usage().Blobs; n == 0 {
			t.Error("there is no body")
		}
		f.crash()
		f.stored(0)
		f.fail = func(string) error { return errors.New("a failpoint") }
		f.stop()
		f.start()
		if _, err := f.trySend("agent:ceo", "", stream(body)); err == nil {
			t.Error("it was sent")
		}
		f.stored(0)
	})
}

// TestBodiesEndWithTheirMail follows bodies through the ends of mail, and through its second life.
func TestBodiesEndWithTheirMail(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", func(s *wire.MailboxSettings) {
			age := wire.Duration(time.Hour)
			s.DeadAge = &age
		})
		f.mailbox("next", nil)
		body := large(1 << 20)
		f.mail("agent:ceo", "", stream(body))
		_, err := f.Purge(t.Context(), "ceo", wire.PurgeMail{})
		f.must(err)
		f.stored(0)
		f.mail("agent:ceo", "", func(m *wire.Mail) {
			stream(body)(m)
			m.TTL = wire.Duration(time.Second)
		})
		time.Sleep(time.Minute)
		synctest.Wait()
		f.stored(0)
		f.mail("agent:ceo", "", func(m *wire.Mail) {
			stream(body)(m)
			m.Dedupe = "once"
		})
		if sent := f.mail("agent:ceo", "", func(m *wire.Mail) {
			stream(body)(m)
			m.Dedupe = "once"
		}); !sent.Known {
			t.Error("it was sent twice")
		}
		f.stored(1)
		if _, err := f.trySend("agent:ceo", "", func(m *wire.Mail) {
			stream(large(2 << 20))(m)
			m.Dedupe = "once"
		}); !errors.Is(err, wire.ErrKeyConflict) {
			t.Errorf("another body with the same key: %v", err)
		}
		f.kill("ceo", "", "")
		f.stored(1) // the dead letter
		if out, err := f.Redrive(t.Context(), "ceo", "", wire.RedriveMail{To: "agent:next"}); err != nil || len(out.Items) != 1 {
			t.Fatalf("%+v, %v", out, err)
		}
		f.stored(1)
		time.Sleep(2 * time.Hour) // it is archived
		synctest.Wait()
		f.stored(1)
		d, _ := f.lease("next", "", 9, 0)
		if got, err := f.body("next", "", d[0]); err != nil || !bytes.Equal(got, body) {
			t.Errorf("the redriven one: %d bytes, %v", len(got), err)
		}
		f.ack("next", "", d[0])
		f.stored(0)
	})
}

// TestDamagedBodiesAreRefused has the disk change bodies: no reader gets one to its end, no handler
// any of it.
func TestDamagedBodiesAreRefused(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", nil)
		f.mailbox("raw", nil)
		body := large(1 << 20)
		sent := f.mail("agent:ceo", "", stream(body))
		f.damage()
		d, _ := f.lease("ceo", "", 9, 0)
		if got, err := f.body("ceo", "", d[0]); !errors.Is(err, bodies.ErrSealed) || len(got) >= len(body) {
			t.Errorf("%d bytes, %v", len(got), err)
		}
		f.programs.run = func(context.Context, *handler.Run, string) *handler.Result {
			t.Error("a program got a damaged body")
			return &handler.Result{}
		}
		f.mail("agent:raw", "", stream(body))
		f.damage()
		f.handle(wire.MailHandler{})
		time.Sleep(time.Minute)
		if dead := f.inState("raw", "DEAD"); len(dead) != 1 || dead[0].Cause != "final" {
			t.Errorf("%+v", dead)
		}
		f.crash()
		files, err := filepath.Glob(filepath.Join(f.blobs, "o-*"))
		f.must(err)
		for _, name := range files {
			f.must(os.Remove(name))
		}
		_, _, err = f.Body(t.Context(), sent.ID)
		f.refused(err, wire.ErrRefused, "is lost on this disk")
		_, err = f.Redrive(t.Context(), "raw", "", wire.RedriveMail{})
		f.refused(err, wire.ErrRefused, "no longer stored")
	})
}

// TestHandlersGetLargeBodies has a program read one.
func TestHandlersGetLargeBodies(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("raw", nil)
		body, got := large(2<<20), ""
		f.programs.run = func(_ context.Context, _ *handler.Run, s string) *handler.Result {
			got = s
			return &handler.Result{Outcome: handler.Success}
		}
		f.handle(wire.MailHandler{})
		f.mail("agent:raw", "", stream(body))
		time.Sleep(time.Minute)
		synctest.Wait()
		if got != string(body) {
			t.Errorf("it got %d bytes", len(got))
		}
		f.stored(0)
	})
}

// letterWith returns a letter of beta whose body is an object.
func letterWith(o proto.LetterObject) *proto.Letter {
	now := time.Now()
	return &proto.Letter{Class: proto.Normal, ID: proto.NewMailID(now), Created: now.UnixMilli(), NotAfter: now.Add(time.Hour).UnixMilli(), Object: o}
}

// TestABoxAsksForABody has beta send letters whose bodies are there, are not, and are too large.
func TestABoxAsksForABody(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", f.allowAll)
		f.mailbox("closed", nil)
		name := func(box string) string { return "agent:" + box + "@" + f.self.String() }
		here, err := f.bodies.seal(t.Context(), bytes.NewReader(large(1<<20)))
		f.must(err)
		f.objects.Release(here.File())
		huge := proto.LetterObject{Name: [32]byte{1}, Size: 5 << 20}
		for _, tt := range []struct {
			name, box string
			object    proto.LetterObject
			want      proto.Code
		}{
			{"it is not here", "ceo", proto.LetterObject{Name: [32]byte{1}, Size: 1 << 20}, proto.CodeNeedBody},
			{"it is here", "ceo", here, proto.CodeOK},
			{"it is too large", "ceo", huge, proto.CodeTooLarge},
			{"the box is closed", "closed", huge, proto.CodeDenied},
			{"there is no box", "none", huge, proto.CodeNoHandler},
		} {
			code, detail := f.Wants(t.Context(), f.beta, proto.OfferedMail{Box: name(tt.box)}, letterWith(tt.object))
			if code != tt.want || (detail == "") != (code == proto.CodeOK) {
				t.Errorf("%s: %v: %s, want %v", tt.name, code, detail, tt.want)
			}
		}
		f.stored(1) // it waits for its letter
		time.Sleep(2 * time.Hour)
		f.stored(0)
	})
}

// TestWhatBecameOfASentBody tells the spool how a body was received.
func TestWhatBecameOfASentBody(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		o := letterWith(proto.LetterObject{Name: [32]byte{1}, Size: 1 << 20})
		letter, err := proto.AppendLetter(nil, o)
		f.must(err)
		x := &mail.MissingBody{Box: "agent:ceo", Letter: letter}
		f.must(f.bodies.send(t.Context(), f.beta, x))
		if f.sender.sent[0] != o.Object.File() {
			t.Errorf("%q was sent", f.sender.sent)
		}
		f.sender.err = &transport.CodeError{Code: proto.CodeFull, Detail: "no space for the body"}
		if refused, ok := errors.AsType[*mail.RefusedError](f.bodies.send(t.Context(), f.beta, x)); !ok || refused.Code != proto.CodeFull || refused.Detail != "no space for the body" {
			t.Errorf("%+v", refused)
		}
		for _, lost := range []error{bodies.ErrDamaged, bodies.ErrNotFound} {
			f.sender.err = lost
			if err := f.bodies.send(t.Context(), f.beta, x); !errors.Is(err, mail.ErrNoBody) {
				t.Errorf("%v: %v", lost, err)
			}
		}
		f.sender.err = transport.ErrNotConnected
		if err := f.bodies.send(t.Context(), f.beta, x); !errors.Is(err, transport.ErrNotConnected) || errors.Is(err, mail.ErrNoBody) {
			t.Errorf("%v", err)
		}
	})
}
