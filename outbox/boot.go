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

// raiseBoot begins a new start. Its number is above that of every earlier one,
// even after a rollback of the disk, because the clock has advanced. now is plausible: a
// number of years ahead would be refused after a later rollback until that time has come.
// While the clock is doubted within its bounds its time is used all the same: a lower number,
// after a rollback, is refused until the next start, and each rollback while the machine is
// off makes the clock doubted.
func raiseBoot(s *store.Store, now time.Time) (uint64, proto.BootID, error) {
	var id proto.BootID
	last, err := readNumber(s, bootKey)
	if err != nil {
		return 0, id, err
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

// restoredKey holds the highest boot number whose tasks the store may have lost
// changes of, 8 bytes big endian.
var restoredKey = []byte("outbox/restored")

// MarkRestored adds to b the record that s was restored from a backup: the next
// start has a number above least, the highest of the starts that the backup may
// be missing, and every task in the backup may have been sent since.
func MarkRestored(s *store.Store, b *store.Batch, least uint64) error {
	old, err := readNumber(s, bootKey)
	if err != nil {
		return err
	}
	least = max(least, old)
	b.Put(store.Meta, bootKey, binary.BigEndian.AppendUint64(nil, least))
	b.Put(store.Meta, restoredKey, binary.BigEndian.AppendUint64(nil, least))
	return nil
}

// LastBoot returns the number of the last start that s knows.
func LastBoot(s *store.Store) (uint64, error) { return readNumber(s, bootKey) }

// readNumber reads a number from Meta, 0 if there is none.
func readNumber(s *store.Store, key []byte) (uint64, error) {
	v, err := s.Get(store.Meta, key)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("read the number %q: %w", key, err)
	case len(v) != 8:
		return 0, fmt.Errorf("read the number %q: %w: %d bytes", key, store.ErrCorrupt, len(v))
	}
	return binary.BigEndian.Uint64(v), nil
}
