package ledger

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
)

// Rebuild makes a ledger in the new folder dst of all that can be read of the one in src,
// which must not be open and is not changed: each batch that verifies, at the same place,
// and each checkpoint that can be read. A batch of [KindLost] takes the place of what is
// missing.
func Rebuild(src, dst string) (Report, error) { return rebuild(osFS{}, src, dst) }

func rebuild(fs fileSystem, src, dst string) (Report, error) {
	b := &builder{fs: fs, dir: dst}
	i := &inspection{fs: fs, dir: src, f: b.batch}
	b.report = &i.report
	err := makeFolder(fs, dst)
	if err == nil {
		err = i.run()
	}
	if err == nil {
		err = b.complete(src)
	}
	if b.file != nil {
		err = errors.Join(err, b.file.Close())
	}
	if err != nil {
		return i.report, fmt.Errorf("rebuild ledger %s in %s: %w", src, dst, err)
	}
	return i.report, nil
}

// A builder writes a ledger that has gaps.
type builder struct {
	fs     fileSystem
	dir    string
	report *Report // knows the id

	file  file   // the segment that is written, nil: none yet
	first uint64 // its first index
	prev  uint32 // CRC of the batch before it
	tail  tail   // of it
}

// batch writes a batch of the damaged ledger. One that cannot be behind what was written is
// left out: no ledger has it.
func (b *builder) batch(x Batch) error {
	h, ok := parseBatch(x.data)
	before := h.index // index of the batch before it
	switch h.kind {
	case KindEntries:
		before--
	case KindLost:
		before = b.tail.last
	}
	if !ok || before < max(b.tail.last, x.place.Segment-1) {
		return nil
	}
	if b.file == nil || x.place.Segment != b.first {
		if err := b.begin(x.place.Segment); err != nil {
			return err
		}
	}
	gap := int64(x.place.Offset) - b.tail.off
	if gap < batchHead && (gap != 0 || before > b.tail.last) {
		return nil
	}
	for ; gap > 0; gap = int64(x.place.Offset) - b.tail.off {
		n, index := gap, before
		if gap > MaxBatch {
			n, index = MaxBatch-batchHead, b.tail.last // what remains has room for a batch
		}
		if err := b.lost(int(n), index); err != nil {
			return err
		}
	}
	return b.put(h, slices.Clone(x.data))
}

// begin completes the segment and begins the one with this first index. There is always
// one with the index 1.
func (b *builder) begin(first uint64) error {
	if b.file == nil {
		if err := b.create(1); err != nil || first == 1 {
			return err
		}
	}
	if b.tail.last < first-1 {
		if err := b.lost(batchHead, first-1); err != nil {
			return err
		}
	}
	if err := b.put(batchHeader{kind: segmentEnd, length: batchHead, index: b.tail.last}, make([]byte, batchHead)); err != nil {
		return err
	}
	if err := b.finish(pages(b.tail.off)); err != nil {
		return err
	}
	return b.create(first)
}

func (b *builder) create(first uint64) (err error) {
	b.file, err = b.fs.OpenFile(segmentPath(b.dir, first), os.O_RDWR|os.O_CREATE|os.O_TRUNC)
	b.first, b.prev = first, b.tail.crc
	b.tail = tail{off: segmentHead, last: first - 1, crc: b.tail.crc}
	return err
}

// lost writes a batch of n bytes for what cannot be read, up to the batch of this index.
func (b *builder) lost(n int, index uint64) error {
	return b.put(batchHeader{kind: KindLost, flags: flagSynced, length: uint32(n), index: index}, make([]byte, n))
}

// put writes a batch at the tail. Its CRC continues that of the batch before it.
func (b *builder) put(h batchHeader, data []byte) error {
	h.put(data)
	h.crc = b.report.ID.seal(b.tail.crc, data)
	if _, err := b.file.WriteAt(data, b.tail.off); err != nil {
		return err
	}
	b.tail = tail{off: b.tail.off + int64(len(data)), last: h.index, crc: h.crc}
	return nil
}

// finish completes the file of a segment, of this size.
func (b *builder) finish(size int64) error {
	if err := writeZeros(b.file, b.tail.off, size, func() bool { return false }); err != nil {
		return err
	}
	head := segmentHeader{size: uint32(size), id: b.report.ID, first: b.first, prev: b.prev}.encode()
	if _, err := b.file.WriteAt(head[:], 0); err != nil {
		return err
	}
	err := errors.Join(b.file.Sync(), b.file.Close())
	b.file = nil
	return err
}

// complete writes the rest of the ledger. After the last batch of which a checkpoint knows
// a new segment begins, if that batch is lost.
func (b *builder) complete(src string) error {
	if b.report.ID == (ID{}) { // nothing tells: there is no batch
		if _, err := rand.Read(b.report.ID[:]); err != nil {
			return err
		}
	}
	next := uint64(1)
	if n := len(b.report.Checkpoints); n > 0 {
		next = b.report.Checkpoints[n-1] + 1
	}
	if b.file == nil || b.tail.last+1 < next {
		if err := b.begin(next); err != nil {
			return err
		}
	}
	if err := b.finish(pages(b.tail.off + batchHead)); err != nil {
		return err
	}
	for _, index := range b.report.Checkpoints {
		if err := b.checkpoint(src, index); err != nil {
			return err
		}
	}
	return writeIdentity(b.fs, b.dir, identity{b.report.ID, b.report.Made})
}

func (b *builder) checkpoint(src string, index uint64) error {
	f, size, err := openSized(b.fs, checkpointPath(src, index), readOnly)
	if err != nil {
		return err
	}
	defer f.Close()
	return writeFile(b.fs, checkpointPath(b.dir, index), func(w io.Writer) error {
		_, err := io.Copy(w, io.NewSectionReader(f, 0, size))
		return err
	})
}
