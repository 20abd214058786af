package datadir

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/ledger"
)

// A kept is the folder of a node whose store and ledger have the same texts.
type kept struct {
	t   *testing.T
	cfg Config
	clk *clock.Manual
}

func newKept(t *testing.T, engine string) *kept {
	clk := clock.NewManual(time.Unix(1e9, 0))
	return &kept{t, Config{Dir: t.TempDir(), Engine: engine, Clock: clk.Clock(), Reserve: -1, LedgerSegment: simulatedSegment, Logger: slog.New(slog.DiscardHandler)}, clk}
}

// A ledger that was refused for want of space is none: the node starts again without one, and
// makes it when there is space (I13).
func TestRefusedLedgerIsNone(t *testing.T) {
	k := newKept(t, EngineNuts)
	k.cfg.Reserve = 1 << 60
	for range 2 {
		k.with(func(d *Dir) {
			if d.HasLedger() {
				t.Error("there is a ledger")
			}
			if _, err := d.OpenLedger(); !errors.Is(err, store.ErrNoDisk) {
				t.Errorf("made without space: %v", err)
			}
		})
	}
	k.cfg.Reserve = -1
	k.with(func(d *Dir) {
		if _, err := d.OpenLedger(); err != nil || !d.HasLedger() {
			t.Errorf("with space: %v", err)
		}
	})
}

// The ledger is measured: its commits, what is in them, and the size of its files.
func TestLedgerIsMeasured(t *testing.T) {
	k := newKept(t, EngineNuts)
	r := prometheus.NewRegistry()
	k.cfg.Registerer = r
	k.with(func(d *Dir) {
		k.add(d, true, "text1", "text2")
		all, err := r.Gather()
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]float64{}
		for _, f := range all {
			m := f.GetMetric()[0]
			got[f.GetName()] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
		for name, want := range map[string]float64{
			"balefire_ledger_commit_seconds": 2, "balefire_ledger_batches_total": 2, "balefire_ledger_entries_total": 2, "balefire_ledger_syncs_total": 2,
			"balefire_ledger_bytes": float64(k.segments()),
		} {
			if got[name] != want || want == 0 {
				t.Errorf("%s is %v, want %v", name, got[name], want)
			}
		}
	})
}

// segments returns the size of the segments of the ledger.
func (k *kept) segments() (size int64) {
	k.t.Helper()
	files, err := filepath.Glob(filepath.Join(k.cfg.Dir, Ledger, ownLedger, "*.seg"))
	if err != nil {
		k.t.Fatal(err)
	}
	for _, f := range files {
		i, err := os.Stat(f)
		if err != nil {
			k.t.Fatal(err)
		}
		size += i.Size()
	}
	return size
}

// with opens the folder and calls f.
func (k *kept) with(f func(d *Dir)) {
	k.t.Helper()
	k.clk.Advance(time.Second)
	d, err := Open(k.cfg)
	if err != nil {
		k.t.Fatal(err)
	}
	f(d)
	if err := d.Close(); err != nil {
		k.t.Fatal(err)
	}
}

// add adds texts to the store and, with mail, to the ledger.
func (k *kept) add(d *Dir, mail bool, texts ...string) {
	k.t.Helper()
	l := d.ledger.Load()
	if l == nil && mail {
		var err error
		if l, err = d.OpenLedger(); err != nil {
			k.t.Fatal(err)
		}
	}
	for _, text := range texts {
		var b store.Batch
		b.Put(store.Meta, []byte(text), []byte{1})
		if err := d.Store.Apply(k.t.Context(), &b); err != nil {
			k.t.Fatal(err)
		}
		if !mail {
			continue
		}
		if err := l.Queue([]ledger.Entry{{Data: []byte(text)}}).Wait(k.t.Context()); err != nil {
			k.t.Fatal(err)
		}
	}
}

// texts returns what the store and the ledger in dir have.
func (k *kept) texts(dir string) (inStore, inLedger []string) {
	k.t.Helper()
	cfg := k.cfg
	cfg.Dir = dir
	d, err := Open(cfg)
	if err != nil {
		k.t.Fatal(err)
	}
	for p, err := range d.Store.All(store.Meta, []byte("text"), []byte("texu")) {
		if err != nil {
			k.t.Fatal(err)
		}
		inStore = append(inStore, string(p.Key))
	}
	if d.HasLedger() {
		l, err := d.OpenLedger()
		if err != nil {
			k.t.Fatal(err)
		}
		err = l.Replay(1, func(b ledger.Batch) error {
			for _, data := range b.Entries() {
				inLedger = append(inLedger, string(data))
			}
			return nil
		})
		if err != nil {
			k.t.Fatal(err)
		}
	}
	if err := d.Close(); err != nil {
		k.t.Fatal(err)
	}
	return inStore, inLedger
}

// want checks what the store and the ledger in dir have.
func (k *kept) want(what, dir string, inStore, inLedger []string) {
	k.t.Helper()
	if s, l := k.texts(dir); !slices.Equal(s, inStore) || !slices.Equal(l, inLedger) {
		k.t.Errorf("%s: the store has %q, the ledger %q, want %q and %q", what, s, l, inStore, inLedger)
	}
}

func (k *kept) restore(snapshot, private string) RestoreReport {
	k.t.Helper()
	k.clk.Advance(time.Second)
	r, err := Restore(k.cfg, snapshot, private, noMark)
	if err != nil {
		k.t.Fatal(err)
	}
	return r
}

var engines = []string{EngineNuts, EnginePebble}

// A restore puts the store and the ledger of the snapshot in place, and sets both old ones
// aside; without a ledger in the snapshot there is none afterwards. A sealed snapshot has it.
func TestRestoreHasTheLedger(t *testing.T) {
	for _, engine := range engines {
		k := newKept(t, engine)
		public, private, err := NewSnapshotKey()
		if err != nil {
			t.Fatal(err)
		}
		top := t.TempDir()
		without, with, sealed := filepath.Join(top, "without"), filepath.Join(top, "with"), filepath.Join(top, "sealed")
		k.with(func(d *Dir) {
			k.add(d, false, "text 1")
			if err := d.Snapshot(without); err != nil {
				t.Fatal(err)
			}
			k.add(d, true, "text 2")
			if err := d.Snapshot(with); err != nil {
				t.Fatal(err)
			}
			k.add(d, true, "text 3")
			if err := d.SealedSnapshot(t.Context(), sealed, public); err != nil {
				t.Fatal(err)
			}
			k.add(d, true, "text 4")
			if err := d.Snapshot(with); err == nil {
				t.Error("a snapshot replaced another")
			}
			if d.LedgerBytes() == 0 {
				t.Error("the ledger has no size")
			}
		})
		dir := k.cfg.Dir
		r := k.restore(with, "")
		k.want("restored", dir, []string{"text 1", "text 2"}, []string{"text 2"})
		if l, err := ledger.Check(filepath.Join(r.Aside, Ledger, ownLedger)); err != nil || l.Entries != 3 || r.Mail != 1 {
			t.Errorf("aside: %+v, %v; report %+v", l, err, r)
		}
		r = k.restore(without, "")
		k.want("restored without a ledger", dir, []string{"text 1"}, nil)
		if l, err := ledger.Check(filepath.Join(r.Aside, Ledger, ownLedger)); err != nil || l.Entries != 1 || r.Mail != 0 {
			t.Errorf("aside: %+v, %v; report %+v", l, err, r)
		}
		k.restore(sealed, private)
		k.want("restored from a sealed snapshot", dir, []string{"text 1", "text 2", "text 3"}, []string{"text 2", "text 3"})
		k.restore(with, "") // its segments were not linked to those of the node
		k.with(func(d *Dir) { k.add(d, true, "text 5") })
		k.restore(with, "")
		k.want("restored again", dir, []string{"text 1", "text 2"}, []string{"text 2"})
	}
}

// Whatever step of a restore is the last one, the next start finds the old store with the
// old ledger, or both new ones, and so does a salvage before it; a check finds the old ones for
// as long as they are in use; and a restore can be made again.
func TestRestoreIsInterruptedAtEachStep(t *testing.T) {
	for _, hasLedger := range []bool{true, false} {
		for steps := range 7 {
			k := newKept(t, EngineNuts)
			snap, dir := filepath.Join(t.TempDir(), "snap"), k.cfg.Dir
			var mail []string
			k.with(func(d *Dir) {
				if k.add(d, hasLedger, "text 1"); hasLedger {
					mail = []string{"text 1"}
				}
				if err := d.Snapshot(snap); err != nil {
					t.Fatal(err)
				}
				k.add(d, true, "text 2")
			})
			body := filepath.Join(dir, Blob, "b")
			if err := os.WriteFile(body, []byte("body"), 0o600); err != nil {
				t.Fatal(err)
			}
			part := filepath.Join(dir, restorePart)
			if err := store.MarkEngine(part, EngineNuts); err != nil {
				t.Fatal(err)
			}
			if err := copyTree(filepath.Join(part, EngineNuts), snap); err != nil {
				t.Fatal(err)
			}
			if _, err := restoreLedger(part, EngineNuts); err != nil {
				t.Fatal(err)
			}
			for _, step := range swapSteps(dir, filepath.Join(dir, "aside"))[:steps] {
				if err := step(); err != nil {
					t.Fatal(err)
				}
			}
			what := fmt.Sprintf("%d steps, ledger %v", steps, hasLedger)
			found, err := Check(dir)
			switch {
			case steps == 4 || steps == 5: // no store is in its place
				if err == nil || !strings.Contains(err.Error(), "start the node") {
					t.Errorf("%s: a check finds %+v, %v", what, found, err)
				}
			case err != nil || !found.Clean || found.MailRecords == 0 && steps < 4:
				t.Errorf("%s: a check finds %+v, %v", what, found, err)
			}
			salvaged := filepath.Join(t.TempDir(), "new")
			if r, err := Salvage(Config{Dir: dir}, salvaged, noMark); err != nil {
				t.Errorf("%s: a salvage finds %+v, %v", what, r, err)
			}
			for _, at := range []string{salvaged, dir, dir} { // starts
				if steps < 4 {
					k.want(what, at, []string{"text 1", "text 2"}, append(slices.Clip(mail), "text 2"))
				} else {
					k.want(what, at, []string{"text 1"}, mail)
				}
			}
			if links, err := filepath.Glob(filepath.Join(dir, Store, Blob, "*")); len(links) > 0 {
				t.Errorf("%s: the store in use keeps %v, %v", what, links, err)
			}
			r := k.restore(snap, "")
			k.want(what+", then a restore", dir, []string{"text 1"}, mail)
			if err := os.Remove(body); err != nil { // as the start does if nothing needs it
				t.Fatal(err)
			}
			if b, err := os.ReadFile(filepath.Join(r.Aside, Blob, "b")); string(b) != "body" {
				t.Errorf("%s: the old store has the body %q, %v", what, b, err)
			}
			if err := moveIfThere(filepath.Join(r.Aside, EngineNuts, Ledger), filepath.Join(r.Aside, Ledger)); err != nil {
				t.Fatal(err)
			}
			k.restore(filepath.Join(r.Aside, EngineNuts), "") // it is a snapshot, too
			if steps < 4 {
				k.want(what+", then back", dir, []string{"text 1", "text 2"}, append(slices.Clip(mail), "text 2"))
			}
		}
	}
}

// damage changes a byte of text in the files of a ledger.
func damage(t *testing.T, path, text string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(path, "*.seg"))
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	b, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	b[bytes.Index(b, []byte(text))] ^= 1
	if err := os.WriteFile(files[0], b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// Check counts and finds damage in the ledger; a start says where it is and what to do;
// Salvage copies the rest, with either engine. A snapshot with damage is not restored.
func TestCheckAndSalvageCoverTheLedger(t *testing.T) {
	for _, engine := range engines {
		k := newKept(t, engine)
		dir, snap := k.cfg.Dir, filepath.Join(t.TempDir(), "snap")
		all := []string{"text 1", "text 2", "text 3"}
		k.with(func(d *Dir) {
			k.add(d, true, all...)
			if err := d.Snapshot(snap); err != nil {
				t.Fatal(err)
			}
		})
		if r, err := Check(dir); err != nil || !r.Clean || r.MailRecords != 3 || !strings.Contains(strings.Join(r.Notes, "\n"), "ledger/own: 1 files") {
			t.Errorf("%+v, %v", r, err)
		}
		path, _ := ledgerOf(dir)
		damage(t, path, "text 2")
		k.with(func(d *Dir) {
			_, err := d.OpenLedger()
			for _, want := range []string{path, "from byte", "store check", "store salvage"} {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("the start says %v, want %q", err, want)
				}
			}
		})
		r, err := Check(dir)
		if err != nil || r.Clean || r.MailRecords != 2 || !strings.Contains(strings.Join(r.Notes, "\n"), "damaged: "+path) {
			t.Errorf("%+v, %v", r, err)
		}
		salvaged := t.TempDir()
		if r, err := Salvage(Config{Dir: dir}, salvaged, noMark); err != nil || r.Clean || r.MailRecords != 2 {
			t.Errorf("%+v, %v", r, err)
		}
		k.want("salvaged", salvaged, all, []string{"text 1", "text 3"})
		inSnap, _ := ledgerOf(snap)
		damage(t, inSnap, "text 3") // the last one, which looks like a torn end
		damage(t, inSnap, "text 1")
		_, err = Restore(k.cfg, snap, "", noMark)
		if err == nil || !strings.Contains(err.Error(), "from byte") {
			t.Errorf("a damaged snapshot: %v", err)
		}
		if _, err := os.Stat(path); err != nil {
			t.Errorf("the old ledger: %v", err)
		}
	}
}

// A salvage that ends before the ledger is rebuilt leaves no store that a node would start with
// as if no mail had been there, and one into a folder with a ledger changes nothing.
func TestSalvageNamesTheStoreLast(t *testing.T) {
	k := newKept(t, EngineNuts)
	k.with(func(d *Dir) { k.add(d, true, "text 1") })
	for name, inTheWay := range map[string]string{"the ledger cannot be made": Ledger, "there is a ledger": filepath.Join(Ledger, ownLedger)} {
		to := t.TempDir()
		path := filepath.Join(to, inTheWay)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte("other"), 0o600)); err != nil {
			t.Fatal(err)
		}
		if _, err := Salvage(Config{Dir: k.cfg.Dir}, to, noMark); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := os.Stat(filepath.Join(to, Store)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: there is a store: %v", name, err)
		}
		if b, err := os.ReadFile(path); string(b) != "other" {
			t.Errorf("%s: %q, %v", name, b, err)
		}
	}
}

// A migration leaves the ledger where it is.
func TestMigrateLeavesTheLedger(t *testing.T) {
	k := newKept(t, EngineNuts)
	k.with(func(d *Dir) { k.add(d, true, "text 1") })
	if _, err := Migrate(k.cfg, EnginePebble); err != nil {
		t.Fatal(err)
	}
	k.cfg.Engine = EnginePebble
	k.want("migrated", k.cfg.Dir, []string{"text 1"}, []string{"text 1"})
}
