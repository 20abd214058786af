package audit

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/balefire/balefire/disk"
)

// A header is the first line of a file. It links the file to the previous one.
type header struct {
	Version int       `json:"journal"`
	First   uint64    `json:"first"` // number of the file's first line
	Start   Hash      `json:"start"` // hash of the line before it
	Time    time.Time `json:"time"`  // when the file was created
	Gap     string    `json:"gap,omitempty"`
}

const (
	formatVersion = 1
	fileDomain    = "balefire/v1/audit-file\x00"
	extension     = ".jsonl"
)

// before is the position in the chain that the file continues.
func (h header) before() Head { return Head{Seq: h.First - 1, Hash: h.Start} }

func (h header) encode() ([]byte, error) {
	text, err := json.Marshal(h)
	if err != nil {
		return nil, err
	}
	body := text[:len(text)-1]
	return appendSeal(slices.Clone(body), chainHash(fileDomain, h.Start, body)), nil
}

func parseHeader(text []byte) (header, error) {
	var h header
	body, sum, err := splitSeal(text)
	if err != nil {
		return h, err
	}
	d := json.NewDecoder(bytes.NewReader(append(slices.Clone(body), '}')))
	d.DisallowUnknownFields()
	if err := d.Decode(&h); err != nil {
		return h, fmt.Errorf("the header is not one: %w", err)
	}
	switch {
	case h.Version != formatVersion:
		return h, fmt.Errorf("format %d is not known, this program reads %d", h.Version, formatVersion)
	case h.First == 0 || chainHash(fileDomain, h.Start, body) != sum:
		return h, errors.New("hash of the header does not match: it was changed")
	}
	return h, nil
}

func fileName(first uint64) string { return fmt.Sprintf("%020d%s", first, extension) }

// firstOf parses the name of a file.
func firstOf(name string) (uint64, bool) {
	digits, ok := strings.CutSuffix(name, extension)
	if !ok || len(digits) != 20 {
		return 0, false
	}
	first, err := strconv.ParseUint(digits, 10, 64)
	return first, err == nil && first > 0
}

// files lists the journal's files, oldest first.
func files(dir string) ([]string, error) {
	list, err := os.ReadDir(dir) // sorted by name
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range list {
		if _, ok := firstOf(e.Name()); ok {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// createFile creates a file that contains only h. It appears under its name only once the
// header is durable, and is removed after an error: lines may still be added to the file
// before it.
func (j *Journal) createFile(h header) (f *os.File, size int64, err error) {
	text, err := h.encode()
	if err != nil {
		return nil, 0, err
	}
	path := filepath.Join(j.dir, fileName(h.First))
	if err = disk.WriteFile(path, text); err == nil {
		err = j.cfg.fault("begin")
	}
	if err == nil {
		f, err = os.OpenFile(path, os.O_RDWR, 0o600)
	}
	if err != nil {
		if left := os.Remove(path); left != nil && !errors.Is(left, fs.ErrNotExist) {
			err = j.fail(errors.Join(err, left))
		}
		return nil, 0, err
	}
	return f, int64(len(text)), nil
}

// A line is one line of a file.
type line struct {
	no    int    // from 1, the header
	off   int64  // offset in the file
	size  int64  // bytes in the file
	text  []byte // without its newline; valid until the next line is read
	whole bool   // it has a newline and is not longer than MaxLine
}

// eachLine calls fn with every line of r until fn returns an error. Memory stays bounded
// whatever r contains.
func eachLine(r io.Reader, fn func(line) error) error {
	br := bufio.NewReaderSize(r, MaxLine+1)
	l := line{no: 1}
	for {
		text, err := br.ReadSlice('\n')
		l.size = int64(len(text))
		l.text, l.whole = bytes.TrimSuffix(text, []byte("\n")), err == nil
		if errors.Is(err, bufio.ErrBufferFull) {
			l.text = slices.Clone(l.text)
		}
		for errors.Is(err, bufio.ErrBufferFull) { // too long: keep the beginning, skip the rest
			text, err = br.ReadSlice('\n')
			l.size += int64(len(text))
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if l.size > 0 {
			if ferr := fn(l); ferr != nil {
				return ferr
			}
		}
		if err != nil {
			return nil
		}
		l.no, l.off = l.no+1, l.off+l.size
	}
}

// readLines calls fn with every line of the file called name.
func readLines(dir, name string, fn func(line) error) error {
	f, err := os.Open(filepath.Join(dir, name))
	if err != nil {
		return err
	}
	defer f.Close()
	return eachLine(f, fn)
}

// readHeader reads the header of the file called name.
func readHeader(dir, name string) (h header, err error) {
	err = readLines(dir, name, func(l line) error {
		if h, err = parseHeader(l.text); err != nil {
			return err
		}
		return fs.SkipAll
	})
	if err == nil {
		return h, errors.New("the file is empty")
	}
	if errors.Is(err, fs.SkipAll) {
		err = nil
	}
	return h, err
}
