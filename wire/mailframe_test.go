package wire

import (
	"bytes"
	"errors"
	"reflect"
	"testing"
)

// examples has a frame of each op.
func examples() map[byte][]byte {
	read := ReadMail{"agent:ceo", "billing", "w1", -3, 256}
	lease := FramedLease{1, 2, 3}
	frame := func(op byte, body func([]byte) []byte) []byte { return AppendMailFrame(nil, op, 7, body) }
	return map[byte][]byte{
		OpSend: frame(OpSend, func(b []byte) []byte {
			return AppendSend(b, []FramedMail{{[]byte("a"), []byte("one")}, {[]byte("a"), []byte("two")}, {[]byte("b"), []byte{}}})
		}),
		OpRead: frame(OpRead, read.Append),
		OpSettle: frame(OpSettle, func(b []byte) []byte {
			return AppendSettle(b, 5, []FramedSettlement{{FrameAck, lease, 0, []byte{}}, {FrameNack, lease, 1000, []byte("why")}})
		}),
		OpCredit: frame(OpCredit, func(b []byte) []byte { return AppendCredit(b, 9) }),
		OpStop:   frame(OpStop, nil),
		OpSent: frame(OpSent, func(b []byte) []byte {
			b = AppendResult(append(b, 0, 2), &FramedResult{ID: [16]byte{1}, Seq: 4, Known: true})
			return AppendResult(b, &FramedResult{Code: CodeFull, Detail: "no"})
		}),
		OpDelivered: frame(OpDelivered, func(b []byte) []byte {
			return AppendDelivery(append(b, 0, 1), &FramedDelivery{lease, 2, true, 3000, [32]byte{9}, []byte("letter")})
		}),
		OpSettled: frame(OpSettled, func(b []byte) []byte {
			return AppendSettled(b, []FramedSettled{{0, SettledOK, 50}, {3, SettledOutOfOrder, 0}}, CodeUnknown, "why")
		}),
		OpRequest: frame(OpRequest, func(b []byte) []byte {
			return AppendRequest(b, &FramedRequest{1000, []string{"peer:beta", "*"}, FramedMail{[]byte("agent:ceo"), []byte("letter")}})
		}),
		OpReplied: frame(OpReplied, func(b []byte) []byte {
			return AppendReply(b, &FramedReply{[16]byte{1}, true, CodeBounced, "dead", [32]byte{9}, []byte("letter")})
		}),
		OpEnd: frame(OpEnd, func(b []byte) []byte { return AppendEnd(b, CodeHeld, "by a", "beta") }),
	}
}

// decode decodes the body of a frame and encodes it again.
func decode(f MailFrame) (again []byte, v any, err error) {
	var body func([]byte) []byte
	switch f.Op {
	case OpSend:
		mails, e := f.Mails(nil)
		v, err, body = mails, e, func(b []byte) []byte { return AppendSend(b, mails) }
	case OpRead:
		r, e := f.Read()
		v, err, body = r, e, r.Append
	case OpSettle:
		session, what, e := f.Settle(nil)
		v, err, body = what, e, func(b []byte) []byte { return AppendSettle(b, session, what) }
	case OpCredit:
		n, e := f.Credit()
		v, err, body = n, e, func(b []byte) []byte { return AppendCredit(b, n) }
	case OpSent:
		results, e := f.Results(nil)
		v, err, body = results, e, func(b []byte) []byte {
			b = append(b, byte(len(results)>>8), byte(len(results)))
			for i := range results {
				b = AppendResult(b, &results[i])
			}
			return b
		}
	case OpDelivered:
		given, e := f.Deliveries(nil)
		v, err, body = given, e, func(b []byte) []byte {
			b = append(b, byte(len(given)>>8), byte(len(given)))
			for i := range given {
				b = AppendDelivery(b, &given[i])
			}
			return b
		}
	case OpSettled:
		what, code, detail, e := f.Settled()
		v, err, body = what, e, func(b []byte) []byte { return AppendSettled(b, what, code, detail) }
	case OpRequest:
		r, e := f.Request()
		v, err, body = r, e, func(b []byte) []byte { return AppendRequest(b, &r) }
	case OpReplied:
		r, e := f.Reply()
		v, err, body = r, e, func(b []byte) []byte { return AppendReply(b, &r) }
	case OpEnd:
		code, detail, home, e := f.End()
		v, err, body = detail, e, func(b []byte) []byte { return AppendEnd(b, code, detail, home) }
	default:
		err = f.Empty()
	}
	return AppendMailFrame(nil, f.Op, f.Ref, body), v, err
}

// TestFramesAreReadAsTheyWereWritten encodes what it has decoded, and cuts each frame short.
func TestFramesAreReadAsTheyWereWritten(t *testing.T) {
	for op, b := range examples() {
		f, rest, err := CutMailFrame(append(b, "rest"...))
		if err != nil || f.Op != op || f.Ref != 7 || string(rest) != "rest" {
			t.Fatalf("op %#x: %+v, %q, %v", op, f, rest, err)
		}
		again, v, err := decode(f)
		if err != nil || !bytes.Equal(again, b) {
			t.Errorf("op %#x: %+v, %v\n%x\n%x", op, v, err, b, again)
		}
		for n := range len(b) {
			if _, _, err := CutMailFrame(b[:n]); !errors.Is(err, ErrBadFrame) {
				t.Errorf("op %#x, %d bytes of %d: %v", op, n, len(b), err)
			}
		}
		for n := range len(f.Body) {
			if _, _, err := decode(MailFrame{f.Op, f.Ref, f.Body[:n]}); !errors.Is(err, ErrBadFrame) {
				t.Errorf("op %#x, %d bytes of body: %v", op, n, err)
			}
		}
		if _, _, err := decode(MailFrame{f.Op, f.Ref, append(f.Body[:len(f.Body):len(f.Body)], 0)}); !errors.Is(err, ErrBadFrame) {
			t.Errorf("op %#x with a byte behind it: %v", op, err)
		}
	}
	f, _, _ := CutMailFrame(examples()[OpRead])
	if r, err := f.Read(); err != nil || r != (ReadMail{"agent:ceo", "billing", "w1", -3, 256}) {
		t.Errorf("%+v, %v", r, err)
	}
}

// FuzzMailFrame decodes any message: what can be decoded is the same after it was encoded.
func FuzzMailFrame(f *testing.F) {
	for _, b := range examples() {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, msg []byte) {
		for len(msg) > 0 {
			x, rest, err := CutMailFrame(msg)
			if err != nil {
				return
			}
			if again, v, err := decode(x); err == nil {
				y, _, err := CutMailFrame(again)
				if err != nil {
					t.Fatal(err)
				}
				if _, w, err := decode(y); err != nil || !reflect.DeepEqual(v, w) {
					t.Fatalf("%+v became %+v, %v", v, w, err)
				}
			}
			msg = rest
		}
	})
}

// A result that has no word of its own is not told as one that counts.
func TestSettledOfAnUnknownWord(t *testing.T) {
	what, _, _, err := MailFrame{Body: AppendSettled(nil, []FramedSettled{{Code: "LATER"}}, "", "")}.Settled()
	if err != nil || len(what) != 1 || what[0].Code != SettledUnknown {
		t.Errorf("%+v, %v", what, err)
	}
}
