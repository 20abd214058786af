package nuts

import (
	"cmp"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/balefire/balefire/disk"
	"github.com/balefire/balefire/store"
)

// A name is the content of CURRENT: a generation and its segment size.
type name struct {
	num     int
	segment int64
}

func genDir(dir string, num int) string {
	return filepath.Join(dir, fmt.Sprintf("%s%06d", genPrefix, num))
}

// String returns the text of CURRENT: "gen-000007 67108864 " and a checksum.
func (n name) String() string {
	text := fmt.Sprintf("%s%06d %d", genPrefix, n.num, n.segment)
	return fmt.Sprintf("%s %08x\n", text, crc32.ChecksumIEEE([]byte(text)))
}

// parseName reads the text of CURRENT.
func parseName(text string) (name, error) {
	var n name
	_, err := fmt.Sscanf(text, genPrefix+"%d %d ", &n.num, &n.segment)
	if err != nil || n.num < 1 || n.segment < 1 || n.String() != text {
		return name{}, fmt.Errorf("%w: %s says %q instead of a generation and its segment size; "+
			"run `balefire-node store salvage` to read the newest one", store.ErrCorrupt, currentFile, text)
	}
	return n, nil
}

// readCurrent returns the current generation; ok is false if there is none.
func readCurrent(dir string) (n name, ok bool, err error) {
	b, err := os.ReadFile(filepath.Join(dir, currentFile))
	if errors.Is(err, fs.ErrNotExist) {
		return name{}, false, nil
	}
	if err != nil {
		return name{}, false, err
	}
	n, err = parseName(string(b))
	return n, err == nil, err
}

// setCurrent makes n the current generation. After an error it may or may not be
// the current one after a power cut.
func setCurrent(dir string, n name) error {
	return disk.WriteFile(filepath.Join(dir, currentFile), []byte(n.String()))
}

func syncFile(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	err = f.Sync()
	return cmp.Or(err, f.Close())
}
