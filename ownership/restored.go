package ownership

import (
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
)

// MarkRestored adds to b what becomes of the leases in s, which is a copy of the past:
// see [Restored].
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

// Restored is a record of the bucket of leases as it stands in a copy of a store that is
// put in the place of a later one. What had not been started here then may have been
// since: it is given back at the start as what is not known, and not as what certainly
// was never started.
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
