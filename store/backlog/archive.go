package backlog

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
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
	Cause    string    `json:"cause,omitempty"` // as in the API
	Code     string    `json:"code,omitempty"`
	Reason   string    `json:"reason,omitempty"`
	Attempts uint32    `json:"attempts"`
	Created  time.Time `json:"created"`
	Ended    time.Time `json:"ended"`
	Stored   []byte    `json:"stored"` // proto.Stored
}

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
		if err := disk.AppendLines(path, buf.Bytes(), time.Now()); err != nil {
			return fmt.Errorf("archive dead letters: %w", err)
		}
		return nil
	}
}

func (a Archived) line() archivedLine {
	r := a.Stored.GetRecord()
	l := archivedLine{
		Task: a.Key.ID.String(), Part: a.Key.Part.String(), State: r.GetState().Name(),
		Kind: r.GetKind(), Target: r.GetTarget(), Cause: r.GetCause().Name(), Reason: r.GetReason(), Attempts: r.GetAttempts(),
		Created: proto.Time(r.GetCreatedMs()), Ended: proto.Time(r.GetEndedMs()),
	}
	if c := r.GetCode(); c != proto.CodeOK {
		l.Code = c.Name()
	}
	if p, err := proto.PeerIDFrom(r.GetPeer()); err == nil {
		l.Peer = p.String()
	}
	l.Stored, _ = proto.Encode(nil, a.Stored) // it was read from the store, so it fits
	return l
}
