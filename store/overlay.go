package store

import (
	"bytes"
	"hash/maphash"
)

// An overlay finds the last operation on a key in a group that is not on disk
// yet. It indexes the group only when queried: a group without requirements costs
// nothing.
type overlay struct {
	seed maphash.Seed
	last map[uint64]int32 // hash: index of the newest operation with it
	prev []int32          // for each operation: the next older one with the same hash, -1 none
}

func newOverlay() *overlay {
	return &overlay{seed: maphash.MakeSeed(), last: make(map[uint64]int32)}
}

// find returns the newest of ops on the key, or nil. Between two resets ops may
// only grow.
func (o *overlay) find(ops []Op, bk Bucket, key []byte) *Op {
	for i := len(o.prev); i < len(ops); i++ {
		h := o.hash(ops[i].Bucket, ops[i].Key)
		older, ok := o.last[h]
		if !ok {
			older = -1
		}
		o.prev = append(o.prev, older)
		o.last[h] = int32(i)
	}
	if len(ops) == 0 {
		return nil
	}
	i, ok := o.last[o.hash(bk, key)]
	if !ok {
		return nil
	}
	for ; i >= 0; i = o.prev[i] {
		if op := &ops[i]; op.Bucket == bk && bytes.Equal(op.Key, key) {
			return op
		}
	}
	return nil
}

func (o *overlay) hash(bk Bucket, key []byte) uint64 {
	return maphash.Bytes(o.seed, key) + uint64(bk)*0x9e3779b97f4a7c15
}

// reset forgets the group.
func (o *overlay) reset() {
	if len(o.prev) > 0 {
		clear(o.last)
		o.prev = o.prev[:0]
	}
}
