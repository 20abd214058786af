package identity

import (
	"sync"

	"github.com/balefire/balefire/proto"
)

// A ReceiptSigner signs the receipts of results in groups: while the results of one group are
// being written, the next group collects. A signature costs as much as all other work
// for a small result here, and its verification costs the home twice that.
type ReceiptSigner struct {
	keys    *Keys
	mu      sync.Mutex
	busy    bool           // a group is signed and not written yet
	waiting []*signRequest // results for the next group
}

// A signRequest holds the statements of one result.
type signRequest struct {
	statements [][]byte
	receipts   []*proto.Receipt
	group      *sync.Once // starts the next group, once
	signed     chan struct{}
}

// NewReceiptSigner returns a signer with the keys of this node.
func NewReceiptSigner(keys *Keys) *ReceiptSigner { return &ReceiptSigner{keys: keys} }

// Sign returns the receipts for at least one statement. The caller must call written
// once its result is on disk or has failed.
func (s *ReceiptSigner) Sign(statements [][]byte) (receipts []*proto.Receipt, written func()) {
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

// next signs the waiting group.
func (s *ReceiptSigner) next() {
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
	receipts, once := s.keys.Receipts(statements), new(sync.Once)
	for _, r := range group {
		k := len(r.statements)
		r.receipts, receipts = receipts[:k:k], receipts[k:]
		r.group = once
		close(r.signed)
	}
}
