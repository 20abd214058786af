package ledger

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"path/filepath"
	"slices"

	"github.com/klauspost/compress/zstd"

	"github.com/balefire/balefire/store"
)

// A checkpoint is a header, a zstd stream (RFC 8878), and a trailer. Header: magic
// 8, version 4, zeros 4, ledger id 16, index 8, time 8 (Unix ms). Trailer: length of
// the stream 8, CRC of everything before it 4.
const (
	checkpointMagic   = "BFLEDGC1"
	checkpointVersion = 1
	checkpointHead    = 48
	checkpointTail    = 12
)

func checkpointPath(dir string, index uint64) string {
	return filepath.Join(dir, fmt.Sprintf(checkpointPrefix+"%020d", index))
}

// Checkpoint keeps what write writes as the state of the caller after the batch of
// this index, which must be answered and newer than the last checkpoint. The state
// must have all entries of the batch: they are answered one by one, and the last one
// was when one of a later batch was, or all that was queued. The log is
// synced up to it first. It returns nil once the checkpoint is on disk; the one
// before it is kept, in case that this one cannot be read, and older ones are
// removed. A failure leaves the ledger and its checkpoints as they were.
func (l *Ledger) Checkpoint(index uint64, write func(io.Writer) error) error {
	if err := l.checkpoint(index, write); err != nil {
		return fmt.Errorf("checkpoint at %d: %w", index, err)
	}
	return nil
}

func (l *Ledger) checkpoint(index uint64, write func(io.Writer) error) error {
	l.checkpointing.Lock()
	defer l.checkpointing.Unlock()
	if l.closed.Load() {
		return store.ErrClosed
	}
	if last := l.last.Load(); index > last {
		return fmt.Errorf("the last batch is %d", last)
	}
	if newest := l.newest.Load(); index <= newest {
		return fmt.Errorf("it is not newer than the checkpoint at %d", newest)
	}
	if err := l.syncTo(index); err != nil {
		return err
	}
	err := writeFile(l.cfg.fs, checkpointPath(l.dir, index), func(w io.Writer) error {
		return encodeCheckpoint(w, l.id, index, l.cfg.Clock.Now().UnixMilli(), write)
	})
	if err != nil {
		return err
	}
	l.checkpoints = append(l.checkpoints, index)
	l.checkpoints = l.checkpoints[max(len(l.checkpoints)-2, 0):]
	l.newest.Store(index)
	l.removeOldCheckpoints()
	return nil
}

// syncTo returns once the batch of this index is on disk.
func (l *Ledger) syncTo(index uint64) error {
	if err := l.Err(); err != nil || l.synced.Load() >= index {
		return err
	}
	r := l.requests.Get().(*request)
	r.sync = true
	if !l.queue.Push(r) {
		l.recycle(r)
		return store.ErrClosed
	}
	<-r.done
	err := r.err
	l.recycle(r)
	return err
}

// removeOldCheckpoints removes the files of checkpoints that are not kept.
func (l *Ledger) removeOldCheckpoints() {
	if l.pinned {
		return
	}
	d, err := readFolder(l.cfg.fs, l.dir)
	for _, index := range d.checkpoints {
		if !slices.Contains(l.checkpoints, index) {
			err = errors.Join(err, l.cfg.fs.Remove(checkpointPath(l.dir, index)))
		}
	}
	if err != nil {
		l.cfg.Logger.Warn("ledger: could not remove old checkpoints", "dir", l.dir, "err", err)
	}
}

// LoadCheckpoint calls load with what the newest checkpoint that can be read has,
// and returns its index: the state is complete with a [Ledger.Replay] from the next
// one on. Without a checkpoint it returns 0 and does not call load.
func (l *Ledger) LoadCheckpoint(load func(io.Reader) error) (index uint64, err error) {
	l.checkpointing.Lock()
	defer l.checkpointing.Unlock()
	if l.closed.Load() {
		return 0, store.ErrClosed
	}
	if index = l.newest.Load(); index == 0 {
		return 0, nil
	}
	if err := readCheckpoint(l.cfg.fs, l.dir, l.id, index, load); err != nil {
		return 0, fmt.Errorf("load checkpoint at %d: %w", index, err)
	}
	return index, nil
}

// encodeCheckpoint writes a checkpoint to w.
func encodeCheckpoint(w io.Writer, id ID, index uint64, now int64, write func(io.Writer) error) error {
	sum := crc32.New(castagnoli)
	out := &countingWriter{w: io.MultiWriter(w, sum)}
	head := make([]byte, checkpointHead)
	copy(head, checkpointMagic)
	binary.BigEndian.PutUint32(head[8:], checkpointVersion)
	copy(head[16:], id[:])
	binary.BigEndian.PutUint64(head[32:], index)
	binary.BigEndian.PutUint64(head[40:], uint64(now))
	if _, err := out.Write(head); err != nil {
		return err
	}
	z, err := zstd.NewWriter(out, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest),
		zstd.WithWindowSize(1<<20), zstd.WithEncoderCRC(false))
	if err != nil {
		return err
	}
	if err := errors.Join(write(z), z.Close()); err != nil {
		return err
	}
	b := binary.BigEndian.AppendUint64(nil, uint64(out.n-checkpointHead))
	if _, err := out.Write(b); err != nil {
		return err
	}
	_, err = w.Write(sum.Sum(nil))
	return err
}

type countingWriter struct {
	w io.Writer
	n int64
}

// Write implements [io.Writer].
func (c *countingWriter) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.n += int64(n)
	return n, err
}

// readCheckpoint verifies a checkpoint as a whole and then calls load with its
// content. Nil: it is only verified.
func readCheckpoint(fs fileSystem, dir string, id ID, index uint64, load func(io.Reader) error) error {
	path := checkpointPath(dir, index)
	f, size, err := openSized(fs, path, readOnly)
	if err != nil {
		return err
	}
	defer f.Close()
	what, err := checkCheckpoint(f, size, id, index)
	if err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	if what != "" {
		return &DamageError{path, 0, what}
	}
	if load == nil {
		return nil
	}
	return decodeCheckpoint(f, size, load)
}

// checkCheckpoint returns what is wrong with the checkpoint, "" if nothing is.
func checkCheckpoint(r io.ReaderAt, size int64, id ID, index uint64) (what string, err error) {
	if size < checkpointHead+checkpointTail {
		return "it is too short", nil
	}
	head, trailer := make([]byte, checkpointHead), make([]byte, checkpointTail)
	if _, err := r.ReadAt(head, 0); err != nil {
		return "", err
	}
	if _, err := r.ReadAt(trailer, size-checkpointTail); err != nil {
		return "", err
	}
	sum := crc32.New(castagnoli)
	if _, err := io.Copy(sum, io.NewSectionReader(r, 0, size-4)); err != nil {
		return "", err
	}
	switch {
	case string(head[:8]) != checkpointMagic:
		return "it is not a checkpoint", nil
	case sum.Sum32() != binary.BigEndian.Uint32(trailer[8:]):
		return "it does not verify", nil
	case binary.BigEndian.Uint32(head[8:]) != checkpointVersion:
		return "it is of another version", nil
	case ID(head[16:32]) != id:
		return "it belongs to another ledger", nil
	case binary.BigEndian.Uint64(head[32:]) != index:
		return "its index is not that of its name", nil
	case binary.BigEndian.Uint64(trailer) != uint64(size-checkpointHead-checkpointTail):
		return "its length is wrong", nil
	}
	return "", nil
}

// decodeCheckpoint calls load with the content of a checkpoint that was verified.
func decodeCheckpoint(r io.ReaderAt, size int64, load func(io.Reader) error) error {
	z, err := zstd.NewReader(io.NewSectionReader(r, checkpointHead, size-checkpointHead-checkpointTail),
		zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(8<<20))
	if err != nil {
		return err
	}
	defer z.Close()
	return load(z)
}
