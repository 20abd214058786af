package backlog

import (
	"fmt"

	"github.com/balefire/balefire/proto"
)

// A Listed is an entry in a list.
type Listed struct {
	Key    Key
	Record *proto.Record
	Size   uint32 // bytes of the initial record that List read; 0 if there is none
}

// listBudget is the maximum number of pairs that one call of List reads.
const listBudget = 8 << 10

// List returns up to limit entries of a set that match, nil all, oldest first, as
// they are on disk. It is for callers that need all entries; use Page for people.
// next is where to continue, nil at the end; a page before the end may be short
// or empty.
func (b *Backlog) List(sh Set, cursor []byte, limit int, match func(Key, *proto.Record) bool) (found []Listed, next []byte, err error) {
	bk := b.buckets.Live
	if sh != Live {
		_, bk, _ = b.endedSet(sh)
	}
	if bk == 0 || limit <= 0 {
		return nil, nil, nil
	}
	var last Listed // its state, if it has one, may still follow
	flush := func() {
		if last.Record != nil && (match == nil || match(last.Key, last.Record)) {
			found = append(found, last)
		}
		last = Listed{}
	}
	read := 0
	for p, err := range b.store.All(bk, cursor, nil) {
		if err != nil {
			return nil, nil, fmt.Errorf("list %v: %w", sh, err)
		}
		k, kind, err := parseKey(p.Key)
		if err != nil {
			b.cfg.Damaged(p.Key, err)
			continue
		}
		if k != last.Key {
			flush()
			if len(found) == limit || read >= listBudget {
				return found, k.append(nil, kindInitial), nil
			}
		}
		read++
		r, err := decodeRecord(kind, p.Val)
		if err != nil {
			b.cfg.Damaged(p.Key, err)
			continue
		}
		size := last.Size
		if kind == kindInitial {
			size = uint32(len(p.Val))
		}
		last = Listed{k, r, size}
	}
	flush()
	return found, nil, nil
}

// decodeRecord decodes the record in a value of either kind.
func decodeRecord(kind byte, val []byte) (*proto.Record, error) {
	if kind == kindState {
		r := new(proto.Record)
		return r, proto.Decode(val, r)
	}
	st, err := decodeStored(val)
	return st.GetRecord(), err
}
