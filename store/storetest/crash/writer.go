package crash

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"

	"github.com/balefire/balefire/store"
)

// A writer is one sequence of transactions. After its transaction n the store
// holds, for that writer:
//
//	Meta    its number          → n
//	Inbox   the puts of the last window transactions
//	Leases  for each of 16 slots the last transaction that hit it
//
// so that a transaction puts, overwrites and deletes in three buckets, and
// half of one, an older one or one too many shows.
type writer struct {
	num                int
	ops, value, window int
}

const slots = 16

// puts returns how many puts in the inbox transaction n has.
func (l writer) puts(n int) int { return 1 + int(l.rand(n, -1).Uint64()%uint64(l.ops)) }

// rand returns numbers that depend only on the writer, the transaction and j.
func (l writer) rand(n, j int) *rand.PCG {
	return rand.NewPCG(uint64(l.num)<<32|uint64(n), uint64(j))
}

func (l writer) inboxKey(n, j int) []byte { return l.key(uint64(n), uint64(j)) }
func (l writer) slotKey(n int) []byte     { return l.key(uint64(n % slots)) }
func (l writer) metaKey() []byte          { return l.key() }

func (l writer) key(parts ...uint64) []byte {
	k := []byte{'a' + byte(l.num)}
	for _, p := range parts {
		k = binary.BigEndian.AppendUint64(k, p)
	}
	return k
}

// val returns the value of put j of transaction n; some are empty.
func (l writer) val(n, j int) []byte {
	r := l.rand(n, j)
	v := make([]byte, r.Uint64()%uint64(l.value+1))
	var pattern [16]byte
	binary.LittleEndian.PutUint64(pattern[:], r.Uint64())
	binary.LittleEndian.PutUint64(pattern[8:], r.Uint64())
	for i := range v {
		v[i] = pattern[i%16] ^ byte(i>>4)
	}
	return v
}

// count returns n as a value.
func count(n int) []byte { return binary.BigEndian.AppendUint64(nil, uint64(n)) }

// tx returns the operations of transaction n, counted from 1.
func (l writer) tx(n int) []store.Op {
	ops := []store.Op{
		{Bucket: store.Meta, Key: l.metaKey(), Val: count(n)},
		{Bucket: store.Leases, Key: l.slotKey(n), Val: count(n)},
	}
	for j := range l.puts(n) {
		ops = append(ops, store.Op{Bucket: store.Inbox, Key: l.inboxKey(n, j), Val: l.val(n, j)})
	}
	if old := n - l.window; old > 0 {
		for j := range l.puts(old) {
			ops = append(ops, store.Op{Bucket: store.Inbox, Key: l.inboxKey(old, j), Delete: true})
		}
	}
	return ops
}

// after returns what the store holds for the writer after transaction n.
func (l writer) after(n int) map[string][]byte {
	want := make(map[string][]byte)
	add := func(b store.Bucket, key, val []byte) { want[id(b, key)] = val }
	if n > 0 {
		add(store.Meta, l.metaKey(), count(n))
	}
	for m := max(1, n-slots+1); m <= n; m++ {
		add(store.Leases, l.slotKey(m), count(m))
	}
	for m := max(1, n-l.window+1); m <= n; m++ {
		for j := range l.puts(m) {
			add(store.Inbox, l.inboxKey(m, j), l.val(m, j))
		}
	}
	return want
}

func id(b store.Bucket, key []byte) string { return fmt.Sprintf("%s/%x", b, key) }

// check compares what was found of the writer with what must be there.
func (l writer) check(found map[string][]byte, acked, last int) (n int, err error) {
	if v := found[id(store.Meta, l.metaKey())]; len(v) == 8 {
		n = int(binary.BigEndian.Uint64(v))
	}
	if n < acked || n > last+1 {
		return n, fmt.Errorf("writer %d is at transaction %d, but %d was the last acknowledged", l.num, n, min(max(n, acked), last))
	}
	want := l.after(n)
	for k, v := range want {
		got, ok := found[k]
		if !ok || !bytes.Equal(got, v) {
			return n, fmt.Errorf("writer %d at transaction %d: %s is %s, want %s", l.num, n, k, show(got, ok), show(v, true))
		}
	}
	for k, v := range found {
		if _, ok := want[k]; !ok {
			return n, fmt.Errorf("writer %d at transaction %d: %s is there again: %s", l.num, n, k, show(v, true))
		}
	}
	return n, nil
}

func show(v []byte, ok bool) string {
	if !ok {
		return "missing"
	}
	return fmt.Sprintf("%d bytes %.8x", len(v), v)
}
