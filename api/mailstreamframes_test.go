package api

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/coder/websocket"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// letterOf returns an encoded letter.
func letterOf(t testing.TB, body string, change func(*proto.Letter)) []byte {
	t.Helper()
	now := time.Now()
	l := &proto.Letter{Class: proto.Normal, ID: proto.NewMailID(now), Created: now.UnixMilli(), NotAfter: now.Add(time.Hour).UnixMilli(), Body: []byte(body)}
	if change != nil {
		change(l)
	}
	b, err := proto.AppendLetter(nil, l)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// sendFrame returns a send of letters to one box.
func sendFrame(ref uint32, to string, letters ...[]byte) []byte {
	var mails []wire.FramedMail
	for _, l := range letters {
		mails = append(mails, wire.FramedMail{To: []byte(to), Letter: l})
	}
	return wire.AppendMailFrame(nil, wire.OpSend, ref, func(b []byte) []byte { return wire.AppendSend(b, mails) })
}

func readFrame(session uint32, box string, credit uint64) []byte {
	r := wire.ReadMail{Box: box, Credit: credit}
	return wire.AppendMailFrame(nil, wire.OpRead, session, r.Append)
}

// A frames is the client's end of a connection with frames.
type frames struct {
	t    testing.TB
	c    *websocket.Conn
	left []byte
}

func (f *frames) write(b ...[]byte) {
	f.t.Helper()
	var msg []byte
	for _, x := range b {
		msg = append(msg, x...)
	}
	if err := f.c.Write(f.t.Context(), websocket.MessageBinary, msg); err != nil {
		f.t.Fatal(err)
	}
}

// next returns the next frame, which must have this op and ref.
func (f *frames) next(op byte, ref uint32) wire.MailFrame {
	f.t.Helper()
	x := f.any()
	if x.Op != op || x.Ref != ref {
		f.t.Fatalf("op %#x ref %d; want %#x %d", x.Op, x.Ref, op, ref)
	}
	return x
}

// any returns the next frame.
func (f *frames) any() wire.MailFrame {
	f.t.Helper()
	if len(f.left) == 0 {
		ctx, cancel := context.WithTimeout(f.t.Context(), time.Minute)
		defer cancel()
		var err error
		if _, f.left, err = f.c.Read(ctx); err != nil {
			f.t.Fatal(err)
		}
	}
	x, rest, err := wire.CutMailFrame(f.left)
	if f.left = rest; err != nil {
		f.t.Fatal(err)
	}
	return x
}

// TestSessionsOfOneMessageKeepTheirNumbers begins many sessions with one message: each gets
// its mail under its own number.
func TestSessionsOfOneMessageKeepTheirNumbers(t *testing.T) {
	const sessions = 50
	n := mailNode(t)
	dial, _ := serveMail(t, n)
	f := &frames{t: t, c: dial(wire.MailFrames)}
	var begin, letters [][]byte
	for i := range uint32(sessions) {
		letters = append(letters, letterOf(t, "x", nil))
		begin = append(begin, readFrame(1+i, "agent:ceo", 1))
	}
	f.write(sendFrame(1, "agent:ceo", letters...))
	f.next(wire.OpSent, 1)
	f.write(begin...)
	seen := map[uint32]bool{}
	for len(seen) < sessions {
		x := f.any()
		if x.Op != wire.OpDelivered || x.Ref == 0 || x.Ref > sessions || seen[x.Ref] {
			t.Fatalf("op %#x ref %d after %d sessions had their mail", x.Op, x.Ref, len(seen))
		}
		seen[x.Ref] = true
	}
}

// TestMailFrames sends letters that arrive as they were sent, but for the trace context that one
// without gets, and refuses what a program may not set.
func TestMailFrames(t *testing.T) {
	n := mailNode(t)
	dial, _ := serveMail(t, n)
	f := &frames{t: t, c: dial(wire.MailFrames)}
	one := letterOf(t, "one", func(l *proto.Letter) {
		l.Dedupe, l.Traceparent = []byte("d"), []byte("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
	})
	two := letterOf(t, "two", func(l *proto.Letter) { l.Flags = proto.LetterRelaxed })
	bad := [][]byte{
		letterOf(t, "", func(l *proto.Letter) { l.RedriveOf = l.ID }),
		letterOf(t, "", func(l *proto.Letter) { l.FirstID = l.ID }),
		letterOf(t, "", func(l *proto.Letter) { l.BounceOf = l.ID }),
		letterOf(t, "", func(l *proto.Letter) { l.Object = proto.LetterObject{Size: 1} }),
		letterOf(t, "", func(l *proto.Letter) { l.Flags = proto.LetterReceipt | proto.LetterRelaxed }),
		letterOf(t, "", func(l *proto.Letter) { l.Hops = 17 }),
		letterOf(t, "", func(l *proto.Letter) { l.Subject = []byte("eu") }),
		letterOf(t, "", func(l *proto.Letter) { l.Created, l.NotAfter = l.Created+2*60_000, l.NotAfter+2*60_000 }),
		letterOf(t, "", func(l *proto.Letter) { l.Later = []byte{99, 0, 0} }),
		[]byte("no letter"), nil, one[:len(one)-1],
	}
	f.write(sendFrame(1, "agent:ceo", append([][]byte{one, two, one}, bad...)...))
	var letters []string
	var acks []wire.FramedSettlement
	results, err := f.next(wire.OpSent, 1).Results(nil)
	if err != nil || len(results) != 3+len(bad) {
		t.Fatalf("%+v, %v", results, err)
	}
	for i, r := range results {
		if i < 3 != (r.Code == "") || i >= 3 && r.Code != wire.CodeInvalid || r.Known != (i == 2) {
			t.Errorf("mail %d: %+v", i, r)
		}
	}
	if results[2].ID != results[0].ID || results[2].Seq != results[0].Seq {
		t.Errorf("the second one with a dedupe key: %+v", results[2])
	}
	f.write(readFrame(5, "agent:ceo", 10))
	for len(letters) < 2 {
		given, err := f.next(wire.OpDelivered, 5).Deliveries(nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range given {
			letters, acks = append(letters, string(d.Letter)), append(acks, wire.FramedSettlement{Op: wire.FrameAck, Lease: d.Lease})
			if d.Attempt != 1 || d.Redelivered || d.Ms == 0 || d.From != [32]byte{} {
				t.Errorf("%+v", d)
			}
		}
	}
	l, err := proto.ParseLetter([]byte(letters[1]))
	if err != nil || len(l.Traceparent) == 0 {
		t.Errorf("trace %q, %v", l.Traceparent, err)
	}
	l.Traceparent = nil
	if rest, err := proto.AppendLetter(nil, &l); err != nil || letters[0] != string(one) || string(rest) != string(two) {
		t.Errorf("%q, %v", letters, err)
	}
	acks = append(acks, wire.FramedSettlement{Op: wire.FrameExtend, Lease: wire.FramedLease{Seq: 9, Boot: 1, N: 1}, Ms: 5})
	f.write(wire.AppendMailFrame(nil, wire.OpSettle, 6, func(b []byte) []byte { return wire.AppendSettle(b, 5, acks) }), wire.AppendMailFrame(nil, wire.OpPing, 8, nil))
	f.next(wire.OpPong, 8)
	what, code, _, err := f.next(wire.OpSettled, 6).Settled()
	if err != nil || code != "" || len(what) != 1 || what[0].Index != 2 || what[0].Code != wire.SettledUnknown {
		t.Errorf("%+v, %s, %v", what, code, err)
	}
	f.write(wire.AppendMailFrame(nil, wire.OpStop, 5, nil))
	if code, _, home, err := f.next(wire.OpEnd, 5).End(); code != "" || home != "" || err != nil {
		t.Errorf("%s, %v", code, err)
	}
	f.write(wire.AppendMailFrame(nil, wire.OpSettle, 0, func(b []byte) []byte { return wire.AppendSettle(b, 5, acks) }))
	if what, code, _, err := f.next(wire.OpSettled, 0).Settled(); err != nil || code != wire.CodeNotFound || len(what) != 0 {
		t.Errorf("of a session that has ended: %+v, %s, %v", what, code, err)
	}
	if b, err := n.Mail.Get(t.Context(), "ceo"); err != nil || b.Waiting != 0 || b.Ended.Done != 2 {
		t.Errorf("%+v, %v", b, err)
	}
}

// TestReasonsInFramesAreOneLine checks that a reason in a frame is kept like any other: what
// follows a line break in a kept reason is what a program wrote.
func TestReasonsInFramesAreOneLine(t *testing.T) {
	long := append([]byte("no\n"), bytes.Repeat([]byte("ä"), 200)...)
	got, err := appendSettlements(nil, []wire.FramedSettlement{{Op: wire.FrameFinal, Reason: long}})
	if err != nil || len(got) != 1 || strings.Contains(got[0].Reason, "\n") || !utf8.ValidString(got[0].Reason) || !strings.HasPrefix(got[0].Reason, "no ä") {
		t.Errorf("%+v, %v", got, err)
	}
}
