package ledger

import (
	"encoding/binary"
	"encoding/hex"
	"hash/crc32"
	"io"
	"path/filepath"
	"time"
)

const (
	identityName    = "LEDGER"
	identityMagic   = "BFLEDGER"
	identityVersion = 1
	identityBytes   = 44
)

// An ID identifies a ledger. It is drawn at random when the ledger is made, and
// part of each checksum.
type ID [16]byte

// String returns the id in hexadecimal.
func (id ID) String() string { return hex.EncodeToString(id[:]) }

// An identity is the content of the file LEDGER: magic 8, version 4, zeros 4, id
// 16, made 8 (Unix ms), CRC 4.
type identity struct {
	id   ID
	made time.Time
}

func (i identity) encode() []byte {
	b := make([]byte, identityBytes)
	copy(b, identityMagic)
	binary.BigEndian.PutUint32(b[8:], identityVersion)
	copy(b[16:], i.id[:])
	binary.BigEndian.PutUint64(b[32:], uint64(i.made.UnixMilli()))
	binary.BigEndian.PutUint32(b[40:], crc32.Checksum(b[:40], castagnoli))
	return b
}

// parseIdentity reads what encode returned. ok is false for anything else.
func parseIdentity(b []byte) (i identity, ok bool) {
	if len(b) != identityBytes || string(b[:8]) != identityMagic ||
		binary.BigEndian.Uint32(b[8:]) != identityVersion || binary.BigEndian.Uint32(b[12:]) != 0 ||
		binary.BigEndian.Uint32(b[40:]) != crc32.Checksum(b[:40], castagnoli) {
		return i, false
	}
	return identity{ID(b[16:32]), time.UnixMilli(int64(binary.BigEndian.Uint64(b[32:])))}, true
}

// readIdentity reads the file LEDGER in dir.
func readIdentity(fs fileSystem, dir string) (identity, error) {
	path := filepath.Join(dir, identityName)
	f, size, err := openSized(fs, path, readOnly)
	if err != nil {
		return identity{}, err
	}
	defer f.Close()
	b := make([]byte, min(size, identityBytes+1))
	if _, err := f.ReadAt(b, 0); err != nil && err != io.EOF {
		return identity{}, err
	}
	i, ok := parseIdentity(b)
	if !ok {
		return identity{}, &DamageError{path, 0, "it does not identify a ledger that this version can read"}
	}
	return i, nil
}

// writeIdentity makes the names in dir durable, then LEDGER, then the name of dir.
func writeIdentity(fs fileSystem, dir string, ident identity) error {
	if err := fs.SyncDir(dir); err != nil {
		return err
	}
	err := writeFile(fs, filepath.Join(dir, identityName), func(w io.Writer) error {
		_, err := w.Write(ident.encode())
		return err
	})
	if err != nil {
		return err
	}
	return fs.SyncDir(filepath.Dir(dir))
}
