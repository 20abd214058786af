package executor

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/balefire/balefire/datadir"
)

// What an earlier run left and cannot be removed is logged with its path. The rest is
// removed, and the start goes on.
func TestAFolderThatStaysStopsNoStart(t *testing.T) {
	var log bytes.Buffer
	x := &Executor{cfg: Config{Dir: t.TempDir(), Logger: slog.New(slog.NewTextHandler(&log, nil))}}
	x.sweepFolders(os.RemoveAll)
	if log.Len() > 0 {
		t.Errorf("without any run: %s", &log)
	}
	runs := filepath.Join(x.cfg.Dir, datadir.Run)
	stays := filepath.Join(runs, "a-stays")
	for _, dir := range []string{stays, filepath.Join(runs, "b-goes")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	x.sweepFolders(func(path string) error {
		if path == stays {
			return &os.PathError{Op: "unlinkat", Path: filepath.Join(path, "x"), Err: errors.New("operation not permitted")}
		}
		return os.RemoveAll(path)
	})
	if left, err := os.ReadDir(runs); err != nil || len(left) != 1 || left[0].Name() != "a-stays" {
		t.Errorf("%v are left, %v; want a-stays only", left, err)
	}
	if !strings.Contains(log.String(), "path="+stays+" ") || !strings.Contains(log.String(), "remove it by hand") {
		t.Errorf("the log does not tell what to remove: %s", &log)
	}
}
