package box

import (
	"crypto/sha256"
	"encoding/binary"

	"github.com/balefire/balefire/fair"
	"github.com/balefire/balefire/proto"
)

// dedupe remembers the producers' names of mails. A generation lasts keyGeneration of
// running time, and two that are over are kept, so that no wall clock forgets early.
type dedupe struct {
	generations [3]map[[16]byte]firstMail // the newest first
	began       int64                     // running time at which the newest began, in milliseconds
	held        map[uint32]int            // keys by share
	ends        int                       // those of the shares with shareOfEnds
}

// firstMail is the mail that came with a dedupe key first.
type firstMail struct {
	id      proto.MailID
	seq     uint64
	content uint64
	share   uint32 // that its key takes: see keyShare; of the earlier home of the box with which it came
}

// shareOfEnds, with the index of the node whose mail has ended, 0 for this one, is the share of the dedupe
// keys of what this node tells of ends of mails. Its boxes do not count: who sends the mail names them.
const shareOfEnds = 1 << 31

// keyShare returns the share of the dedupe keys that the key of a mail takes: that of its origin, 0
// for this node, or of what tells of ends.
func keyShare(m *Mail, l *proto.Letter) uint32 {
	if m.Origin != 0 || l.BounceOf.IsZero() {
		return m.Origin
	}
	return shareOfEnds | m.Cause
}

// within reports whether a share may have one more of some keys. What the mail of one node causes leaves keys
// to what tells of other ends, and all that leaves some to other mail.
func (d *dedupe) within(share uint32, keys int) bool {
	switch held, used := d.held[share], d.len(); {
	case share == 0:
		return true
	case share >= shareOfEnds:
		return fair.Within(2*held, used, keys) && fair.Within(d.ends, used, keys)
	default:
		return fair.Within(held, used, keys)
	}
}

func (d *dedupe) len() (n int) {
	for _, g := range d.generations {
		n += len(g)
	}
	return n
}

func (d *dedupe) get(key [16]byte) (firstMail, bool) {
	for _, g := range d.generations {
		if f, ok := g[key]; ok {
			return f, true
		}
	}
	return firstMail{}, false
}

func (d *dedupe) put(key [16]byte, f firstMail) {
	if d.generations[0] == nil {
		d.generations[0] = map[[16]byte]firstMail{}
	}
	if _, again := d.generations[0][key]; !again {
		d.hold(f.share, 1)
	}
	d.generations[0][key] = f
}

// hold notes that a share has n more keys.
func (d *dedupe) hold(share uint32, n int) {
	if d.held == nil {
		d.held = map[uint32]int{}
	}
	if d.held[share] += n; d.held[share] == 0 {
		delete(d.held, share)
	}
	if share >= shareOfEnds {
		d.ends += n
	}
}

// age begins a new generation if it is time; ran is the running time in milliseconds.
func (d *dedupe) age(ran int64) {
	if ran-d.began >= keyGeneration.Milliseconds() {
		for _, f := range d.generations[2] {
			d.hold(f.share, -1)
		}
		d.generations, d.began = [3]map[[16]byte]firstMail{nil, d.generations[0], d.generations[1]}, ran
	}
}

// forget forgets the keys of a box.
func (d *dedupe) forget(b BoxID) {
	for _, g := range d.generations {
		for key, f := range g {
			if BoxID(binary.BigEndian.Uint32(key[:])) == b {
				delete(g, key)
				d.hold(f.share, -1)
			}
		}
	}
}

// dedupeKey returns the number of a box, and a hash of an origin and its key.
func dedupeKey(b BoxID, origin uint32, key []byte) (k [16]byte) {
	sum := sha256.Sum256(append(binary.BigEndian.AppendUint32(make([]byte, 0, 4+proto.MaxKey), origin), key...))
	binary.BigEndian.PutUint32(k[:], uint32(b))
	copy(k[4:], sum[:])
	return k
}

// contentHash tells two mails with the same dedupe key apart.
func contentHash(l *proto.Letter) uint64 {
	h := sha256.New()
	for _, v := range [][]byte{l.Subject, l.Key, l.Type, l.Object.SHA256[:], l.Body} {
		h.Write(binary.BigEndian.AppendUint32(nil, uint32(len(v))))
		h.Write(v)
	}
	return binary.BigEndian.Uint64(h.Sum(nil))
}
