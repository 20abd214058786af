package transfer

import (
	"bytes"
	"context"
	"crypto/sha256"
	"log/slog"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/bodies"
	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/inbox"
	"github.com/balefire/balefire/outbox"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/mem"
)

// A watchedDisk calls scanned, unless it is nil, before it reads a page of records.
type watchedDisk struct {
	*mem.Engine
	scanned func(store.Bucket)
}

func (d *watchedDisk) Scan(b store.Bucket, start, end []byte, limit int) ([]store.Pair, error) {
	if d.scanned != nil {
		d.scanned(b)
	}
	return d.Engine.Scan(b, start, end, limit)
}

// members has every peer as a member.
type members struct{}

func (members) Member(proto.PeerID) (string, []string, bool) { return "peer", nil, true }

// unused is what an inbox needs to run tasks, which it does not here.
type unused struct {
	inbox.Opener
	inbox.Results
}

// noMail needs no body.
type noMail struct{ Mail }

func (noMail) Objects(context.Context, func([32]byte, proto.PeerID)) error { return nil }

// A markFixture is the outbox and the inbox of a node, whose records refer to bodies.
type markFixture struct {
	*Transfers
	t      *testing.T
	disk   *watchedDisk
	keys   *identity.Keys
	origin proto.PeerID
	seq    uint64
}

// newMarkFixture opens both for n records each. They stop with ctx.
func newMarkFixture(ctx context.Context, t *testing.T, n int) *markFixture {
	t.Helper()
	files, err := bodies.Open(t.TempDir(), bodies.Config{Clock: clock.Runtime()})
	if err != nil {
		t.Fatal(err)
	}
	f := &markFixture{
		Transfers: New(Parts{Bodies: files, Suite: bodies.AES, Clock: clock.Runtime(), Logger: slog.New(slog.DiscardHandler)}),
		t:         t, disk: &watchedDisk{Engine: mem.New()}, keys: identity.NewKeys(nil, time.Now()), origin: proto.PeerID{1},
	}
	s, err := store.Open(f.disk, store.Config{Clock: clock.Runtime(), SweepEvery: -1, CompactEvery: -1})
	if err != nil {
		t.Fatal(err)
	}
	limit := 2*n + 1000
	if f.outbox, err = outbox.Open(s, f.keys, outbox.Config{MaxPending: limit, MaxBytes: 1 << 40, Clock: clock.Runtime()}); err != nil {
		t.Fatal(err)
	}
	f.inbox, err = inbox.Open(s, inbox.Parts{Members: members{}, Opener: unused{}, Results: unused{}, Bodies: InboxBodies{files}},
		inbox.Config{MaxTasks: limit, MaxKept: 2 * limit, MaxBytes: 1 << 40, Clock: clock.Runtime()})
	if err != nil {
		t.Fatal(err)
	}
	work := inbox.Spec{Kind: "work", Allow: []string{"*"}, OnCrash: inbox.OnCrashRetry, Handler: handler.Func(func(context.Context, *handler.Run) *handler.Result { return nil })}
	if err := f.inbox.Register(work); err != nil {
		t.Fatal(err)
	}
	f.OpenMail(noMail{})
	var running sync.WaitGroup
	running.Go(func() {
		if err := f.outbox.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		running.Wait()
		s.Close()
		files.Close()
	})
	return f
}

// body seals a body, which is pinned.
func (f *markFixture) body(size int) bodies.Ref {
	f.t.Helper()
	ref, _, err := f.Bodies.Seal(f.t.Context(), bytes.NewReader(make([]byte, size)), bodies.SealOptions{Suite: bodies.AES})
	if err != nil {
		f.t.Fatal(err)
	}
	return ref
}

func (f *markFixture) header(origin, target proto.PeerID, seq proto.Seq) proto.Header {
	now := time.Now()
	return proto.Header{What: proto.WhatTask, Suite: 1, ID: proto.NewTaskID(now), Origin: origin, Target: target, Seq: seq, Created: now.UnixMilli(), NotAfter: now.Add(time.Hour).UnixMilli()}
}

// submit submits n tasks with a body.
func (f *markFixture) submit(ref *bodies.Ref, n int) {
	f.t.Helper()
	drafts := make([]*outbox.Draft, n)
	for i := range drafts {
		d := &outbox.Draft{
			Header: f.header(f.keys.Peer(), f.origin, f.outbox.NextSeq(f.origin)),
			Record: &proto.Record{Kind: "work", Class: proto.Normal, BodyBlob: ref.Name.String()},
		}
		d.Envelope = &proto.Envelope{Header: d.Header.Append(nil), Body: []byte("sealed"), Slot: []byte("slot")}
		d.Leaf = identity.EnvelopeLeaf(d.Envelope.Header, d.Envelope.Body, proto.WhatTask)
		drafts[i] = d
	}
	_, errs := f.outbox.SubmitMany(f.t.Context(), drafts)
	for i, err := range errs {
		if _, lost := f.outbox.Get(drafts[i].Header.ID); err != nil || lost != nil {
			f.t.Fatalf("a submit ends with %v, and then %v", err, lost)
		}
	}
}

// accept accepts n tasks of a peer with a body.
func (f *markFixture) accept(ref *bodies.Ref, n int) {
	f.t.Helper()
	arrivals := make([]inbox.Arrival, n)
	for i := range arrivals {
		f.seq++
		a := inbox.Arrival{
			Header:  f.header(f.origin, f.keys.Peer(), proto.Seq{Boot: 1, Counter: f.seq}),
			Content: &proto.Content{Kind: "work", Class: proto.Normal, Object: ref.Proto(), BodySize: uint64(ref.Size), BodyDigest: ref.Digest[:]},
		}
		a.Header.SetObject(ref.Name, proto.SealedSize(ref.Size))
		a.Envelope = &proto.Envelope{Header: a.Header.Append(nil), Body: []byte("sealed")}
		a.Digest = sha256.Sum256(a.Envelope.Header)
		arrivals[i] = a
	}
	for _, v := range f.inbox.Accept(f.t.Context(), arrivals) {
		if v.Code != proto.CodeOK {
			f.t.Fatalf("a task is refused: %s %s", v.Code.Name(), v.Detail)
		}
	}
}

// A mark over 50 000 records of the outbox and of the inbox, a million in the long form, holds
// nothing that a submit or an accept waits for: they end in the middle of it, in the same
// goroutine, and none of their bodies is removed.
func TestSubmitsEndInTheMiddleOfAMark(t *testing.T) {
	n := 25_000
	if os.Getenv("BALEFIRE_LONG") != "" {
		n = 500_000
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		f := newMarkFixture(ctx, t, n)
		defer cancel()
		const group = 500
		sent, taken, stray := f.body(1000), f.body(1001), f.body(1002)
		for range n / group {
			f.submit(&sent, group)
			f.accept(&taken, group)
		}
		names := []string{sent.Name.String(), taken.Name.String()}
		for _, name := range append(names, stray.Name.String()) {
			f.Bodies.Release(name)
		}
		pages := map[store.Bucket]int{}
		var scanned func(store.Bucket)
		scanned = func(b store.Bucket) {
			if pages[b]++; pages[b]%(n/2500) != 0 {
				return
			}
			f.disk.scanned = nil
			fresh := f.body(len(names))
			f.submit(&fresh, 1)
			f.accept(&fresh, 1)
			f.Bodies.Release(fresh.Name.String())
			names = append(names, fresh.Name.String())
			f.disk.scanned = scanned
		}
		f.disk.scanned = scanned
		if err := f.Sweep(ctx); err != nil {
			t.Fatal(err)
		}
		f.disk.scanned = nil
		for _, b := range []store.Bucket{store.PendingTasks, store.Inbox} {
			if pages[b] < n/256 {
				t.Errorf("%d records of bucket %v were read in %d pages", n, b, pages[b])
			}
		}
		for _, name := range names {
			if !f.Bodies.Has(name) {
				t.Errorf("body %s of a record is removed", name)
			}
		}
		if f.Bodies.Has(stray.Name.String()) || len(names) < 10 {
			t.Errorf("%d tasks were submitted during the mark; the body of none is here: %v", len(names)-2, f.Bodies.Has(stray.Name.String()))
		}
		t.Logf("counted: %d records, %d submits and as many accepts in the middle of the mark", 2*n, len(names)-2)
		cancel()
	})
}
