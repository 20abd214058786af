package bodies

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"sync"

	"github.com/balefire/balefire/merkle"
	"github.com/balefire/balefire/proto"
)

// openObject opens a complete object and reads its header.
func (s *Store) openObject(name string) (*os.File, Manifest, error) {
	f, _, err := s.open(name)
	if err != nil {
		return nil, Manifest{}, err
	}
	n, err := readNote(f)
	if err == nil && n.manifest.Name().String() != name {
		err = fmt.Errorf("%w: %s holds another object", ErrDamaged, name)
	}
	if err != nil {
		f.Close()
		return nil, n.manifest, err
	}
	return f, n.manifest, nil
}

// Manifest returns the manifest of a complete object.
func (s *Store) Manifest(name string) (Manifest, error) {
	f, m, err := s.openObject(name)
	if err != nil {
		return m, err
	}
	return m, f.Close()
}

// A Source serves the chunks of a complete object, each with its path to the root. It is
// safe for concurrent use.
type Source struct {
	Manifest Manifest
	file     *os.File
	tree     merkle.Tree
}

// Source opens an object to be sent.
func (s *Store) Source(name string) (*Source, error) {
	f, m, err := s.openObject(name)
	if err != nil {
		return nil, err
	}
	leaves, err := readLeaves(f, &m)
	src := &Source{Manifest: m, file: f}
	if err == nil {
		if src.tree = merkle.New(leaves); src.tree.Root() != m.Root {
			err = fmt.Errorf("%w: the hashes of %s", ErrDamaged, name)
		}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return src, nil
}

// readChunk fills dst from a place in a file, which is damaged if it ends before.
func readChunk(f *os.File, dst []byte, at int64) error {
	_, err := f.ReadAt(dst, at)
	if err == io.EOF {
		return fmt.Errorf("%w: it is cut off", ErrDamaged)
	}
	if err != nil {
		return fmt.Errorf("read body: %w", err)
	}
	return nil
}

// Chunk reads chunk i into dst, which has room for it, and appends its path to path.
func (s *Source) Chunk(i int, dst, path []byte) (chunk, way []byte, err error) {
	chunk = dst[:s.Manifest.ChunkSize(i)]
	if err := readChunk(s.file, chunk, chunkAt(&s.Manifest, i)); err != nil {
		return nil, nil, err
	}
	if leafHash(chunk) != s.tree[0][i] {
		return nil, nil, fmt.Errorf("%w: chunk %d", ErrDamaged, i)
	}
	return chunk, s.tree.Path(path, i), nil
}

// Close closes the file.
func (s *Source) Close() error { return s.file.Close() }

// Open returns the plain body that ref describes. Each byte was authenticated; the end
// comes only if size and digest are right too, otherwise ErrSealed (I9).
func (s *Store) Open(ref *Ref) (io.ReadCloser, error) {
	f, m, err := s.openObject(ref.Name.String())
	if err != nil {
		return nil, err
	}
	c, err := newChunkCipher(ref.Key, ref.Suite, m.Chunk)
	if err != nil {
		f.Close()
		return nil, err
	}
	r := &reader{ref: *ref, sum: sha256.New(), file: f}
	r.src = &unsealer{file: f, m: m, cipher: c}
	if ref.Packed {
		d, err := proto.NewDecompressor(r.src, ref.Size)
		if err != nil {
			f.Close()
			return nil, fmt.Errorf("%w: %w", ErrSealed, err)
		}
		r.src, r.unpack = d, d
	}
	return r, nil
}

// OpenBody returns the plain body that sealed content refers to: o, with the size and the
// digest of the plain body. See [Store.Open].
func (s *Store) OpenBody(o *proto.BodyRef, size uint64, digest []byte) (io.ReadCloser, error) {
	ref, err := RefOf(o, size, digest)
	if err != nil {
		return nil, err
	}
	return s.Open(&ref)
}

// OpenResult returns the plain result of a task, to be read and closed.
func (s *Store) OpenResult(r *proto.Record) (io.ReadCloser, error) {
	if o := r.GetResultObject(); o != nil {
		return s.OpenBody(o, r.GetResultSize(), r.GetResultDigest())
	}
	b, err := r.GetResult(), error(nil)
	if r.GetResultBlob() != "" {
		b, err = s.Get(r.GetResultBlob(), proto.MaxInlineBody)
	}
	if err != nil {
		return nil, fmt.Errorf("result: %w", err)
	}
	return io.NopCloser(bytes.NewReader(b)), nil
}

// verifyStep is how many bytes are read between two looks at a context.
const verifyStep = 1 << 20

// Verify reads the result that an outcome refers to, and checks it.
func (s *Store) Verify(ctx context.Context, o *proto.Outcome) error {
	r, err := s.OpenBody(o.GetObject(), o.GetBodySize(), o.GetBodyDigest())
	if err != nil {
		return err
	}
	defer r.Close()
	for err == nil {
		if err = ctx.Err(); err == nil {
			_, err = io.CopyN(io.Discard, r, verifyStep)
		}
	}
	if err == io.EOF {
		return nil
	}
	return err
}

// A reader checks the plain bytes of an object against its reference.
type reader struct {
	ref    Ref
	src    io.Reader
	unpack io.Closer // nil: not compressed
	file   *os.File
	sum    hash.Hash
	size   int64
	err    error
	once   sync.Once
}

// Read reads plain bytes.
func (r *reader) Read(p []byte) (int, error) {
	if r.err != nil || len(p) == 0 {
		return 0, r.err
	}
	n, err := r.src.Read(p)
	r.sum.Write(p[:n])
	r.size += int64(n)
	switch {
	case r.size > r.ref.Size, err == io.EOF && (r.size != r.ref.Size || [32]byte(r.sum.Sum(nil)) != r.ref.Digest):
		err = ErrSealed
	case errors.Is(err, proto.ErrInflated), errors.Is(err, proto.ErrCompressed):
		err = fmt.Errorf("%w: %w", ErrSealed, err)
	}
	r.err = err
	return n, err
}

// Close closes the file.
func (r *reader) Close() (err error) {
	r.once.Do(func() {
		if r.unpack != nil {
			r.unpack.Close()
		}
		err = r.file.Close()
	})
	return err
}

// An unsealer reads the bytes that were sealed.
type unsealer struct {
	file          *os.File
	m             Manifest
	cipher        chunkCipher
	i             int
	sealed, plain []byte
	out           []byte
}

// Read returns authenticated bytes.
func (u *unsealer) Read(p []byte) (int, error) {
	for len(u.out) == 0 {
		n := u.m.Chunks()
		if u.i == n {
			return 0, io.EOF
		}
		if u.sealed == nil {
			u.sealed = make([]byte, u.m.ChunkSize(0))
		}
		part := u.sealed[:u.m.ChunkSize(u.i)]
		if err := readChunk(u.file, part, chunkAt(&u.m, u.i)); err != nil {
			return 0, err
		}
		plain, err := u.cipher.open(u.plain[:0], u.i, u.i == n-1, part)
		if err != nil {
			return 0, err
		}
		u.plain, u.out, u.i = plain, plain, u.i+1
	}
	n := copy(p, u.out)
	u.out = u.out[n:]
	return n, nil
}
