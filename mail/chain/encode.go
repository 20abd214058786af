package chain

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/balefire/balefire/proto"
)

// ErrNotes is returned for bytes that are not the encoding of a [Home].
var ErrNotes = errors.New("chain: bad notes")

const version = 1

// Encode returns the encoding of h, the same for the same notes. All numbers after the version
// are unsigned varints in their shortest form:
//
//	version 1 | origins | origin 32 | boxes | length, box | floor
//	per class: boots | boot after the one before | first | last - first | own | 0, reserved
//	           | not_after | skips | first after the last before | last - first | code
//
// Origins, boxes, boots and skips are in ascending order.
func (h *Home) Encode() []byte {
	dst := binary.AppendUvarint([]byte{version}, uint64(len(h.origins)))
	for _, origin := range slices.SortedFunc(maps.Keys(h.origins), proto.PeerID.Compare) {
		boxes := h.origins[origin]
		dst = append(dst, origin[:]...)
		dst = binary.AppendUvarint(dst, uint64(len(boxes)))
		for _, box := range slices.Sorted(maps.Keys(boxes)) {
			dst = binary.AppendUvarint(dst, uint64(len(box)))
			dst = append(dst, box...)
			dst = boxes[box].append(dst)
		}
	}
	return dst
}

func (n *boxNotes) append(dst []byte) []byte {
	dst = binary.AppendUvarint(dst, uint64(n.floor))
	for _, boots := range n.chains {
		dst = binary.AppendUvarint(dst, uint64(len(boots)))
		before := uint64(0)
		for i := range boots {
			b := &boots[i]
			for _, v := range [...]uint64{b.boot - before, b.first, b.last - b.first, b.own, 0, uint64(b.notAfter), uint64(len(b.skips))} {
				dst = binary.AppendUvarint(dst, v)
			}
			before = b.boot
			end := uint64(0)
			for _, s := range b.skips {
				for _, v := range [...]uint64{s.first - end, s.last - s.first, uint64(s.code)} {
					dst = binary.AppendUvarint(dst, v)
				}
				end = s.last
			}
		}
	}
	return dst
}

// Decode reads what [Home.Encode] writes, and origins without boxes, which it leaves out. The error
// is ErrNotes.
func Decode(b []byte) (*Home, error) {
	d := &decoder{rest: b}
	if v := d.bytes(1); len(v) == 1 && v[0] != version {
		return nil, fmt.Errorf("%w: version %d", ErrNotes, v[0])
	}
	h := new(Home)
	var before proto.PeerID
	for i := range d.count(math.MaxInt32) {
		origin, _ := proto.PeerIDFrom(d.bytes(len(proto.PeerID{})))
		if d.check(i == 0 || before.Compare(origin) < 0, "origins out of order"); d.err != nil {
			break
		}
		before = origin
		d.origin(h, origin)
	}
	d.check(len(d.rest) == 0, "bytes after the end")
	if d.err != nil {
		return nil, d.err
	}
	return h, nil
}

// A decoder reads from the front of rest until the first error.
type decoder struct {
	rest []byte
	err  error
}

func (d *decoder) origin(h *Home, origin proto.PeerID) {
	boxes, before := d.count(MaxBoxes), ""
	for range boxes {
		box := string(d.bytes(int(d.below(MaxBox + 1))))
		if d.check(box > before, "boxes out of order"); d.err != nil {
			return
		}
		before = box
		d.notes(h.box(origin, box))
	}
}

func (d *decoder) notes(n *boxNotes) {
	n.floor = int64(d.below(maxTime + 1))
	boots := 0
	for i := range n.chains {
		before := uint64(0)
		for range d.count(MaxBoots) {
			b := d.boot(before)
			if d.err != nil {
				return
			}
			before = b.boot
			n.chains[i] = append(n.chains[i], b)
			boots++
		}
	}
	d.check(boots > 0 || n.floor > 0, "a box without notes")
}

func (d *decoder) boot(before uint64) (b bootNote) {
	b.boot = d.add(before, d.positive())
	b.first = d.positive()
	b.last = d.add(b.first, d.number())
	b.own = d.number()
	d.check(b.own <= b.last, "numbers out of order")
	d.check(d.number() == 0, "a number that is reserved")
	b.notAfter = int64(d.below(maxTime + 1))
	d.check(b.notAfter > 0, "no time")
	end := uint64(0)
	for range d.count(MaxSkips) {
		s := skipRun{first: d.add(end, d.positive())}
		s.last = d.add(s.first, d.number())
		s.code = proto.Code(d.below(math.MaxInt32))
		_, ends := s.code.Ends()
		if d.check(ends && s.last <= b.last, "a bad refusal"); d.err != nil {
			return b
		}
		b.skips, end = append(b.skips, s), s.last
	}
	return b
}

// check sets the error if what was read is wrong.
func (d *decoder) check(ok bool, what string) {
	if !ok && d.err == nil {
		d.err = fmt.Errorf("%w: %s", ErrNotes, what)
	}
}

// bytes returns the next n bytes, none after an error.
func (d *decoder) bytes(n int) []byte {
	d.check(n <= len(d.rest), "cut short")
	if d.err != nil {
		return nil
	}
	b := d.rest[:n]
	d.rest = d.rest[n:]
	return b
}

// number returns the next number, 0 after an error.
func (d *decoder) number() uint64 {
	if d.err != nil {
		return 0
	}
	v, n := binary.Uvarint(d.rest)
	if d.check(n > 0 && (n == 1 || d.rest[n-1] != 0), "a bad number"); d.err != nil {
		return 0
	}
	d.rest = d.rest[n:]
	return v
}

// below returns the next number, which must be below limit.
func (d *decoder) below(limit uint64) uint64 {
	v := d.number()
	if d.check(v < limit, "a number above its limit"); d.err != nil {
		return 0
	}
	return v
}

// count returns the next number of elements, at most limit.
func (d *decoder) count(limit int) int { return int(d.below(uint64(limit) + 1)) }

// positive returns the next number, which must not be 0.
func (d *decoder) positive() uint64 {
	v := d.number()
	d.check(v > 0, "a number that is 0")
	return v
}

// add returns a+b, which must not be beyond 64 bits.
func (d *decoder) add(a, b uint64) uint64 {
	d.check(a+b >= a, "a number beyond 64 bits")
	return a + b
}
