package mail

import (
	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/store/ledger"
)

// A proposal is a record that the log was given. It is finished once, when it was applied,
// with its result, or with the reason why it was not.
type proposal struct {
	rec  []byte
	done func(box.Result, error) // nil: nobody waits, or call does

	call *Sending // of which it is mail at: without a function for each mail
	at   int
}

func (p *proposal) finish(r box.Result, err error) {
	switch {
	case p.call != nil:
		p.call.answer(p.at, r, err)
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

// proposals is a queue of proposals.
type proposals struct {
	list []proposal
	head int // of the first one
}

func (q *proposals) len() int { return len(q.list) - q.head }

func (q *proposals) push(p proposal) { q.list = append(q.list, p) }

// last returns the newest one.
func (q *proposals) last() *proposal { return &q.list[len(q.list)-1] }

// pop removes the oldest one.
func (q *proposals) pop() proposal {
	p := q.list[q.head]
	q.list[q.head] = proposal{}
	switch q.head++; {
	case q.head == len(q.list):
		q.list, q.head = emptied(q.list), 0
	case q.head >= 256 && 2*q.head >= len(q.list):
		n := copy(q.list, q.list[q.head:])
		clear(q.list[n:])
		q.list, q.head = q.list[:n], 0
	}
	return p
}

// handed has the entries that the log owns, in the slices in which it was given them, and
// slices to be used again.
type handed struct {
	calls []call
	free  [][]ledger.Entry
}

// A call is one of the log's Queue.
type call struct {
	entries []ledger.Entry
	left    int // without an answer
}

// add notes a call, and returns a slice for the entries of the next one.
func (h *handed) add(entries []ledger.Entry) (next []ledger.Entry) {
	h.calls = append(h.calls, call{entries, len(entries)})
	if n := len(h.free) - 1; n >= 0 {
		next, h.free = h.free[n], h.free[:n]
	}
	return next
}

// answered notes the answer to the oldest entry without one.
func (h *handed) answered() {
	c := &h.calls[0]
	if c.left--; c.left > 0 {
		return
	}
	const most = 8
	if s := emptied(c.entries); s != nil && len(h.free) < most {
		h.free = append(h.free, s)
	}
	n := copy(h.calls, h.calls[1:])
	h.calls[n] = call{}
	h.calls = h.calls[:n]
}
