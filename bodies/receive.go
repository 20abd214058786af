package bodies

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/balefire/balefire/proto"
)

// ErrChunk is returned for a chunk that does not lead to the root of its object. Nothing
// of it was written.
var ErrChunk = errors.New("bodies: a chunk that is not of its object")

// Terms are the terms on which an object is received.
type Terms struct {
	Origin    proto.PeerID // is charged for it
	NotAfter  int64        // Unix milliseconds: nobody sends the rest after it
	Task      proto.TaskID // the rest is awaited only as long as the records say so, see Marks; zero: until NotAfter
	Essential bool         // it must be accepted when there is no space for new work: a result
}

// An Incoming receives the chunks of one object, from any number of holders, in any order.
// It is safe for concurrent use. Finish with Commit or Close.
type Incoming struct {
	s     *Store
	name  string
	file  *os.File
	note  note
	terms Terms

	mu       sync.Mutex
	have     bitmap
	received int     // chunks in have
	durable  int     // of them, with an entry
	old      bool    // some of the entries are of an earlier Incoming
	pending  []entry // written, not synced
	err      error   // once set, the content of the file after the last Sync is unknown
	givenUp  bool    // the part goes when the Incoming ends
	closed   bool
}

// Receive starts or continues to receive an object. The chunks that were durable when an
// earlier one ended are here. It returns ErrExists for a complete object, which then waits
// for its record.
func (s *Store) Receive(m Manifest, terms Terms) (*Incoming, error) {
	if err := m.check(); err != nil {
		return nil, err
	}
	in, err := s.receive(m, terms)
	if err != nil {
		return nil, err
	}
	if in.received == m.Chunks() { // the process died before it was named
		if err = in.Commit(); err == nil {
			err = ErrExists
		}
		return nil, errors.Join(err, in.Close())
	}
	return in, nil
}

// receive is Receive without the naming of a complete part. What is there of the part is
// read without the lock: of a large one that takes long.
func (s *Store) receive(m Manifest, terms Terms) (*Incoming, error) {
	id := m.Name()
	in := &Incoming{s: s, name: id.String(), note: note{m, terms.NotAfter, terms.Origin, terms.Task}, terms: terms, have: newBitmap(m.Chunks())}
	if err := in.claim(); err != nil {
		return nil, err
	}
	isNew, err := in.open()
	s.mu.Lock()
	defer s.mu.Unlock()
	if isNew {
		s.count(in.name+partSuffix, 1, 0)
	}
	if err != nil {
		delete(s.writing, in.name)
		return nil, fmt.Errorf("receive body: %w", err)
	}
	return in, in.admit()
}

// claim keeps others from receiving the object, or removing its part, until the Incoming
// ends. It refuses an object that is complete, being received or too large.
func (in *Incoming) claim() error {
	s := in.s
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.Has(in.name):
		s.hold(in.name)
		s.charges.add(in.terms.Origin, in.name, in.note.manifest.Size)
		return ErrExists
	case s.writing[in.name]:
		return fmt.Errorf("%w: %s", ErrBusy, in.name)
	case in.note.manifest.Size > s.cfg.MaxBody:
		return ErrTooLarge
	}
	s.writing[in.name] = true
	return nil
}

// admit counts the open part and refuses the rest unless it fits. s.mu is held.
func (in *Incoming) admit() error {
	s, name, size, origin := in.s, in.name, in.note.manifest.Size, in.terms.Origin
	s.setPart(name, in.counted())
	charged := s.charges[origin].has(name)
	s.charges.add(origin, name, size)
	if err := s.makeSpace(size-in.bytes(in.received), origin, in.terms.Essential); err != nil {
		delete(s.writing, name)
		err = errors.Join(err, in.file.Close())
		if in.received == 0 { // it only takes up space
			err = errors.Join(err, s.remove(name+partSuffix))
		}
		if !charged {
			s.charges.drop(origin, name)
		}
		return err
	}
	s.hold(name)
	return nil
}

// open opens the part and reads what is durable of it, or creates it. It reports whether
// there is a part that was not there before.
func (in *Incoming) open() (isNew bool, err error) {
	path := in.name + partSuffix
	_, err = in.s.stat(in.name, path)
	isNew = errors.Is(err, ErrNotFound)
	if err != nil && !isNew {
		return false, err
	}
	if in.file, err = in.s.root.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		return false, translate(path, err)
	}
	old, err := readNote(in.file)
	if err == nil && old.manifest == in.note.manifest {
		in.note.notAfter = max(in.note.notAfter, old.notAfter)
		err = errors.Join(in.s.cfg.fault("read"), readEntries(in.file, &in.note.manifest, func(e entry) {
			in.have.set(e.index)
			in.received++
		}))
		in.durable, in.old = in.received, in.received > 0
	} else {
		err = in.file.Truncate(0)
	}
	if err == nil {
		_, err = in.file.WriteAt(in.note.encode(), 0)
	}
	if err != nil {
		return isNew, errors.Join(err, in.file.Close())
	}
	return isNew, nil
}

// counted returns the bytes of the file without what was written and not synced. The file
// itself has holes.
func (in *Incoming) counted() int64 {
	return headerSize + in.bytes(in.durable) + int64(in.durable)*entrySize
}

// bytes returns about how many bytes n chunks have: the last one may be shorter.
func (in *Incoming) bytes(n int) int64 {
	return min(int64(n)*in.note.manifest.sealedChunk(), in.note.manifest.Size)
}

// Have returns a bit for each chunk that is here, the lowest of a byte first.
func (in *Incoming) Have() []byte {
	in.mu.Lock()
	defer in.mu.Unlock()
	return append([]byte(nil), in.have...)
}

// Durable returns how many chunks are durable.
func (in *Incoming) Durable() int {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.durable
}

// Put checks chunk i against the root and writes it. A chunk that is here already is
// ignored.
func (in *Incoming) Put(i int, chunk, path []byte) error {
	m := &in.note.manifest
	leaf := leafHash(chunk)
	root, ok := rootOf(leaf, i, m.Chunks(), path)
	if !ok || root != m.Root || len(chunk) != m.ChunkSize(i) {
		return fmt.Errorf("%w: chunk %d, %d bytes", ErrChunk, i, len(chunk))
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	switch {
	case in.closed:
		return os.ErrClosed
	case in.err != nil:
		return fmt.Errorf("write body: an earlier write failed: %w", in.err)
	case in.have.has(i):
		return nil
	}
	more := int64(len(chunk)) + entrySize
	if err := in.s.reserve(in.name, more, in.terms.Origin, in.terms.Essential); err != nil {
		return fmt.Errorf("write body: %w", err)
	}
	err := in.s.cfg.fault("write")
	if err == nil {
		_, err = in.file.WriteAt(chunk, chunkAt(m, i))
	}
	if err != nil {
		return fmt.Errorf("write body: %w", in.failed(err))
	}
	in.have.set(i)
	in.received++
	in.pending = append(in.pending, entry{i, leaf})
	return nil
}

// Sync makes the chunks that were put durable, then the record of which they are. After
// an error only what was durable before can be trusted: close, and receive again.
func (in *Incoming) Sync() error {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.sync()
}

func (in *Incoming) sync() error {
	switch {
	case in.closed:
		return os.ErrClosed
	case in.err != nil:
		return fmt.Errorf("sync body: an earlier write failed: %w", in.err)
	case len(in.pending) == 0:
		return nil
	}
	err := errors.Join(in.s.cfg.fault("sync"), in.file.Sync())
	for _, e := range in.pending {
		if err == nil {
			_, err = in.file.WriteAt(e.append(nil), entryAt(&in.note.manifest, e.index))
		}
	}
	if err == nil {
		err = in.file.Sync()
	}
	if err != nil {
		in.err = err
		return fmt.Errorf("sync body: %w", in.failed(err))
	}
	in.durable, in.pending = in.received, in.pending[:0]
	in.s.mu.Lock()
	in.s.hold(in.name)
	in.s.mu.Unlock()
	return nil
}

// syncOld makes the entries of an earlier Incoming durable: its last sync may have failed, or
// never come, and a sync does not write again what an earlier one could not. in.mu is held.
func (in *Incoming) syncOld() error {
	if !in.old {
		return nil
	}
	var failed error
	m, left := &in.note.manifest, in.received
	err := readEntries(in.file, m, func(e entry) {
		left--
		if failed == nil {
			_, failed = in.file.WriteAt(e.append(nil), entryAt(m, e.index))
		}
	})
	if err = errors.Join(err, failed); err == nil && left > 0 {
		err = fmt.Errorf("%w: %d entries are missing", ErrDamaged, left)
	}
	if err == nil {
		err = errors.Join(in.s.cfg.fault("sync"), in.file.Sync())
	}
	if err != nil {
		in.err = err
		return fmt.Errorf("sync body: %w", in.failed(err))
	}
	return nil
}

// failed translates the error of a write. On a full disk new work gives up its part: what
// must be stored needs the space. in.mu is held.
func (in *Incoming) failed(err error) error {
	err = translate(in.name, err)
	if errors.Is(err, ErrFull) && !in.terms.Essential {
		in.err, in.givenUp = err, true
	}
	return err
}

// Commit durably turns a part with all chunks into the object, which then waits for its
// record, and ends the Incoming.
func (in *Incoming) Commit() error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if missing := in.note.manifest.Chunks() - in.received; missing > 0 {
		return fmt.Errorf("commit body: %d chunks are missing", missing)
	}
	if err := in.sync(); err != nil {
		return err
	}
	if err := in.syncOld(); err != nil {
		return err
	}
	err := in.end(in.rename)
	if err == nil {
		err = in.s.syncDir()
	}
	if err != nil {
		return fmt.Errorf("commit body: %w", translate(in.name, err))
	}
	return nil
}

// rename gives the part its name. Until then nobody else receives the object. s.mu is held.
func (in *Incoming) rename() error {
	s, path := in.s, in.name+partSuffix
	size, err := s.stat(in.name, path)
	if err == nil {
		err = s.cfg.fault("rename")
	}
	if err == nil {
		err = s.root.Rename(path, in.name)
	}
	if err != nil {
		return err
	}
	s.setPart(in.name, 0)
	s.count(path, -1, 0)
	s.count(in.name, 1, size)
	s.hold(in.name)
	return nil
}

// Close ends the Incoming and keeps the part, unless it met a full disk. After Commit it does nothing.
func (in *Incoming) Close() error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.closed {
		return nil
	}
	return in.end(func() error { return nil })
}

// end closes the file, and lets others receive the object once finish has run. What was
// written and not synced does not count. in.mu is held.
func (in *Incoming) end(finish func() error) error {
	in.closed = true
	err := in.file.Close()
	in.s.mu.Lock()
	defer in.s.mu.Unlock()
	in.s.setPart(in.name, in.counted())
	switch {
	case in.givenUp:
		in.s.charges.remove(in.name)
		err = errors.Join(err, in.s.remove(in.name+partSuffix))
	case err == nil:
		err = finish()
	}
	delete(in.s.writing, in.name)
	return err
}
