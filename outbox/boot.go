package outbox

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
)

// bootKey holds the number of the last start, 8 bytes big endian.
var bootKey = []byte("boot")

// raiseBoot begins a new start: its number is above that of every earlier one,
// also when the disk was rolled back, because the clock went on.
func raiseBoot(s *store.Store, now time.Time) (uint64, proto.BootID, error) {
	var id proto.BootID
	old, err := s.Get(store.Meta, bootKey)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return 0, id, fmt.Errorf("read the boot number: %w", err)
	}
	var last uint64
	if err == nil {
		if len(old) != 8 {
			return 0, id, fmt.Errorf("read the boot number: %w: %d bytes", store.ErrCorrupt, len(old))
		}
		last = binary.BigEndian.Uint64(old)
	}
	boot := max(last+1, uint64(max(now.Unix(), 1)))
	var b store.Batch
	b.Put(store.Meta, bootKey, binary.BigEndian.AppendUint64(nil, boot))
	if err := s.Apply(context.Background(), &b); err != nil {
		return 0, id, fmt.Errorf("write the boot number: %w", err)
	}
	rand.Read(id[:])
	return boot, id, nil
}
