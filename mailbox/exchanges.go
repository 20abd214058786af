package mailbox

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/balefire/balefire/addressbook"
	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/proto"
)

const (
	maxAnswers = 4096    // messages of one peer that have no answer yet
	maxSettled = 2 << 20 // bytes of the answers to its settlements among them, about
	maxWriting = 4 << 20 // bytes of the bundles of one peer that are being written
)

// An exchange is what one peer sends to this node, and reads at the two. It outlives a link.
type exchange struct {
	mu       sync.Mutex
	arrivals []arrival     // in order, without an answer
	settled  int           // bytes of the answers to settlements among them
	arrived  chan struct{} // something was added

	// Of Receive.
	writing []writing
	bytes   int // of their letters

	offers  chan bodyOffer
	parts   chan *sentPart       // of boxes that are handed over to the peer
	whole   chan *proto.BoxTaken // questions about copies of boxes of the peer
	taking  sync.Mutex           // held while a part of the peer is taken
	readers remoteReaders        // at the boxes of this node
	home    remoteHome           // what programs of this node read there
}

// An arrival is a message of a peer that is answered. When the stream on which it came has
// closed, the peer expects no answer.
type arrival struct {
	wait   func(context.Context) (proto.MessageType, proto.Body, error) // returns the answer when what it tells is on disk
	closed <-chan struct{}
	size   int // bytes of the answer, if it is to settlements
}

// A writing is what a message brought, on its way to the disk.
type writing struct {
	done func() bool
	wait func(context.Context) error
	size int // bytes
}

// exchanges has the exchange with each peer, since that was heard of first.
type exchanges struct {
	clock clock.Clock
	book  *addressbook.Book

	mu      sync.Mutex
	byPeer  map[proto.PeerID]*exchange // under mu
	numbers atomic.Uint64              // of what other nodes are asked for: not those of an earlier start
}

func newExchanges(c clock.Clock, book *addressbook.Book) *exchanges {
	e := &exchanges{clock: c, book: book, byPeer: map[proto.PeerID]*exchange{}}
	e.numbers.Store(rand.Uint64() >> 1)
	return e
}

// with returns the exchange with a peer.
func (e *exchanges) with(p proto.PeerID) *exchange {
	e.mu.Lock()
	defer e.mu.Unlock()
	x := e.byPeer[p]
	if x == nil {
		x = &exchange{
			arrived: make(chan struct{}, 1), offers: make(chan bodyOffer, maxOffers), parts: make(chan *sentPart), whole: make(chan *proto.BoxTaken), readers: remoteReaders{arrived: make(chan struct{}, 1), sessions: map[uint64]*remoteReader{}},
			home: remoteHome{peer: p, name: func() string { return e.book.NameOf(p) }, number: func() uint64 { return e.numbers.Add(1) }, now: e.clock.Boot, due: make(chan struct{}, 1), sessions: map[uint64]*remoteSession{}, ended: map[uint64]*proto.Open{}, settles: map[uint64]*remoteSettle{}},
		}
		e.byPeer[p] = x
	}
	return x
}

// list returns those with all peers so far.
func (e *exchanges) list() []*exchange {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Collect(maps.Values(e.byPeer))
}

func (x *exchange) isFull() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(x.arrivals) >= maxAnswers || x.settled >= maxSettled
}

func (x *exchange) add(a arrival) {
	x.mu.Lock()
	x.arrivals, x.settled = append(x.arrivals, a), x.settled+a.size
	x.mu.Unlock()
	signal(x.arrived)
}

// wait delays a peer that sends faster than the disk writes.
func (x *exchange) wait(ctx context.Context, w writing) error {
	x.writing, x.bytes = append(x.writing, w), x.bytes+w.size
	for len(x.writing) > 0 && (x.bytes > maxWriting || x.writing[0].done()) {
		first := x.writing[0]
		if err := first.wait(ctx); err != nil {
			return err
		}
		x.writing, x.bytes = x.writing[1:], x.bytes-first.size
	}
	return nil
}

// ErrTooManyBundles closes the stream of a peer that does not take its answers: it sends
// again.
var ErrTooManyBundles = errors.New("mailbox: too many messages without an answer")
