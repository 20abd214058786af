package audit

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
)

// heads is the content of HEAD: the two ends of the chain that must exist.
type heads struct {
	Base Head `json:"base"` // position before the oldest file kept
	Last Head `json:"last"` // the last line whose fsync returned
}

const (
	headName = "HEAD"
	// headSize is the size of HEAD: one sector, so that rewriting it in place is atomic.
	headSize   = 512
	headDomain = "balefire/v1/audit-head\x00"
)

// encode returns h in headSize bytes: JSON, a digest that detects damage, spaces.
func (h heads) encode() ([]byte, error) {
	text, err := json.Marshal(h)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(append([]byte(headDomain), text...))
	text = fmt.Appendf(text, " %s", hex.EncodeToString(sum[:]))
	b := bytes.Repeat([]byte(" "), headSize)
	copy(b, text)
	b[headSize-1] = '\n'
	return b, nil
}

// decodeHeads accepts exactly what encode writes.
func decodeHeads(b []byte) (heads, error) {
	var h heads
	if len(b) != headSize {
		return h, fmt.Errorf("HEAD has %d bytes, not %d", len(b), headSize)
	}
	if err := json.NewDecoder(bytes.NewReader(b)).Decode(&h); err != nil {
		return h, fmt.Errorf("HEAD cannot be read: %w", err)
	}
	if want, err := h.encode(); err != nil || !bytes.Equal(want, b) {
		return h, errors.New("HEAD was changed")
	}
	return h, nil
}

// headTries is how often HEAD is read before it counts as damaged: a read during
// the journal's own write may see half of it.
const headTries = 50

func readHeads(dir string) (h heads, err error) {
	for range headTries {
		var b []byte
		if b, err = os.ReadFile(filepath.Join(dir, headName)); err != nil {
			return heads{}, err
		}
		if h, err = decodeHeads(b); err == nil {
			return h, nil
		}
		runtime.Gosched()
	}
	return heads{}, err
}

// writeHead rewrites HEAD in place without a sync: after a power cut HEAD may lag behind
// the lines, but is never ahead of them.
func writeHead(f *os.File, h heads) error {
	b, err := h.encode()
	if err != nil {
		return err
	}
	_, err = f.WriteAt(b, 0)
	return err
}
