package node

import (
	"errors"
	"fmt"
	"io"

	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store/blob"
)

// A chunker cuts a stream into chunks of proto.ChunkSize. It reads one chunk ahead to
// know which is the last.
type chunker struct {
	r          io.Reader
	cur, ahead []byte
	err        error
	primed     bool
}

func newChunker(r io.Reader) *chunker {
	return &chunker{r: r, cur: make([]byte, 0, proto.ChunkSize), ahead: make([]byte, 0, proto.ChunkSize)}
}

// next returns the next chunk, valid until the following call. An empty stream is one
// empty chunk.
func (c *chunker) next() (chunk []byte, last bool, err error) {
	if !c.primed {
		c.fill()
		c.primed = true
	}
	c.cur, c.ahead = c.ahead, c.cur
	if c.err == nil {
		c.fill()
	} else {
		c.ahead = c.ahead[:0]
	}
	if c.err != nil && c.err != io.EOF {
		return nil, false, c.err
	}
	return c.cur, c.err == io.EOF && len(c.ahead) == 0, nil
}

func (c *chunker) fill() {
	buf, n := c.ahead[:proto.ChunkSize], 0
	for n < len(buf) && c.err == nil {
		var k int
		k, c.err = c.r.Read(buf[n:]) // only io.EOF is the end: a truncated upload returns another error
		n += k
	}
	c.ahead = buf[:n]
}

// An unsealer reads the plain body of a sealed blob.
type unsealer struct {
	blob   *blob.Blob
	opener *identity.StreamOpener
	left   int64 // sealed bytes
	i      uint64
	plain  []byte
	sealed []byte
	out    []byte
}

func openSealed(dir *blob.Dir, name string, key [32]byte, suite, what byte) (*unsealer, error) {
	opener, err := identity.NewStreamOpener(key, suite, what)
	if err != nil {
		return nil, err
	}
	b, err := dir.Open(name)
	if err != nil {
		return nil, err
	}
	return &unsealer{blob: b, opener: opener, left: b.Size(), sealed: make([]byte, identity.SealedChunk)}, nil
}

// errForgedBody is returned for a body that differs from what was sealed or signed
// (I9).
var errForgedBody = errors.New("the body does not match its digest (I9)")

// Read returns plain bytes, all of them authenticated.
func (u *unsealer) Read(p []byte) (int, error) {
	for len(u.out) == 0 {
		if u.left == 0 {
			return 0, io.EOF
		}
		part := u.sealed[:min(u.left, int64(len(u.sealed)))]
		if _, err := io.ReadFull(u.blob, part); err != nil {
			return 0, fmt.Errorf("read a body: %w", err)
		}
		u.left -= int64(len(part))
		plain, err := u.opener.OpenChunk(u.plain[:0], u.i, u.left == 0, part)
		if err != nil {
			return 0, fmt.Errorf("%w: %w", errForgedBody, err)
		}
		u.plain, u.out, u.i = plain, plain, u.i+1
	}
	n := copy(p, u.out)
	u.out = u.out[n:]
	return n, nil
}

// Close closes the blob.
func (u *unsealer) Close() error { return u.blob.Close() }
