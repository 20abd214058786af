package box

import (
	"encoding/binary"
	"slices"
)

// A decoder reads fields in order. After the first field that is not there, or not in its
// one encoding, it returns zeros, and failed is true.
type decoder struct {
	b      []byte
	failed bool
}

// done reports whether everything was read and valid.
func (d *decoder) done() bool { return !d.failed && len(d.b) == 0 }

// check fails unless ok.
func (d *decoder) check(ok bool) {
	if !ok {
		d.failed, d.b = true, nil
	}
}

func (d *decoder) take(n uint64) []byte {
	if d.failed || n > uint64(len(d.b)) {
		d.check(false)
		return nil
	}
	v := d.b[:n]
	d.b = d.b[n:]
	return v
}

func (d *decoder) u8() uint8 {
	if v := d.take(1); v != nil {
		return v[0]
	}
	return 0
}

func (d *decoder) u32() uint32 {
	if v := d.take(4); v != nil {
		return binary.BigEndian.Uint32(v)
	}
	return 0
}

func (d *decoder) u64() uint64 {
	if v := d.take(8); v != nil {
		return binary.BigEndian.Uint64(v)
	}
	return 0
}

// time reads a time in Unix milliseconds, which is not negative.
func (d *decoder) time() int64 {
	v := int64(d.u64())
	d.check(v >= 0)
	return max(v, 0)
}

// uvarint reads a number of at most limit in its shortest form.
func (d *decoder) uvarint(limit uint64) uint64 {
	v, n := binary.Uvarint(d.b)
	if d.failed || n <= 0 || n > 1 && d.b[n-1] == 0 || v > limit {
		d.check(false)
		return 0
	}
	d.b = d.b[n:]
	return v
}

// text reads at most limit bytes behind their count.
func (d *decoder) text(limit int) []byte { return d.take(d.uvarint(uint64(limit))) }

// flag reads a bool.
func (d *decoder) flag() bool {
	v := d.u8()
	d.check(v <= 1)
	return v == 1
}

// seqs reads at most MaxSeqs ascending sequences until the end, and appends them to seqs, which is
// empty.
func (d *decoder) seqs(seqs []uint64) []uint64 {
	last := uint64(0)
	for len(d.b) > 0 {
		v := d.uvarint(1<<63 - 1)
		d.check(len(seqs) < MaxSeqs && v > 0 && last+v < 1<<63)
		if d.failed {
			return nil
		}
		last += v
		seqs = append(seqs, last)
	}
	d.check(len(seqs) > 0)
	return seqs
}

func appendU32(dst []byte, v uint32) []byte { return binary.BigEndian.AppendUint32(dst, v) }
func appendU64(dst []byte, v uint64) []byte { return binary.BigEndian.AppendUint64(dst, v) }
func appendTime(dst []byte, v int64) []byte { return appendU64(dst, uint64(v)) }

func appendText[T string | []byte](dst []byte, v T) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(v))), v...)
}

func appendFlag(dst []byte, v bool) []byte {
	if v {
		return append(dst, 1)
	}
	return append(dst, 0)
}

// appendSeqs appends sequences, which need not be sorted, as differences.
func appendSeqs(dst []byte, seqs []uint64) []byte {
	if !slices.IsSorted(seqs) {
		seqs = slices.Sorted(slices.Values(seqs))
	}
	last := uint64(0)
	for _, seq := range seqs {
		dst = binary.AppendUvarint(dst, seq-last)
		last = seq
	}
	return dst
}
