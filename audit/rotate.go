package audit

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// maxDrops is how many old files are removed when a new one is started: more than one, so
// that a lowered Keep takes effect, and few, so that a wall clock that jumps
// years ahead does not empty the record at once.
const maxDrops = 2

// rotateIfDue starts a new file if more bytes would make this one too large, or if
// it is old enough that it must become removable.
func (j *Journal) rotateIfDue(more int64) error {
	now := j.cfg.Clock.Now()
	if !rotationDue(j.cfg, j.size, more, now.Sub(j.created)) || j.Head().Seq == j.firstSeq-1 {
		return nil
	}
	if err := j.cfg.fault("rotate"); err != nil {
		return err
	}
	if err := j.begin(header{Start: j.Head().Hash, First: j.Head().Seq + 1, Time: now}); err != nil {
		return err
	}
	if j.cfg.Clock.Doubted() {
		return nil // the next rotation removes what is old
	}
	return j.retain(now)
}

// rotationDue decides for a file of size bytes that began age ago.
func rotationDue(cfg Config, size, more int64, age time.Duration) bool {
	return size+more > cfg.MaxFile || age > cfg.Keep
}

// begin creates the file with the header h and continues there.
func (j *Journal) begin(h header) error {
	h.Version, h.Time = formatVersion, h.Time.UTC()
	f, size, err := j.createFile(h)
	if err != nil {
		return err
	}
	if j.file != nil {
		err = j.file.Close()
	}
	j.file, j.size, j.created, j.firstSeq = f, size, h.Time, h.First
	return err
}

// retain removes the oldest files that contain only lines older than Keep. HEAD records
// that first, durably: any other missing file was removed by someone else.
func (j *Journal) retain(now time.Time) error {
	names, err := files(j.dir)
	if err != nil {
		return err
	}
	drop := 0
	for drop < maxDrops && drop+1 < len(names) {
		next, err := readHeader(j.dir, names[drop+1])
		if err != nil || now.Sub(next.Time) <= j.cfg.Keep {
			break // a damaged header is left for Verify to report
		}
		drop++
		j.base = next.before()
	}
	if drop == 0 {
		return nil
	}
	err = writeHead(j.headF, heads{Base: j.base, Last: j.Head()})
	if err := errors.Join(err, j.headF.Sync()); err != nil {
		return j.fail(fmt.Errorf("write HEAD: %w", err))
	}
	for _, name := range names[:drop] {
		// On Windows a file that is being read stays until the next rotation.
		_ = os.Remove(filepath.Join(j.dir, name))
	}
	return nil
}
