package backlog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
)

// progressEvery is the number of entries between two calls of Config.Progress.
const progressEvery = 1000

// Open returns the backlog kept in the buckets of s, with its schedule rebuilt
// from the disk. It starts nothing.
func Open(s *store.Store, buckets Buckets, cfg Config) (*Backlog, error) {
	b := &Backlog{
		store: s, buckets: buckets, cfg: cfg.withDefaults(),
		entries: map[Key]*entry{}, groups: map[string]*group{}, lanes: map[string]*lane{},
		tenants: tenants{byName: map[string]*tenant{}}, wake: make(chan struct{}, 1),
		scratch: sync.Pool{New: func() any { return new([]byte) }},
		batches: sync.Pool{New: func() any { return new(store.Batch) }},
	}
	b.idle.L = &b.mu
	b.time = steadyClock{b.cfg.Clock.Now().UnixMilli(), b.cfg.Clock.Boot()}
	in := &loader{seq: map[*entry]proto.Seq{}}
	for _, read := range []func(*loader) error{b.readDead, b.readDone, b.readLive} {
		if err := read(in); err != nil {
			return nil, fmt.Errorf("open backlog in %v: %w", buckets.Live, err)
		}
	}
	return b, nil
}

// readDead rebuilds the dead set.
func (b *Backlog) readDead(in *loader) error {
	return b.readEnded(b.buckets.Dead, kindInitial, &b.dead, func(k Key, val []byte) (*proto.Record, error) {
		st, err := decodeStored(val)
		if err != nil {
			return nil, err
		}
		if name := b.blocks(k, st.Record); name != "" {
			e := &entry{key: k, place: blocking, xpos: -1}
			b.laneNamed(name).join(e)
			in.seq[e] = st.Record.FirstSeq()
		}
		return st.Record, nil
	})
}

// readDone rebuilds the done set.
func (b *Backlog) readDone(*loader) error {
	return b.readEnded(b.buckets.Done, kindState, &b.done, func(_ Key, val []byte) (*proto.Record, error) {
		r := new(proto.Record)
		return r, proto.Decode(val, r)
	})
}

func (b *Backlog) readEnded(bk store.Bucket, want byte, sh *endedSet, read func(Key, []byte) (*proto.Record, error)) error {
	if bk == 0 {
		return nil
	}
	for p, err := range b.store.All(bk, nil, nil) {
		if err != nil {
			return err
		}
		k, kind, err := parseKey(p.Key)
		if err == nil && kind == want {
			var r *proto.Record
			if r, err = read(k, p.Val); err == nil {
				sh.add(k, r.GetEndedMs())
			}
		}
		if err != nil {
			b.cfg.Damaged(p.Key, err)
		}
	}
	sh.sort()
	return nil
}

// readLive rebuilds the schedule.
func (b *Backlog) readLive(in *loader) error {
	for p, err := range b.store.All(b.buckets.Live, nil, nil) {
		if err != nil {
			return err
		}
		k, kind, err := parseKey(p.Key)
		if err == nil {
			if k != in.key || in.rec == nil {
				b.rebuild(in)
				in.key, in.rec, in.e, in.damaged = k, nil, nil, false
			}
			err = in.read(kind, p.Val)
		}
		if err != nil {
			b.cfg.Damaged(p.Key, err)
		}
	}
	b.rebuild(in)
	if err := errors.Join(b.store.ApplyMany(context.Background(), in.repaired)...); err != nil {
		return fmt.Errorf("replace damaged records: %w", err)
	}
	b.cfg.Progress(len(b.entries))
	for _, l := range b.lanes {
		in.sortLane(l)
	}
	for _, e := range in.all {
		if e.place == changing {
			b.enqueue(e)
		}
	}
	return nil
}

// A loader gathers the one or two records of an entry.
type loader struct {
	key      Key
	rec      *proto.Record
	e        *entry
	damaged  bool           // the state of a task cannot be read
	repaired []*store.Batch // the records that replace damaged ones
	all      []*entry
	seq      map[*entry]proto.Seq // of entries in a lane
}

func (in *loader) read(kind byte, val []byte) error {
	if in.e == nil {
		in.e = &entry{key: in.key}
	}
	if kind == kindState {
		r := new(proto.Record)
		if err := proto.Decode(val, r); err != nil {
			in.damaged = in.key.Part == PartTask // the others may be sent again as they were at first
			return err
		}
		in.rec, in.e.version = r, 1
		return nil
	}
	st, err := decodeStored(val)
	if err != nil {
		return err
	}
	in.rec, in.e.hasInitial, in.e.size = st.Record, true, uint32(len(val))
	return nil
}

// rebuild adds the entry that in has gathered to memory. Entries that may be
// taken are queued later, once the lanes are complete.
func (b *Backlog) rebuild(in *loader) {
	e := in.e
	if in.damaged && in.rec != nil && b.cfg.Repair != nil {
		b.repair(in)
	}
	switch {
	case in.damaged: // never taken, because it may have run, nor added again; every change of it fails
		e.version, e.place, e.xpos = 1, parked, -1
		b.entries[e.key] = e
		return
	case in.rec == nil:
		return
	}
	b.entries[e.key] = e
	b.admit(e, in.rec)
	b.expire(e)
	e.place = changing
	if in.rec.State.Terminal() || b.cfg.Parked(e.key, in.rec) {
		e.place = parked
	}
	in.all = append(in.all, e)
	b.cfg.Found(e.key, in.rec)
	if e.lane != nil {
		in.seq[e] = in.rec.FirstSeq()
	}
	if len(b.entries)%progressEvery == 0 {
		b.cfg.Progress(len(b.entries))
	}
}

// repair replaces the damaged record of the task that in has gathered.
func (b *Backlog) repair(in *loader) {
	b.cfg.Repair(in.key, in.rec)
	val, err := proto.Encode(nil, in.rec)
	if err != nil {
		return // it is parked
	}
	var batch store.Batch
	batch.Put(b.buckets.Live, in.key.append(nil, kindState), val)
	in.repaired = append(in.repaired, &batch)
	in.e.version, in.damaged = 1, false
}

// sortLane orders a lane by the first sequence, which is the order of creation at
// the origin.
func (in *loader) sortLane(l *lane) {
	slices.SortFunc(l.entries, func(a, b *entry) int {
		return cmp.Or(in.seq[a].Compare(in.seq[b]), a.key.ID.Compare(b.key.ID))
	})
}
