package main

import (
	"encoding/json"
	"slices"
	"testing"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// TestFramesAreThoseOfTheNode checks what the node would read of a request, and what is read
// of its answers.
func TestFramesAreThoseOfTheNode(t *testing.T) {
	var f frames
	msg, err := f.appendSend(nil, &mailLoad{To: mailboxHere, Relaxed: true}, [][]byte{[]byte("one"), []byte("two")})
	if err != nil {
		t.Fatal(err)
	}
	x, rest, err := wire.CutMailFrame(msg)
	if err != nil || len(rest) > 0 || x.Op != wire.OpSend {
		t.Fatalf("%+v, %d bytes more, %v", x, len(rest), err)
	}
	mails, err := x.Mails(nil)
	if err != nil || len(mails) != 2 {
		t.Fatalf("%d mails, %v", len(mails), err)
	}
	var ids []proto.MailID
	for i, want := range []string{"one", "two"} {
		l, err := proto.ParseLetter(mails[i].Letter)
		if err != nil || string(l.Body) != want || string(mails[i].To) != mailboxHere || l.Flags != proto.LetterRelaxed || len(l.Dedupe) > 0 {
			t.Errorf("%+v to %q, %v", l, mails[i].To, err)
		}
		ids = append(ids, l.ID)
	}
	if ids[0] == ids[1] {
		t.Error("two mails have one id")
	}
	msg = wire.AppendMailFrame(nil, wire.OpSent, 0, func(b []byte) []byte {
		b = append(b, 0, 2)
		b = wire.AppendResult(b, &wire.FramedResult{Seq: 1})
		return wire.AppendResult(b, &wire.FramedResult{Code: wire.CodeFull, Detail: "the box is full"})
	})
	msg = wire.AppendMailFrame(msg, wire.OpDelivered, mailSession, func(b []byte) []byte {
		return wire.AppendDelivery(append(b, 0, 1), &wire.FramedDelivery{Lease: wire.FramedLease{Seq: 7, Boot: 8, N: 9}, Letter: mails[1].Letter})
	})
	msg = wire.AppendMailFrame(msg, wire.OpSettled, 3, func(b []byte) []byte {
		return wire.AppendSettled(b, []wire.FramedSettled{{Index: 1, Code: wire.SettledStale}}, "", "")
	})
	var a arrived
	if err := f.read(msg, &a); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(a.sent, []int{1}) || a.refused != 1 || a.settled != 3 || a.stale != 1 || len(a.bodies) != 1 || string(a.bodies[0]) != "two" {
		t.Errorf("%+v", a)
	}
	acks, err := f.appendAcks(nil)
	if err != nil {
		t.Fatal(err)
	}
	x, _, err = wire.CutMailFrame(acks)
	if err != nil {
		t.Fatal(err)
	}
	session, what, err := x.Settle(nil)
	if err != nil || x.Ref != 1 || session != mailSession || len(what) != 1 || what[0].Op != wire.FrameAck || what[0].Lease != (wire.FramedLease{Seq: 7, Boot: 8, N: 9}) {
		t.Errorf("request %d, session %d, %+v, %v", x.Ref, session, what, err)
	}
}

func TestDocumentsAreThoseOfTheNode(t *testing.T) {
	var f documents
	msg, err := f.appendSend(nil, &mailLoad{To: mailboxHere}, [][]byte{[]byte("one")})
	if err != nil {
		t.Fatal(err)
	}
	var sent struct {
		Op    string
		Mails []wire.Mail
	}
	if err := json.Unmarshal(msg, &sent); err != nil || sent.Op != "send" || len(sent.Mails) != 1 || string(sent.Mails[0].Body) != "one" || sent.Mails[0].To != mailboxHere {
		t.Errorf("%s: %v", msg, err)
	}
	var a arrived
	for _, doc := range []string{
		`{"op":"sent","ref":1,"results":[{"id":"x"},{"problem":{"code":"FULL"}}]}`,
		`{"op":"settled","ref":2,"stale":[{"lease":"1.2.3","code":"STALE"}]}`,
		`{"op":"mail","session":1,"mails":[{"lease":"1.2.4","mail":{"body":"dHdv"}}]}`,
	} {
		if err := f.read([]byte(doc), &a); err != nil {
			t.Errorf("%s: %v", doc, err)
		}
	}
	if !slices.Equal(a.sent, []int{1}) || a.refused != 1 || a.settled != 2 || a.stale != 1 || len(a.bodies) != 1 || string(a.bodies[0]) != "two" {
		t.Errorf("%+v", a)
	}
	if acks, err := f.appendAcks(nil); err != nil || string(acks) != `{"op":"settle","ref":1,"session":1,"ack":["1.2.4"]}` {
		t.Errorf("%s: %v", acks, err)
	}
}

// TestMailIsDoneWhenEveryReaderIs checks the counting of a topic with two readers.
func TestMailIsDoneWhenEveryReaderIs(t *testing.T) {
	r := &mailRun{mailLoad: mailLoad{Mails: 4, Warm: 1 << 20, Subs: []string{"a", "b"}}, acked: make([]int, 2), sent: 4, stopped: true, due: make(chan int64, 1)}
	r.changed.L = &r.mu
	r.due <- time.Now().UnixNano()
	r.note(&arrived{sent: []int{4}}, -1, nil)
	r.note(&arrived{settled: 4}, 0, nil)
	r.note(&arrived{settled: 3}, 1, nil)
	if r.done != 3 || r.complete() {
		t.Errorf("%d are done", r.done)
	}
	r.note(&arrived{settled: 1}, 1, nil)
	if r.done != 4 || !r.complete() || r.bad != 0 {
		t.Errorf("%d are done, %d bad", r.done, r.bad)
	}
	body, seen := make([]byte, mailHead), make([]bool, 4)
	r.note(&arrived{bodies: [][]byte{body}}, 0, seen)
	r.note(&arrived{bodies: [][]byte{body}}, 0, seen)
	if r.bad != 1 {
		t.Errorf("%d are bad, one was delivered twice", r.bad)
	}
}

// TestNoMoreMailIsInFlightThanAllowed checks the batches of a closed loop.
func TestNoMoreMailIsInFlightThanAllowed(t *testing.T) {
	r := &mailRun{mailLoad: mailLoad{Mails: 100, Batch: 16, Flying: 40, Size: bodySize}}
	r.changed.L = &r.mu
	if n := r.next(0); n != 2 || r.sent != 32 {
		t.Errorf("%d batches, %d mails", n, r.sent)
	}
	r.done = 80
	if n := r.next(80); n != 1 {
		t.Errorf("%d batches of 20 mails", n)
	}
	r.done, r.stopped = 32, true
	if n := r.next(32); n != 0 {
		t.Errorf("%d batches after the end", n)
	}
}

func TestTheQuietestRunCounts(t *testing.T) {
	run := func(tasks int, others time.Duration) result {
		return result{report: report{Tasks: tasks, Elapsed: time.Second}, Others: others}
	}
	if r := quietest([]result{run(1, 3*time.Second), run(2, time.Second), run(3, 2*time.Second)}); r.Tasks != 2 {
		t.Errorf("run %d", r.Tasks)
	}
}
