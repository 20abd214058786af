package node

import (
	"context"
	"errors"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
)

// nonces stores the replay state of the transport for each author across restarts.
type nonces struct{ store *store.Store }

const noncePrefix = 'n' // in bucket Peers, followed by the author's id

func nonceKey(p proto.PeerID) []byte { return append([]byte{noncePrefix}, p[:]...) }

// Get returns the value stored for p, or nil.
func (n nonces) Get(_ context.Context, p proto.PeerID) ([]byte, error) {
	b, err := n.store.Get(store.Peers, nonceKey(p))
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	return b, err
}

// Put stores all values or none.
func (n nonces) Put(ctx context.Context, all map[proto.PeerID][]byte) error {
	if len(all) == 0 {
		return nil
	}
	var b store.Batch
	for p, v := range all {
		b.Put(store.Peers, nonceKey(p), v)
	}
	return n.store.Apply(ctx, &b)
}
