package backlog

import (
	"fmt"

	"github.com/balefire/balefire/proto"
)

// A Listed is an entry as List finds it.
type Listed struct {
	Key    Key
	Record *proto.Record
	Size   uint32 // bytes of the birth that List read; 0 when there is none any more
	Set    Set
}

// listBudget is how many pairs one call of List reads at most.
const listBudget = 8 << 10

// List returns up to limit entries of a shelf that match, nil all, the oldest first,
// as they are on the disk. It is for whoever needs them all; a person wants Page. next is where to go on, nil at the end; a page
// may be short, or empty, before the end.
func (b *Backlog) List(sh Set, cursor []byte, limit int, match func(Key, *proto.Record) bool) (found []Listed, next []byte, err error) {
	bk := b.buckets.Live
	if sh != Live {
		_, bk, _ = b.endedSet(sh)
	}
	if bk == 0 || limit <= 0 {
		return nil, nil, nil
	}
	var last Listed // its state, if it has one, may still come
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
		last = Listed{k, r, size, sh}
	}
	flush()
	return found, nil, nil
}

// decodeRecord reads the record out of a value of either kind.
func decodeRecord(kind byte, val []byte) (*proto.Record, error) {
	if kind == kindState {
		r := new(proto.Record)
		return r, proto.Decode(val, r)
	}
	st := new(proto.Stored)
	if err := proto.Decode(val, st); err != nil {
		return nil, err
	}
	if st.Record == nil {
		return new(proto.Record), nil
	}
	return st.Record, nil
}
