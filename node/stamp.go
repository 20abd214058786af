package node

import (
	"sync"

	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
)

// A stamp signs the receipts of results in groups: one group holds what came
// while the results of the last one were being written. A signature costs as much
// as all else that is done for a small result here, and checking it costs the
// home twice that.
type stamp struct {
	keys    *identity.Keys
	mu      sync.Mutex
	busy    bool       // a group is signed and not yet written
	waiting []*stamped // for the next one
}

// A stamped is what one result states.
type stamped struct {
	statements [][]byte
	receipts   []*proto.Receipt
	group      *sync.Once // ends the turn of its group
	signed     chan struct{}
}

func newStamp(keys *identity.Keys) *stamp { return &stamp{keys: keys} }

// sign returns the receipts of at least one statement. The caller calls written
// once its result is on disk, or never will be.
func (s *stamp) sign(statements [][]byte) (receipts []*proto.Receipt, written func()) {
	r := &stamped{statements: statements, signed: make(chan struct{})}
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
func (s *stamp) next() {
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
