package pebble

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"strconv"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/balefire/balefire/store"
)

// Pebble mistakes damage in a log or manifest for the torn end of the file,
// unless a later block proves otherwise, and silently drops what follows:
// up to 32 KiB of acknowledged commits, or whole tables. The guard reads these
// files before Pebble does and refuses such damage. Only damage to the very last
// piece cannot be told from a torn end.
//
// A file is blocks of 32 KiB, a block is chunks:
//
//	crc(4) length(2) type(1) [log number(4) [synced up to(8)]] payload
//
// Manifests have types 1-4 without the brackets, logs 9-12 with both.
const (
	blockSize      = 32 << 10
	manifestHeader = 7
	logHeader      = 19
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// A scanner looks for damage in one file.
type scanner struct {
	data  []byte
	log   bool
	logNo uint32 // the number every chunk of the log has
}

// guard checks the logs and the current manifest in dir, or that there is no store.
func guard(fs vfs.FS, dir string, desc *pebble.DBDesc) error {
	names, err := fs.List(dir)
	if err != nil {
		return err
	}
	if !desc.Exists {
		return checkEmpty(fs, dir, names)
	}
	for _, name := range names {
		var s scanner
		if number, ok := strings.CutSuffix(name, ".log"); ok {
			n, err := strconv.ParseUint(number, 10, 64)
			if err != nil {
				continue
			}
			s.log, s.logNo = true, uint32(n)
		} else if name != fs.PathBase(desc.ManifestFilename) {
			continue
		}
		if s.data, err = readFile(fs, fs.PathJoin(dir, name)); err != nil {
			return err
		}
		if at, later, found := s.damage(); found {
			return fmt.Errorf("%w: %s is damaged at byte %d, and byte %d shows that this was on disk before: acknowledged data is lost if it is opened; restore a snapshot, or begin with an empty folder", store.ErrCorrupt, name, at, later)
		}
	}
	return nil
}

// checkEmpty checks that a folder without the marker of a manifest has no store that lost
// this file, which is empty: Pebble would begin a new store there and remove the tables. An
// interrupted creation leaves neither a table nor anything in a log.
func checkEmpty(fs vfs.FS, dir string, names []string) error {
	for _, name := range names {
		found := strings.HasSuffix(name, ".sst")
		if strings.HasSuffix(name, ".log") {
			info, err := fs.Stat(fs.PathJoin(dir, name))
			if err != nil {
				return err
			}
			found = info.Size() > 0
		}
		if found {
			return fmt.Errorf("%w: the empty file marker.manifest.NUMBER.MANIFEST-NUMBER is missing, but %s is there: put that file back, or restore a snapshot", store.ErrCorrupt, name)
		}
	}
	return nil
}

func readFile(fs vfs.FS, path string) ([]byte, error) {
	f, err := fs.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(f)
}

// damage finds the first byte that does not begin a chunk, and then a chunk that
// was written after that byte had been synced.
func (s *scanner) damage() (at, later int, found bool) {
	for at < len(s.data) {
		if s.left(at) < s.header() {
			at += s.left(at)
			continue
		}
		size, _, ok := s.chunk(at)
		if !ok {
			break
		}
		at += size
	}
	for later = at + 1; later < len(s.data); later++ {
		// A manifest is synced after each record, a log records how far it was synced.
		if _, synced, ok := s.chunk(later); ok && (!s.log || synced > uint64(at)) {
			return at, later, true
		}
	}
	return 0, 0, false
}

// left returns how many bytes of its block are left at at.
func (s *scanner) left(at int) int {
	return min(blockSize-at%blockSize, len(s.data)-at)
}

func (s *scanner) header() int {
	if s.log {
		return logHeader
	}
	return manifestHeader
}

// chunk reads the chunk at at: its size with the header, and how far the log
// had been synced when it was written.
func (s *scanner) chunk(at int) (size int, synced uint64, ok bool) {
	block := s.data[at : at+s.left(at)]
	if len(block) < s.header() {
		return 0, 0, false
	}
	kind := block[6]
	if s.log {
		if kind < 9 || kind > 12 || binary.LittleEndian.Uint32(block[7:]) != s.logNo {
			return 0, 0, false
		}
		synced = binary.LittleEndian.Uint64(block[11:])
	} else if kind < 1 || kind > 4 {
		return 0, 0, false
	}
	size = s.header() + int(binary.LittleEndian.Uint16(block[4:]))
	if size > len(block) {
		return 0, 0, false
	}
	sum := crc32.Checksum(block[6:size], castagnoli)
	masked := (sum>>15 | sum<<17) + 0xa282ead8
	return size, synced, masked == binary.LittleEndian.Uint32(block)
}
