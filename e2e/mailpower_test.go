//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/balefire/balefire/wire"
)

// A mailFate is what is known about a mail of a node whose power is cut.
type mailFate struct {
	here  bool // it is for the mailbox of the node, not for another node
	sent  bool // the send was answered
	asked bool // its reader has acknowledged it
	done  bool // the acknowledgement was answered
}

// cutMails are the mails of a node whose power is cut: those for its mailbox, which is read
// meanwhile, and those for another node, which is off.
type cutMails struct {
	mu    sync.Mutex
	fates map[string]mailFate // by id
}

// newCutMails makes the mailbox.
func newCutMails(t *testing.T, a *machine) *cutMails {
	t.Helper()
	if _, err := a.SetMailbox(t.Context(), "cut", wire.MailboxSettings{}); err != nil {
		t.Fatal(err)
	}
	return &cutMails{fates: map[string]mailFate{}}
}

// all returns what is known now.
func (c *cutMails) all() map[string]mailFate {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.fates)
}

// note notes what is known about a mail.
func (c *cutMails) note(id string, what func(*mailFate)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := c.fates[id]
	what(&f)
	c.fates[id] = f
}

// send sends mail until ctx is done.
func (c *cutMails) send(ctx context.Context, a *machine) {
	for ctx.Err() == nil {
		sent, errs := a.SendMails(ctx, slices.Repeat([]wire.Mail{{To: "agent:cut", Body: make([]byte, 2000)}, {To: "agent:cut@b", Body: make([]byte, 2000)}}, 2))
		for i, err := range errs {
			if err == nil {
				c.note(sent[i].ID, func(f *mailFate) { f.sent, f.here = true, i%2 == 0 })
			}
		}
		pause(20 * time.Millisecond)
	}
}

// read reads and acknowledges the mail of the mailbox until ctx is done.
func (c *cutMails) read(ctx context.Context, a *machine) {
	for ctx.Err() == nil {
		given, err := a.LeaseMail(ctx, "cut", "", wire.LeaseMail{Max: 3, Wait: wire.Wait(time.Second)})
		if err != nil {
			continue // ctx is done
		}
		var acks wire.SettleMail
		for _, d := range given {
			acks.Ack = append(acks.Ack, d.Lease)
			c.note(d.Mail.ID, func(f *mailFate) { f.asked = true })
		}
		items, err := a.SettleMail(ctx, "cut", "", acks)
		for i, d := range given {
			if err == nil && items[i].Code == wire.SettledOK {
				c.note(d.Mail.ID, func(f *mailFate) { f.done = true })
			}
		}
		pause(30 * time.Millisecond) // some mail waits
	}
}

// checkCut checks I21 and I23 at a node that has lost what was not synced: each mail whose send
// was answered before is there, and read once, or waits for its node; what was acknowledged then
// does not come again. A mail that was asked to end later may have.
func checkCut(t *testing.T, twin *machine, before, later map[string]mailFate) {
	t.Helper()
	read := map[string]bool{}
	twin.until("all mail is read", func() bool {
		given, err := twin.LeaseMail(t.Context(), "cut", "", wire.LeaseMail{Max: 100})
		if err != nil {
			t.Fatal(err)
		}
		var acks wire.SettleMail
		for _, d := range given {
			if id := d.Mail.ID; before[id].done || read[id] {
				t.Errorf("I23: %s is delivered after its end", id)
			}
			read[d.Mail.ID] = true
			acks.Ack = append(acks.Ack, d.Lease)
		}
		if len(given) == 0 {
			box, err := twin.Mailbox(t.Context(), "cut")
			return err == nil && box.Waiting == 0
		}
		if _, err := twin.SettleMail(t.Context(), "cut", "", acks); err != nil {
			t.Fatal(err)
		}
		return false
	})
	var away []string
	for id, f := range before {
		switch {
		case f.sent && !f.here:
			away = append(away, id)
		case f.sent && !read[id] && !later[id].asked:
			t.Errorf("I21: the send of %s was answered, and nobody reads it", id)
		}
	}
	if len(away) == 0 {
		return
	}
	spools, err := twin.Outgoing(t.Context())
	if err != nil || len(spools) != 1 || spools[0].Mails < len(away) {
		t.Errorf("I21: the sends of %d mails to another node were answered: %+v, %v", len(away), spools, err)
	}
	slices.Sort(away)                                // an id begins with its time
	for _, id := range away[max(0, len(away)-50):] { // each is searched among all
		if m, err := twin.Mail(t.Context(), id); err != nil || m.State != "PENDING" {
			t.Errorf("I21: the send of %s was answered: it is %s, %v", id, m.State, err)
		}
	}
}

// ledgerLog returns the segment that the ledger writes to: the file, below the node's folder,
// and its current content, which includes all that was acknowledged before.
func (m *machine) ledgerLog() (file string, raw []byte) {
	m.t.Helper()
	dir := filepath.Join("ledger", "own")
	segments, err := filepath.Glob(filepath.Join(m.dir, dir, "*.seg"))
	if err != nil || len(segments) == 0 {
		m.t.Fatalf("the segments of the ledger: %v, %v", segments, err)
	}
	last := segments[len(segments)-1] // their names are numbers of one length
	if raw, err = os.ReadFile(last); err != nil {
		m.t.Fatal(err)
	}
	return filepath.Join(dir, filepath.Base(last)), raw
}

// loseRecords loses what the ledger of a copy has beyond what it had before: of the segment
// that was the last one then, or of the one that was begun since. The file keeps its length: it
// was full of zeros, on disk, when it became a segment.
func (m *machine) loseRecords(rng *rand.Rand, file string, before []byte) (how string) {
	m.t.Helper()
	last, now := m.ledgerLog()
	var from int64
	if last == file {
		from = same(before, now)
	}
	lost := bytes.TrimRight(now[from:], "\x00")
	kept := rng.IntN(len(lost)/2 + 1)
	from, lost = from+int64(kept), lost[kept:]
	clear(lost)
	if how = "zeroed"; rng.IntN(2) == 0 {
		how = "garbled"
		for i := range lost {
			lost[i] = byte(rng.Uint32())
		}
	}
	if err := os.WriteFile(filepath.Join(m.dir, last), now, 0o600); err != nil {
		m.t.Fatal(err)
	}
	return fmt.Sprintf("%s %d bytes from byte %d of %s", how, len(lost), from, last)
}
