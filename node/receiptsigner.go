package node

import (
	"sync"

	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
)

// A receiptSigner signs the receipts of results in groups: one group holds what came
// while the results of the last one were being written. A signature costs as much
// as all else that is done for a small result here, and checking it costs the
// home twice that.
type receiptSigner struct {
	keys    *identity.Keys
	mu      sync.Mutex
	busy    bool           // a group is signed and not yet written
	waiting []*signRequest // for the next one
}

// A signRequest is what one result states.
type signRequest struct {
	statements [][]byte
	receipts   []*proto.Receipt
	group      *sync.Once // ends the turn of its group
	signed     chan struct{}
}

func newReceiptSigner(keys *identity.Keys) *receiptSigner { return &receiptSigner{keys: keys} }

// sign returns the receipts of at least one statement. The caller calls written
// once its result is on disk, or never will be.
func (s *receiptSigner) sign(statements [][]byte) (receipts []*proto.Receipt, written func()) {
	r := &signRequest{statements: statements, signed: make(chan struct{})}
	s.mu.Lock()
	s.waiting = append(s.waiting, r)
	mine := !s.busy
	s.busy = true
	s.mu.Unlock()
	if mine {
		s.next()
	}
	<-r.signed
	return r.receipts, func() { r.group.Do(s.next) }
}

// next signs the group that waits.
func (s *receiptSigner) next() {
	s.mu.Lock()
	var statements [][]byte
	n := 0
	for _, r := range s.waiting {
		if len(statements)+len(r.statements) > proto.MaxGroup {
			break
		}
		statements = append(statements, r.statements...)
		n++
	}
	group := s.waiting[:n:n]
	s.waiting = s.waiting[n:]
	s.busy = n > 0
	s.mu.Unlock()
	if n == 0 {
		return
	}
	receipts, turn := s.keys.Receipts(statements), new(sync.Once)
	for _, r := range group {
		k := len(r.statements)
		r.receipts, receipts = receipts[:k:k], receipts[k:]
		r.group = turn
		close(r.signed)
	}
}
