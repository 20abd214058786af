package mailbox

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/balefire/balefire/store"
)

// restoredKey holds, in Meta, when the ledger was last put back from an older copy: Unix
// milliseconds, 8 bytes big endian.
var restoredKey = []byte("mail/restored")

// MarkRestored adds to b a note that the ledger of the node is a copy that was put back now.
func MarkRestored(b *store.Batch, now time.Time) {
	b.Put(store.Meta, restoredKey, binary.BigEndian.AppendUint64(nil, uint64(max(now.UnixMilli(), 0))))
}

// RestoredAt returns the time in the note, 0 if there is none: see [Config.Restored].
func RestoredAt(s *store.Store) (int64, error) {
	b, err := s.Get(store.Meta, restoredKey)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("read when the mail was restored: %w", err)
	case len(b) != 8:
		return 0, fmt.Errorf("read when the mail was restored: %w: %d bytes", store.ErrCorrupt, len(b))
	}
	return int64(binary.BigEndian.Uint64(b)), nil
}
