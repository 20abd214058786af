package ownership

import (
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
)

// MarkRestored adds to b the changes to the leases in s, a store that was restored from an
// older copy: see [Restored].
func MarkRestored(s *store.Store, b *store.Batch) error {
	for p, err := range s.All(store.Leases, nil, nil) {
		if err != nil {
			return err
		}
		val, err := Restored(string(p.Key), p.Val)
		if err != nil {
			return err
		}
		if string(val) != string(p.Val) {
			b.Put(store.Leases, p.Key, val)
		}
	}
	return nil
}

// Restored returns a record of the Leases bucket as it must be after the store was restored
// from an older copy. A lease that had not started in the copy may have started since: at
// the next start it is released as unknown, not as certainly never started.
func Restored(key string, val []byte) ([]byte, error) {
	if key == "" || key[0] != keyOwner {
		return val, nil
	}
	m := new(proto.OwnerLease)
	if err := proto.Decode(val, m); err != nil {
		return nil, err
	}
	if m.Phase != proto.LeaseReceived {
		return val, nil
	}
	m.Phase, m.Cause = proto.LeaseReleased, proto.CauseUnknown
	m.Reason = "this node was restored from an older copy"
	return proto.Encode(nil, m)
}
