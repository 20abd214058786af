package node

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/datadir"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport/transporttest"
)

// After a restore nothing that may have run is started again, and what is made later runs,
// whatever the times of the replaced files are and whatever clock the restore had (I6, I14).
func TestRestoreTrustsNoClock(t *testing.T) {
	t.Parallel()
	run := eachNth(t, 2)
	const days = 24 * time.Hour
	for _, tt := range []struct {
		name    string
		files   time.Duration // how far the times of the replaced files are ahead
		restore time.Duration // how far the clock of the restore is ahead
	}{
		{"all is right", 0, 0},
		{"files of the future", 10 * days, 0},
		{"files of the past", -40 * days, 0},
		{"a clock that is ahead", 0, 10 * days},
		{"a clock that is behind", 0, -40 * days},
		{"both are ahead", 10 * days, 10 * days},
	} {
		run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { restoreUnder(t, tt.files, tt.restore) })
		})
	}
}

func restoreUnder(t *testing.T, files, restore time.Duration) {
	w := newSimMeshWith(t, 2, 1, transporttest.Link{Latency: 10 * time.Millisecond, Mbps: 100, Seed: 1}, func(s *simNode, cfg *Config) {
		quietMesh(s, cfg)
		if s.place == 1 {
			cfg.Simulated.Engine, cfg.Store.Engine, cfg.Limits.Slots = nil, datadir.EnginePebble, 1
		}
	})
	defer w.close()
	home, target := w.nodes[0], w.nodes[1]
	home.mustSubmit(sleepTask(20*time.Second, "n1")) // the only slot is taken
	time.Sleep(time.Second)
	once := sleepTask(time.Second, "n1")
	once.Mode = proto.AtMostOnce.Name()
	inCopy := home.mustSubmit(once)
	time.Sleep(5 * time.Second)
	snap := filepath.Join(t.TempDir(), "snap")
	if err := target.node.Snapshot(t.Context(), snap, ""); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Minute)
	lost := home.mustSubmit(sleepTask(10*time.Minute, "n1"))
	time.Sleep(time.Minute)
	target.crash()
	at := time.Now().Add(files)
	if err := filepath.WalkDir(filepath.Join(target.dir, datadir.Store), func(p string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Chtimes(p, at, at)
	}); err != nil {
		t.Fatal(err)
	}
	cfg := target.config()
	cfg.Clock = clock.WithOffset(cfg.Clock, func() time.Duration { return restore })
	if _, err := RestoreStore(cfg, snap, ""); err != nil {
		t.Fatal(err)
	}
	target.start()
	time.Sleep(20 * time.Minute)
	fresh := home.mustSubmit(sleepTask(time.Second, "n1"))
	home.waitState(fresh, "SUCCESS", 5*time.Minute)
	for name, id := range map[string]string{"in the snapshot": inCopy, "accepted after it": lost, "made after the restore": fresh} {
		if n := w.checker.runsOf(id); n != 1 {
			t.Errorf("%d runs of the task %s, want 1", n, name)
		}
	}
}
