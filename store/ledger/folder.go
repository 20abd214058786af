package ledger

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

const (
	checkpointPrefix = "checkpoint-"
	sparePrefix      = "spare-"
	tornPrefix       = "torn-"
	tmpSuffix        = ".tmp"

	readOnly  = os.O_RDONLY
	readWrite = os.O_RDWR
)

// A folder is what there is in the folder of a ledger.
type folder struct {
	identified  bool     // there is a file LEDGER
	segments    []uint64 // first indexes, ascending
	checkpoints []uint64 // indexes, ascending
	torn        []string // names, oldest first
	leftovers   []string // names of what an interrupted run left: spares, unfinished files
}

// Exists reports whether there is a ledger in dir, or what is left of a damaged one: an
// interrupted or refused Open may leave a folder without any. What cannot be read exists.
func Exists(dir string) bool { return exists(osFS{}, dir) }

func exists(fs fileSystem, dir string) bool {
	d, err := readFolder(fs, dir)
	if errors.Is(err, os.ErrNotExist) {
		return false
	}
	return err != nil || d.identified || len(d.segments)+len(d.checkpoints)+len(d.torn) > 0
}

func readFolder(fs fileSystem, dir string) (folder, error) {
	names, err := fs.Names(dir)
	if err != nil {
		return folder{}, err
	}
	var d folder
	for _, name := range names {
		first, isSegment := numberOf(name, "", segmentSuffix)
		index, isCheckpoint := numberOf(name, checkpointPrefix, "")
		switch {
		case name == identityName:
			d.identified = true
		case isSegment:
			d.segments = append(d.segments, first)
		case isCheckpoint:
			d.checkpoints = append(d.checkpoints, index)
		case strings.HasPrefix(name, tornPrefix):
			d.torn = append(d.torn, name)
		case strings.HasPrefix(name, sparePrefix), strings.HasSuffix(name, tmpSuffix):
			d.leftovers = append(d.leftovers, name)
		}
	}
	slices.Sort(d.segments)
	slices.Sort(d.checkpoints)
	return d, nil
}

// makeFolder makes the folder dir, which may exist if it is empty.
func makeFolder(fs fileSystem, dir string) error {
	if err := fs.MkdirAll(dir); err != nil {
		return err
	}
	names, err := fs.Names(dir)
	if err == nil && len(names) > 0 {
		err = fmt.Errorf("%w: %s is not empty", os.ErrExist, dir)
	}
	return err
}

func segmentPath(dir string, first uint64) string { return filepath.Join(dir, segmentName(first)) }
