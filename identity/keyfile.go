package identity

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/balefire/balefire/disk"
)

// ErrExists is returned instead of overwriting a key.
var ErrExists = errors.New("identity: there is already a key, it is never overwritten")

// ErrKeyFile is returned for a key file that must not be trusted or cannot be
// read. The error states what to do.
var ErrKeyFile = errors.New("identity: refused key file")

// maxKeyFile bounds what is read, in bytes.
const maxKeyFile = 16 << 10

// damaged explains why a key file cannot be used.
func damaged(path, format string, args ...any) error {
	return fmt.Errorf("%w %s: %w: restore it from a backup", ErrKeyFile, path, fmt.Errorf(format, args...))
}

// keyFileSum is the checksum at the end of a key file.
func keyFileSum(kind string, body []byte) []byte {
	sum := sha256.Sum256(append([]byte(domainKeyFile+kind), body...))
	return sum[:8]
}

// writeKeyFile writes body, readable by the owner alone, and returns once it is
// on disk. The file appears whole or not at all; an existing one is never
// overwritten.
func writeKeyFile(path, kind string, body []byte) error {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("write key: %w", err)
	}
	text := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: append(bytes.Clone(body), keyFileSum(kind, body)...)})
	temp := filepath.Join(dir, "."+filepath.Base(path)+"."+rand.Text()[:8])
	defer os.Remove(temp)
	if err := writeSynced(temp, text); err != nil {
		return fmt.Errorf("write key: %w", err)
	}
	// A link fails where a rename would replace.
	if err := os.Link(temp, path); errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%w: %s", ErrExists, path)
	} else if err != nil {
		return fmt.Errorf("write key: %w", err)
	}
	return disk.SyncDir(dir)
}

func writeSynced(path string, b []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return errors.Join(err, f.Sync(), f.Close())
}

// readKeyFile returns the body of a key file that no other user can have read.
func readKeyFile(path, kind string) ([]byte, error) {
	f, err := openKeyFile(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("%w %s: %w", ErrKeyFile, path, err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%w %s: it is not a regular file: put the key itself there", ErrKeyFile, path)
	}
	if err := checkOwner(path, info, os.Geteuid()); err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(f, maxKeyFile+1))
	if err != nil {
		return nil, fmt.Errorf("%w %s: %w", ErrKeyFile, path, err)
	}
	return parseKeyFile(path, kind, text)
}

// parseKeyFile checks that text is exactly one key of a kind.
func parseKeyFile(path, kind string, text []byte) ([]byte, error) {
	if len(text) == 0 {
		return nil, damaged(path, "it is empty")
	}
	if len(text) > maxKeyFile {
		return nil, damaged(path, "it is larger than any key")
	}
	block, rest := pem.Decode(text)
	if block == nil || !bytes.HasPrefix(text, []byte("-----BEGIN ")) || len(bytes.TrimSpace(rest)) > 0 {
		return nil, damaged(path, "it is not a key file, or is truncated")
	}
	if block.Type != kind {
		return nil, damaged(path, "it holds a %.40q, not a %q", block.Type, kind)
	}
	n := len(block.Bytes) - 8
	if n < 0 || !bytes.Equal(block.Bytes[n:], keyFileSum(kind, block.Bytes[:n])) {
		return nil, damaged(path, "its checksum does not match")
	}
	return block.Bytes[:n], nil
}
