package bodies

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/balefire/balefire/merkle"
	"github.com/balefire/balefire/proto"
)

// SealOptions say how a body is sealed.
type SealOptions struct {
	Suite byte // AES or ChaCha

	essential bool // it must be stored when there is no space for new work: a result
	chunk     int  // tests: plain bytes of a chunk; default proto.ChunkSize
}

// Seal seals a body of any size under a new key, chunk by chunk; it compresses one whose
// beginning shrinks. When it returns nil the object is durable, and pinned.
func (s *Store) Seal(ctx context.Context, r io.Reader, o SealOptions) (ref Ref, m Manifest, err error) {
	if o.chunk == 0 {
		o.chunk = proto.ChunkSize
	}
	ref.Suite = o.Suite
	rand.Read(ref.Key[:])
	c, err := newChunkCipher(ref.Key, ref.Suite, o.chunk)
	if err != nil {
		return ref, m, err
	}
	file, err := s.create(o.essential)
	if err != nil {
		return ref, m, err
	}
	sealer := &sealer{cipher: c, file: file, at: headerSize, plain: make([]byte, 0, o.chunk), block: make([]byte, 0, entrySize+o.chunk+tagSize)}
	sum := sha256.New()
	ref.Packed, ref.Size, err = sealer.copy(io.TeeReader(untilDone(ctx, r), sum))
	if err == nil {
		m, err = sealer.finish()
	}
	if err != nil {
		return ref, m, errors.Join(err, file.abort())
	}
	sum.Sum(ref.Digest[:0])
	ref.Name = m.Name()
	return ref, m, file.commit(ref.Name.String())
}

// SealFile seals the file with a result, as Seal does.
func (s *Store) SealFile(ctx context.Context, path string, suite byte) (Ref, Manifest, error) {
	file, err := os.Open(path)
	if err != nil {
		return Ref{}, Manifest{}, err
	}
	defer file.Close()
	return s.Seal(ctx, file, SealOptions{Suite: suite, essential: true})
}

// untilDone returns a reader of r that fails with the error of ctx once that is done.
func untilDone(ctx context.Context, r io.Reader) io.Reader {
	return readFunc(func(p []byte) (int, error) {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		return r.Read(p)
	})
}

// A readFunc is a function that is an [io.Reader].
type readFunc func(p []byte) (int, error)

// Read calls f.
func (f readFunc) Read(p []byte) (int, error) { return f(p) }

// A sealer cuts what is written to it into chunks and seals them. It keeps a full chunk
// until more comes, since the last one is sealed as the last.
type sealer struct {
	cipher chunkCipher
	file   *writer
	at     int64 // where the next entry begins in the file
	plain  []byte
	block  []byte // an entry and its chunk
	leaves [][32]byte
}

// copy writes all of r, compressed if that pays.
func (s *sealer) copy(r io.Reader) (packed bool, n int64, err error) {
	head, err := io.ReadAll(io.LimitReader(r, proto.MaxInlineBody))
	if err != nil {
		return false, 0, fmt.Errorf("read the body: %w", err)
	}
	n = int64(len(head))
	_, packed = proto.Compress(nil, head)
	var w io.Writer = s
	var z io.WriteCloser
	if packed {
		z = proto.NewCompressor(s)
		w = z
	}
	if _, err = w.Write(head); err == nil {
		var rest int64
		rest, err = io.Copy(w, r)
		n += rest
	}
	if z != nil {
		err = cmp.Or(err, z.Close()) // Close repeats an error of Write
	}
	return packed, n, err
}

// Write adds plain bytes.
func (s *sealer) Write(p []byte) (n int, err error) {
	for len(p) > 0 {
		if len(s.plain) == cap(s.plain) {
			if err := s.next(false); err != nil {
				return n, err
			}
		}
		k := min(len(p), cap(s.plain)-len(s.plain))
		s.plain = append(s.plain, p[:k]...)
		n, p = n+k, p[k:]
	}
	return n, nil
}

// next seals and writes a chunk.
func (s *sealer) next(last bool) error {
	if len(s.leaves) == maxChunks {
		return fmt.Errorf("seal: %w: more than %d chunks", ErrTooLarge, maxChunks)
	}
	var room [entrySize]byte
	s.block = s.cipher.seal(append(s.block[:0], room[:]...), len(s.leaves), last, s.plain)
	e := entry{len(s.leaves), leafHash(s.block[entrySize:])}
	e.append(s.block[:0])
	if err := s.file.writeAt(s.block, s.at); err != nil {
		return err
	}
	s.leaves = append(s.leaves, e.leaf)
	s.at += int64(len(s.block))
	s.plain = s.plain[:0]
	return nil
}

// finish seals the last chunk and writes the header.
func (s *sealer) finish() (Manifest, error) {
	if err := s.next(true); err != nil {
		return Manifest{}, err
	}
	m := Manifest{Size: s.at - headerSize - int64(len(s.leaves))*entrySize, Chunk: cap(s.plain), Root: merkle.New(s.leaves).Root()}
	if err := m.check(); err != nil {
		return m, err
	}
	return m, s.file.writeAt((&note{manifest: m}).encode(), 0)
}
