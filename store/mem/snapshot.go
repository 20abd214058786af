package mem

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"

	"github.com/balefire/balefire/store"
)

// A snapshot is one file: the magic line, the records (bucket, key length, key,
// value length, value; lengths are uvarints), a zero byte, and the CRC-32C of
// all that in big endian.
const (
	snapshotName  = "mem.snapshot"
	snapshotMagic = "balefire mem 1\n"
	maxSnapshotV  = 64 << 20 // no value is longer, in bytes
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Snapshot implements [store.Engine]; [Open] reads it.
func (e *Engine) Snapshot(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return fmt.Errorf("mem: snapshot: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, snapshotName), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("mem: snapshot: %w", err)
	}
	err = e.write(f)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("mem: snapshot: %w", err)
	}
	return nil
}

// write writes a consistent view of all records to w.
func (e *Engine) write(w io.Writer) error {
	sum := crc32.New(castagnoli)
	buf := bufio.NewWriter(w)
	out := io.MultiWriter(buf, sum)
	e.mu.RLock()
	defer e.mu.RUnlock()
	if e.closed {
		return errClosed
	}
	var err error
	put := func(p []byte) {
		if err == nil {
			_, err = out.Write(p)
		}
	}
	put([]byte(snapshotMagic))
	for _, b := range store.Buckets() {
		e.buckets[b].Scan(func(p store.Pair) bool {
			put(binary.AppendUvarint([]byte{byte(b)}, uint64(len(p.Key))))
			put(p.Key)
			put(binary.AppendUvarint(nil, uint64(len(p.Val))))
			put(p.Val)
			return err == nil
		})
	}
	put([]byte{0})
	put(binary.BigEndian.AppendUint32(nil, sum.Sum32()))
	return errors.Join(err, buf.Flush())
}

// Open returns an engine with the content of a snapshot in dir. Later commits are not
// written to it.
func Open(dir string) (*Engine, error) {
	f, err := os.Open(filepath.Join(dir, snapshotName))
	if err != nil {
		return nil, fmt.Errorf("mem: open snapshot: %w", err)
	}
	defer f.Close()
	e := New()
	if err := e.read(f); err != nil {
		return nil, fmt.Errorf("mem: open snapshot: %w: %w", store.ErrCorrupt, err)
	}
	return e, nil
}

// read loads a snapshot into the empty engine e.
func (e *Engine) read(r io.Reader) error {
	in := &summed{r: bufio.NewReader(r), sum: crc32.New(castagnoli)}
	magic, err := in.bytes(uint64(len(snapshotMagic)), uint64(len(snapshotMagic)))
	if err != nil {
		return err
	}
	if string(magic) != snapshotMagic {
		return errors.New("not a snapshot of this engine")
	}
	for {
		b, err := in.ReadByte()
		if err != nil {
			return unexpected(err)
		}
		if b == 0 {
			return in.check()
		}
		key, err := in.field(store.MaxKey)
		if err != nil {
			return err
		}
		val, err := in.field(maxSnapshotV)
		if err != nil {
			return err
		}
		if err := e.Commit([]store.Op{{Bucket: store.Bucket(b), Key: key, Val: val}}); err != nil {
			return err
		}
	}
}

// A summed reader computes the checksum of the bytes read.
type summed struct {
	r   *bufio.Reader
	sum hash.Hash32
}

// ReadByte implements [io.ByteReader].
func (s *summed) ReadByte() (byte, error) {
	b, err := s.r.ReadByte()
	if err == nil {
		s.sum.Write([]byte{b})
	}
	return b, err
}

// field reads a length of at most limit and then that many bytes.
func (s *summed) field(limit uint64) ([]byte, error) {
	n, err := binary.ReadUvarint(s)
	if err != nil {
		return nil, unexpected(err)
	}
	return s.bytes(n, limit)
}

// bytes reads n bytes. It allocates as they arrive, not by the length alone.
func (s *summed) bytes(n, limit uint64) ([]byte, error) {
	if n > limit {
		return nil, fmt.Errorf("a field of %d bytes, limit %d", n, limit)
	}
	p, err := io.ReadAll(io.LimitReader(s.r, int64(n)))
	if err == nil && uint64(len(p)) < n {
		err = io.ErrUnexpectedEOF
	}
	s.sum.Write(p)
	return p, err
}

// check verifies the checksum and that nothing follows it.
func (s *summed) check() error {
	want := s.sum.Sum32()
	var got [4]byte
	if _, err := io.ReadFull(s.r, got[:]); err != nil {
		return unexpected(err)
	}
	if binary.BigEndian.Uint32(got[:]) != want {
		return errors.New("checksum does not match")
	}
	if _, err := s.r.ReadByte(); err != io.EOF {
		return errors.New("bytes after the end")
	}
	return nil
}

func unexpected(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}
