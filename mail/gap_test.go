package mail

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
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

// I21: a ledger that has lost one batch is rebuilt, and of the mails nothing else is lost: an
// acknowledgement in the log ends no other mail than the one that it was for. What is done
// afterwards is done.
func TestNoOtherMailIsLostWithABatch(t *testing.T) {
	for lost := range 6 {
		synctest.Test(t, func(t *testing.T) {
			f := newFixture(t, Config{})
			f.mailbox("agent:ceo")
			want := map[string]bool{}
			for n := range 6 {
				body := fmt.Sprint("mail ", n)
				f.send("agent:ceo", body)
				want[body] = n != lost
			}
			s := f.read("agent:ceo", 3)
			got, _ := f.next(s, 3)
			for _, d := range got {
				f.settle("agent:ceo", d, box.Ack, proto.CodeOK)
			}
			f.stop()
			damage(t, f.dir, fmt.Sprint("mail ", lost))
			if _, err := ledger.Open(f.dir, ledger.Config{}); !errors.Is(err, store.ErrCorrupt) {
				t.Fatalf("open: %v", err)
			}
			dir := f.dir + "-rebuilt"
			if _, err := ledger.Rebuild(f.dir, dir); err != nil {
				t.Fatal(err)
			}
			f.dir = dir
			f.start()
			if f.log.Stats().Checkpoint == 0 {
				t.Error("there is no checkpoint: acknowledgements would not count at the next start")
			}
			i := f.info("agent:ceo")
			got, bodies := f.next(f.read("agent:ceo", 10), i.Waiting)
			for n := lost + 1; n < 6; n++ {
				if body := fmt.Sprint("mail ", n); !slices.Contains(bodies, body) {
					t.Errorf("without mail %d: %q is lost, too", lost, body)
				}
			}
			for _, body := range bodies {
				if !want[body] {
					t.Errorf("%q is there", body)
				}
			}
			for _, d := range got {
				f.settle("agent:ceo", d, box.Ack, proto.CodeOK)
			}
			f.send("agent:ceo", "new")
			f.restart()
			if i := f.info("agent:ceo"); i.Waiting != 1 {
				t.Errorf("%d mails after the restart, want the new one", i.Waiting)
			}
		})
	}
}

// A mail in a spool whose record is damaged, before the newest checkpoint, ends; the others are
// sent: a start that finds it, or one after the ledger was rebuilt, serves.
func TestDamagedMailInASpool(t *testing.T) {
	for _, rebuilt := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			f := newFixture(t, Config{})
			f.mailbox("agent:local")
			f.forward("damaged")
			f.forward("sent")
			if !rebuilt { // a start reads the segments behind the checkpoint
				big := strings.Repeat("x", 60<<10)
				for range 40 {
					f.send("agent:local", big)
				}
			}
			time.Sleep(10 * time.Minute)
			f.stop()
			damage(t, f.dir, "damaged")
			if rebuilt {
				dir := f.dir + "-rebuilt"
				if _, err := ledger.Rebuild(f.dir, dir); err != nil {
					t.Fatal(err)
				}
				f.dir = dir
			}
			f.start()
			l := f.lane(homeID)
			m := f.bundle(l)
			if n := len(m.GetRuns()); n != 1 || m.GetRuns()[0].GetCount() != 1 {
				t.Fatalf("rebuilt %v: %v", rebuilt, m)
			}
			time.Sleep(time.Second)
			if s := f.spool(); s.Waiting != 1 {
				t.Errorf("rebuilt %v: %+v", rebuilt, s)
			}
			if i := f.info(box.SpoolPrefix + "agent:ceo"); i.EndedAs(box.Dead) != 1 {
				t.Errorf("rebuilt %v: %+v", rebuilt, i)
			}
			f.restart()
			if s := f.spool(); s.Waiting != 1 {
				t.Errorf("rebuilt %v, after another start: %+v", rebuilt, s)
			}
		})
	}
}

// Mail of which the record is found damaged while the node runs ends, too, and what is behind it goes on.
func TestMailInASpoolIsDamagedMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, Config{})
		f.mailbox("agent:local")
		f.forward("first", "damaged", "sent")
		big := strings.Repeat("x", 60<<10)
		for range 40 { // what is new is read from memory
			f.send("agent:local", big)
		}
		time.Sleep(10 * time.Minute) // a start reads the segments behind the checkpoint
		damage(t, f.dir, "damaged")
		m := f.bundle(f.lane(homeID))
		if s := f.spool(); s.Waiting != 2 || len(m.GetRuns()) != 2 {
			t.Errorf("%v is sent of %+v", m.GetRuns(), s)
		}
		if i := f.info(box.SpoolPrefix + "agent:ceo"); i.EndedAs(box.Dead) != 1 {
			t.Errorf("%+v", i)
		}
		f.restart()
		if s := f.spool(); s.Waiting != 2 {
			t.Errorf("after another start: %+v", s)
		}
	})
}

// damage changes a byte of text in a ledger.
func damage(t *testing.T, dir, text string) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*.seg"))
	if err != nil || len(paths) == 0 {
		t.Fatal(paths, err)
	}
	b, err := os.ReadFile(paths[0])
	if err != nil {
		t.Fatal(err)
	}
	at := slices.Index(b, text[0])
	for ; string(b[at:at+len(text)]) != text; at++ {
	}
	b[at] ^= 1
	if err := os.WriteFile(paths[0], b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// I22: behind a gap a mail is taken although the one before it in its chain is lost, and the
// chain goes on.
func TestChainGoesOnBehindAGap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, Config{})
		f.mailbox("agent:ceo")
		f.stop()
		id, _ := f.state.Find("agent:ceo")
		peer := proto.PeerID{1}
		record := func(n uint64) []byte {
			m := box.Mail{Box: id, Origin: 1, Chain: proto.Normal, Letter: f.letter(fmt.Sprint("mail ", n), nil)}
			m.Number.Boot, m.Number.Counter, m.Prev.Boot, m.Prev.Counter = 1, n, 1, n-1
			return box.AppendMail(nil, &m)
		}
		place := ledger.Place{Segment: 1, Offset: 4096}
		behind := func(p ledger.Place, rec []byte) error { return f.replayBehindGap(p, rec, nil) }
		for _, step := range []struct {
			replay func(ledger.Place, []byte) error
			rec    []byte
			want   int
		}{
			{f.replay, box.EncodePeer(1, peer), 0},
			{f.replay, record(3), 0},
			{behind, record(3), 1},
			{behind, record(3), 1},
			{behind, record(4), 2},
			{f.replay, record(5), 3},
		} {
			if err := step.replay(place, step.rec); err != nil {
				t.Fatal(err)
			}
			if i, _ := f.state.Info(id); i.Waiting != step.want {
				t.Errorf("%d mails, want %d", i.Waiting, step.want)
			}
		}
	})
}
