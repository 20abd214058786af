package backlog

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/balefire/balefire/disk"
	"github.com/balefire/balefire/proto"
)

// An Archived is a dead entry on its way to the archive.
type Archived struct {
	Key    Key
	Stored *proto.Stored
}

// An archivedLine is how FileArchive writes a dead entry: readable fields, and
// the whole entry as the store had it.
type archivedLine struct {
	Task     string    `json:"task"`
	Part     string    `json:"part"`
	State    string    `json:"state"`
	Kind     string    `json:"kind,omitempty"`
	Peer     string    `json:"peer,omitempty"`
	Target   string    `json:"target,omitempty"`
	Reason   string    `json:"reason,omitempty"`
	Attempts uint32    `json:"attempts"`
	Created  time.Time `json:"created"`
	Ended    time.Time `json:"ended"`
	Stored   []byte    `json:"stored"` // proto.Stored
}

// archiveLimit is the size at which FileArchive starts a new file, in bytes.
const archiveLimit = 100 << 20

// FileArchive returns a Config.Archive that appends one JSON line per entry to
// the file at path, readable only by its owner, and returns after the fsync. A
// file that has reached 100 MB is renamed with the date, and a new one is
// started. An entry may be in it twice, after a crash between the file and the
// store.
func FileArchive(path string) func(context.Context, []Archived) error {
	var mu sync.Mutex
	return func(_ context.Context, list []Archived) error {
		mu.Lock()
		defer mu.Unlock()
		var buf bytes.Buffer
		enc := json.NewEncoder(&buf)
		for _, a := range list {
			if err := enc.Encode(a.line()); err != nil {
				return fmt.Errorf("archive %v: %w", a.Key, err)
			}
		}
		return appendFile(path, buf.Bytes())
	}
}

func (a Archived) line() archivedLine {
	r := a.Stored.GetRecord()
	l := archivedLine{
		Task: a.Key.ID.String(), Part: a.Key.Part.String(), State: r.GetState().Name(),
		Kind: r.GetKind(), Target: r.GetTarget(), Reason: r.GetReason(), Attempts: r.GetAttempts(),
		Created: time.UnixMilli(r.GetCreatedMs()).UTC(), Ended: time.UnixMilli(r.GetEndedMs()).UTC(),
	}
	if p, err := proto.PeerIDFrom(r.GetPeer()); err == nil {
		l.Peer = p.String()
	}
	l.Stored, _ = proto.Encode(nil, a.Stored) // it was read from the store, so it fits
	return l
}

// appendFile appends p to the file at path and makes it durable.
func appendFile(path string, p []byte) error {
	if fi, err := os.Stat(path); err == nil && fi.Size() >= archiveLimit {
		old := path + "." + time.Now().UTC().Format("20060102T150405.000")
		if err := os.Rename(path, old); err != nil {
			return fmt.Errorf("start a new archive: %w", err)
		}
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("open the archive: %w", err)
	}
	_, err = f.Write(p)
	err = errors.Join(err, f.Sync(), f.Close(), disk.SyncDir(filepath.Dir(path)))
	if err != nil {
		return fmt.Errorf("write the archive %s: %w", path, err)
	}
	return nil
}
