package box

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"

	"github.com/balefire/balefire/fair"
	"github.com/balefire/balefire/proto"
)

// ErrBadCheckpoint is returned for bytes that Save did not write.
var ErrBadCheckpoint = errors.New("box: bad checkpoint")

// Load reads what Save wrote. The chains are those of the new state; they are loaded too.
func Load(r io.Reader, chains Chains) (*State, error) {
	b, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("read a checkpoint of boxes: %w", err)
	}
	d := decoder{b: b}
	magic := string(d.take(uint64(len(checkpointMagic))))
	if magic != checkpointMagic {
		return nil, fmt.Errorf("%w: it has another format", ErrBadCheckpoint)
	}
	s := New(chains)
	s.nextBox = BoxID(d.u32())
	s.limits = d.limits()
	s.boot, s.ranPast, s.ran, s.at = d.u64(), d.time(), d.time(), d.time()
	if s.boots = d.boots(); len(s.boots) > 0 {
		d.check(s.boots[len(s.boots)-1] == s.boot)
	} else {
		d.check(s.boot == 0)
	}
	d.check(s.nextBox > 0 && s.ranPast <= maxPast && s.ran <= maxRan)
	for range d.count(len(proto.PeerID{}), MaxOrigins) {
		p := proto.PeerID(d.array32())
		d.check(d.failed || s.indexes[p] == 0)
		s.peers = append(s.peers, p)
		s.indexes[p] = uint32(len(s.peers))
	}
	s.self = d.u32n(uint32(len(s.peers)))
	saved := d.take(d.uvarint(1 << 40))
	d.dedupe(&s.dedupe)
	d.producers(&s.producers)
	d.taken(s)
	s.served = d.served()
	for range d.count(1, MaxBoxes) {
		d.box(s)
	}
	if !d.done() {
		return nil, fmt.Errorf("%w: wrong fields before the last %d bytes", ErrBadCheckpoint, len(d.b))
	}
	if err := chains.Load(saved); err != nil {
		return nil, fmt.Errorf("%w: chains: %w", ErrBadCheckpoint, err)
	}
	return s, nil
}

// count reads how many elements follow: at most limit, of at least size bytes each.
func (d *decoder) count(size, limit int) int {
	n := d.uvarint(uint64(limit))
	if n > uint64(len(d.b)/size) {
		d.check(false)
		return 0
	}
	return int(n)
}

func (d *decoder) array16() (a [16]byte) { copy(a[:], d.take(16)); return a }
func (d *decoder) array32() (a [32]byte) { copy(a[:], d.take(32)); return a }

func (d *decoder) dedupe(x *dedupe) {
	x.began = d.time()
	for i := range x.generations {
		var last [16]byte
		for n := range d.count(52, math.MaxInt32) {
			key := d.array16()
			f := firstMail{id: proto.MailID(d.array16()), seq: d.u64(), content: d.u64(), share: d.u32()}
			d.check(n == 0 || bytes.Compare(last[:], key[:]) < 0)
			if x.generations[i] == nil {
				x.generations[i] = map[[16]byte]firstMail{}
			}
			x.generations[i][key], last = f, key
			x.hold(f.share, 1)
		}
	}
}

// box reads a box into s.
func (d *decoder) box(s *State) {
	b := &box{id: BoxID(d.u32()), settings: d.boxSettings(), next: d.u64(), nextSub: SubID(d.u32n(1<<16 - 1))}
	d.check(b.id > 0 && b.id < s.nextBox && s.boxes[b.id] == nil && s.names[b.settings.Name] == 0 && b.next > 0 && b.next < 1<<62 && b.nextSub > 0)
	b.starts, b.given = d.starts(s, b.next), d.u64()
	for other := range s.boxes {
		d.check(other < b.id)
	}
	for state := Done; state < mailStates; state++ {
		b.ended[state] = d.u64()
	}
	sum := uint64(1)
	for class := range b.accepted {
		b.accepted[class] = d.u64()
		sum += b.accepted[class]
	}
	d.check(sum == b.next)
	var keys [][16]byte
	for n := range d.count(16, MaxMails) {
		keys = append(keys, d.array16())
		d.check(n == 0 || bytes.Compare(keys[n-1][:], keys[n][:]) < 0)
	}
	var subjects []string
	for n := range d.count(1, MaxMails) {
		v := d.text(proto.MaxSubject)
		subjects = append(subjects, string(v))
		d.check(proto.ValidSubject(v) && (n == 0 || subjects[n-1] < subjects[n]) && b.settings.Kind == Topic)
	}
	if d.failed {
		return
	}
	d.mails(s, b, keys, subjects)
	d.kept(s, b)
	d.untold(s, b)
	d.readReceipts(s, b)
	d.check(len(b.keys.ids) == len(keys) && len(b.subjects.ids) == len(subjects))
	last := uint64(0)
	for range d.count(16, MaxMails) {
		if b.later == nil {
			b.later = map[uint64]int64{}
		}
		seq, at := d.u64(), d.time()
		d.check(seq > last && at > 0 && b.mails.get(seq) != nil)
		b.later[seq], last = at, seq
	}
	subs := d.count(1, MaxSubs)
	for range subs {
		d.sub(s, b)
	}
	d.objects(s, b)
	d.check(b.settings.Kind == Topic || b.settings.Kind == Mailbox && subs == 1 || b.settings.Kind == Spool && subs+len(keys)+len(b.later) == 0)
	s.boxes[b.id], s.names[b.settings.Name] = b, b.id
}

// u32n reads a number of at most limit.
func (d *decoder) u32n(limit uint32) uint32 {
	v := d.u32()
	d.check(v <= limit)
	return min(v, limit)
}

func (d *decoder) mails(s *State, b *box, keys [][16]byte, subjects []string) {
	for seq, m := range d.mailList(s, b, len(keys), len(subjects)) {
		if m.key > 0 {
			m.key = b.keys.use(keys[m.key-1])
		}
		if m.subject > 0 {
			m.subject = b.subjects.use(subjects[m.subject-1])
		}
		b.mails.push(seq, m)
		s.charge(b, &m, 1)
	}
}

// kept reads the mails of a box that are done and kept.
func (d *decoder) kept(s *State, b *box) {
	for seq, m := range d.mailList(s, b, 0, 0) {
		d.check(b.mails.get(seq) == nil && b.kept.mails.count < b.maxKept())
		b.kept.mails.push(seq, m)
		b.kept.bytes += m.bytes()
		s.kept += m.bytes()
	}
}

// untold reads the mails of a mailbox that are done and not told yet.
func (d *decoder) untold(s *State, b *box) {
	for seq, m := range d.mailList(s, b, 0, 0) {
		d.check(b.settings.Kind == Mailbox && b.mails.get(seq) == nil && m.tells())
		b.untold.push(seq, m)
		s.untold++
	}
}

// mailList reads a list of mails. Their keys and subjects are the places of these, from 1.
func (d *decoder) mailList(s *State, b *box, keys, subjects int) iter.Seq2[uint64, mail] {
	return func(yield func(uint64, mail) bool) {
		last := uint64(0)
		for range d.count(27, MaxMails) {
			seq := last + d.uvarint(1<<62)
			m := mail{place: Place(d.u64()), load: d.u32(), expiry: d.u32(), accepted: d.u32(), origin: d.u32()}
			m.key, m.subject = uint32(d.uvarint(uint64(keys))), uint32(d.uvarint(uint64(subjects)))
			d.check(seq > last && seq < b.next && validLength(int64(m.length()), m.bytes()) && int64(m.origin) <= int64(len(s.peers)))
			if d.failed || !yield(seq, m) {
				return
			}
			last = seq
		}
	}
}

func (d *decoder) sub(s *State, b *box) {
	u := newSub(b, SubID(d.u32n(1<<16-1)), d.subSettings())
	u.floor, u.done = d.u64(), d.spans(b.next)
	u.known, u.ended = d.u64(), d.spans(b.next)
	d.check(u.id < b.nextSub && u.floor <= b.next && u.known <= b.next && len(u.ended) <= maxEnded)
	if b.settings.Kind == Mailbox {
		d.check(u.id == 0 && u.settings.Name == "" && u.floor == 0 && len(u.done) == 0)
	} else {
		d.check(u.id > 0 && u.settings.Name != "" && (len(u.done) == 0 || u.done[0].first >= u.floor))
	}
	for _, other := range b.subs {
		d.check(other.id < u.id && other.settings.Name != u.settings.Name)
	}
	if d.failed {
		return
	}
	last := uint64(0)
	for range d.count(27, MaxMails) {
		seq, r := d.retry()
		d.check(seq > last && u.pending(seq) && r.due >= r.at && r.due-r.at <= MaxDelay.Milliseconds())
		u.retries[seq], last = &r, seq
	}
	last = 0
	for range d.count(41, MaxMails) {
		x := d.deadLetter()
		d.check(x.Seq > last && x.Seq < b.next)
		u.dead, last, s.undated = append(u.dead, x), x.Seq, s.undated || x.At == 0
		s.bytes += x.Size
		s.details += x.detail()
	}
	var lane [16]byte
	for n := range d.count(16, MaxBlocked) {
		next := d.array16()
		d.check(n == 0 || bytes.Compare(lane[:], next[:]) < 0)
		u.blocked[next], lane = true, next
	}
	b.subs = append(b.subs, u)
}

func (d *decoder) retry() (seq uint64, r retry) {
	seq = d.u64()
	r.attempts, r.abandons, r.at, r.due, r.tries = d.u8(), d.u8(), d.time(), d.time(), d.tries()
	return seq, r
}

// spans reads a set of sequences up to limit.
func (d *decoder) spans(limit uint64) (set seqSet) {
	last := uint64(0)
	for n := range d.count(16, MaxMails) {
		s := span{d.u64(), d.u64()}
		d.check(s.first < s.end && s.end <= limit && (n == 0 || s.first > last))
		set, last = append(set, s), s.end
	}
	return set
}

func (d *decoder) tries() (tries []Try) {
	for range d.count(11, MaxTries) {
		t := Try{Cause: Cause(d.u8()), At: d.time(), Reader: string(d.text(MaxReader)), Reason: string(d.text(MaxReason))}
		d.check(t.Cause > 0 && t.Cause < causes)
		tries = append(tries, t)
	}
	return tries
}

func (d *decoder) deadLetter() DeadLetter {
	x := DeadLetter{
		Seq: d.u64(), Place: Place(d.u64()), Length: int(d.u32()), Size: int64(d.u32()), Class: int(d.u8()), Cause: Cause(d.u8()), Attempts: d.u8(), Abandons: d.u8(),
		At: d.time(), Reader: string(d.text(MaxReader)), Reason: string(d.text(MaxDetail)),
	}
	reserved := d.flag()
	x.Redriven, x.Tries = d.flag(), d.tries()
	d.check(x.Class < fair.Classes && x.Cause > 0 && x.Cause < causes && validLength(int64(x.Length), x.Size) && reserved == x.Redriven)
	return x
}
