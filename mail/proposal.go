package mail

import (
	"slices"
	"time"

	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/store/ledger"
)

// A proposal is a record that the log was given. It is finished once, when it was applied,
// with its result, or with the reason why it was not.
type proposal struct {
	rec  []byte
	done func(box.Result, error) // nil: nobody waits, or sending does

	sending *Sending // of which it is mail at: without a function for each mail
	at      int
}

func (p *proposal) finish(r box.Result, err error) {
	switch {
	case p.sending != nil:
		p.sending.answer(p.at, r, err)
	case p.done != nil:
		p.done(r, err)
	}
}

// maxKept is the most elements of a slice that is kept to be used again.
const maxKept = 4096

// emptied returns an emptied slice to be used again, nil in place of a large one.
func emptied[T any](s []T) []T {
	if cap(s) > maxKept {
		return nil
	}
	clear(s)
	return s[:0]
}

// A swap is a list that some goroutines add to and one takes, without a new slice each time.
type swap[T any] struct{ list, free []T }

// take returns the list, which is empty then. A caller that has taken it gives it back with put.
func (s *swap[T]) take() (list []T) {
	list, s.list, s.free = s.list, s.free, nil
	return list
}

func (s *swap[T]) put(list []T) { s.free = emptied(list) }

// queued is what the log was given and has not answered, and what it is given next. It keeps
// the slices of what was answered to use them again.
type queued struct {
	proposals []proposal // in the order of the log
	head      int        // of the oldest one
	next      []ledger.Entry
	handed    []handed // what the log owns
	free      [][]ledger.Entry

	refused []proposal // by a log that had no space; they are given to it again
	retried int64      // box.Now.Mono when that was last

	after func(index uint64, p ledger.Place, err error) // of each entry
}

// A handed is what the log was given in one call.
type handed struct {
	entries []ledger.Entry
	left    int // without an answer
}

// len returns how many proposals have no answer.
func (q *queued) len() int { return len(q.proposals) - q.head }

// last returns the newest proposal.
func (q *queued) last() *proposal { return &q.proposals[len(q.proposals)-1] }

// push adds a proposal to what the log is given next.
func (q *queued) push(p proposal, newWork, relaxed bool) {
	q.proposals = append(q.proposals, p)
	q.next = append(q.next, ledger.Entry{Data: p.rec, NewWork: newWork, Relaxed: relaxed, After: q.after})
}

// again pushes what was refused, once a second.
func (q *queued) again(mono int64) {
	if len(q.refused) == 0 || mono-q.retried < time.Second.Milliseconds() {
		return
	}
	for _, p := range q.refused {
		q.push(p, false, false)
	}
	q.refused, q.retried = nil, mono
}

// take returns what the log is given next, and owns from then on.
func (q *queued) take() (entries []ledger.Entry) {
	entries, q.next = q.next, nil
	q.handed = append(q.handed, handed{entries, len(entries)})
	if n := len(q.free) - 1; n >= 0 {
		q.next, q.free = q.free[n], q.free[:n]
	}
	return entries
}

// answered returns the oldest proposal, which the log has answered.
func (q *queued) answered() proposal {
	p := q.proposals[q.head]
	q.proposals[q.head] = proposal{}
	switch q.head++; {
	case q.head == len(q.proposals):
		q.proposals, q.head = emptied(q.proposals), 0
	case q.head >= 256 && 2*q.head >= len(q.proposals):
		n := copy(q.proposals, q.proposals[q.head:])
		clear(q.proposals[n:])
		q.proposals, q.head = q.proposals[:n], 0
	}
	const most = 8
	if h := &q.handed[0]; h.left > 1 {
		h.left--
	} else {
		if s := emptied(h.entries); s != nil && len(q.free) < most {
			q.free = append(q.free, s)
		}
		q.handed = slices.Delete(q.handed, 0, 1)
	}
	return p
}
