package inbox

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
)

// restoredKey holds, in Meta, the last moment for which a restored store has no data: Unix
// milliseconds, 8 bytes big endian.
var restoredKey = []byte("inbox/restored")

// MarkRestored adds to b a note that s was restored from an older copy: until lost this
// node may have accepted, run and ended tasks that the copy does not know. A task created
// before that is not started. It ends as a dead letter with that reason, for an operator to
// decide; its home knows whether it has ended.
func MarkRestored(s *store.Store, b *store.Batch, lost time.Time) error {
	before, err := readRestored(s)
	if err != nil {
		return err
	}
	b.Put(store.Meta, restoredKey, binary.BigEndian.AppendUint64(nil, uint64(max(before, lost.UnixMilli(), 0))))
	return nil
}

// readRestored returns the time in the note, 0 if there is none.
func readRestored(s *store.Store) (int64, error) {
	b, err := s.Get(store.Meta, restoredKey)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("read what a restored store has lost: %w", err)
	case len(b) != 8:
		return 0, fmt.Errorf("read what a restored store has lost: %w: %d bytes", store.ErrCorrupt, len(b))
	}
	return int64(binary.BigEndian.Uint64(b)), nil
}

// mayHaveRun reports whether a task may have run in the lost time: it was created before
// lost by its origin's clock, or was here by this node's.
func mayHaveRun(r *proto.Record, lost int64) bool {
	here := r.CreatedMs
	if len(r.Events) > 0 {
		here = min(here, r.Events[0].TimeMs)
	}
	return lost > 0 && here <= lost
}

// MayHaveRun reports whether a task in custody here may have run in the time that a
// restored store has lost, and whether it was here before that.
func (in *Inbox) MayHaveRun(r *proto.Record) (may, here bool) {
	return mayHaveRun(r, in.restored), in.restored > 0 && arrivedMs(r) <= in.restored
}

const restoredNote = "; this node was restored from an older copy since, and may have run it before"
