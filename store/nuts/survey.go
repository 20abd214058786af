package nuts

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/balefire/balefire/store"
)

// A survey is what the guard found in the log of one generation. It relies on one
// invariant of the engine: transactions are written one after another, each fsynced
// before the next begins. So only the last one can be incomplete; any other incomplete
// transaction is damage.
type survey struct {
	dir      string
	acked    position // end of acknowledged data according to the mark
	known    bool     // there is a mark
	segments []segment
	txs      int      // committed transactions
	entries  int      // valid entries before the damage
	last     position // just after the last commit

	orphans [][]locatedEntry // never committed, followed by others
	open    []locatedEntry   // never committed, at the end of the log
	damage  *position        // where reading stopped
	extent  int64            // end of the damaged entry there, if its header can be read
	gap     string           // why reading stopped between two segments
	behind  []uint64         // readable transactions after last, at most maxBehind
	beyond  int64            // segment of the last readable entry after last
	torn    int64            // bytes written after last

	weigher *weigher // receives every valid entry
}

type segment struct {
	num  int64
	size int64
}

// A locatedEntry is a valid entry and where it is.
type locatedEntry struct {
	entry
	position
}

func segmentPath(dir string, num int64) string {
	return filepath.Join(dir, strconv.FormatInt(num, 10)+".dat")
}

// surveyLog reads the whole log of the generation in dir, in constant memory.
// segSize is the size its segments were created with, or 0 if unknown.
// progress is called with the bytes read.
func surveyLog(dir string, segSize int64, progress func(int64)) (*survey, error) {
	s := &survey{dir: dir, weigher: newWeigher()}
	var err error
	if s.acked, s.known, err = readMark(dir); err != nil {
		return nil, err
	}
	if s.segments, err = listSegments(dir); err != nil {
		return nil, err
	}
	if len(s.segments) == 0 {
		return nil, &DamageError{Dir: dir, File: "0.dat", What: "the log is missing"}
	}
	var done int64
	full := int64(-1) // end of the previous segment, which must have been full
	for i, seg := range s.segments {
		if seg.num != int64(i) {
			return nil, &DamageError{Dir: dir, File: fmt.Sprintf("%d.dat", i), What: "a segment of the log is missing"}
		}
		if s.damage == nil {
			full, err = s.read(seg, full, segSize)
			if err != nil {
				return nil, err
			}
		}
		done += seg.size
		progress(done)
	}
	if s.damage == nil && len(s.open) == 0 {
		return s, nil
	}
	return s, s.readBehind()
}

func listSegments(dir string) ([]segment, error) {
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var segs []segment
	for _, f := range files {
		name, isLog := strings.CutSuffix(f.Name(), ".dat")
		num, err := strconv.ParseInt(name, 10, 64)
		switch {
		case strings.HasPrefix(f.Name(), "merge_") || strings.HasPrefix(f.Name(), "merge-"):
			return nil, fmt.Errorf("%w: %s holds %s, a file of another program", store.ErrCorrupt, dir, f.Name())
		case !isLog || err != nil || num < 0 || strconv.FormatInt(num, 10) != name:
			continue
		}
		info, err := f.Info()
		if err != nil {
			return nil, err
		}
		segs = append(segs, segment{num, info.Size()})
	}
	slices.SortFunc(segs, func(a, b segment) int { return position{a.num, 0}.compare(position{b.num, 0}) })
	return segs, nil
}

// read surveys one segment and returns where its entries end. full is the end of the
// entries of the previous segment, or -1.
func (s *survey) read(seg segment, full, segSize int64) (int64, error) {
	w, closeFile, err := openWindow(segmentPath(s.dir, seg.num))
	if err != nil {
		return 0, err
	}
	defer closeFile()
	var off int64
	for {
		e, b, v, err := w.entryAt(off)
		if err != nil {
			return 0, err
		}
		if v == blank {
			break
		}
		if v == broken {
			s.stop(seg.num, off)
			s.extent = off + e.size()
			return off, nil
		}
		if off == 0 && full >= 0 && segSize > 0 && full+e.size() <= segSize {
			s.gap = fmt.Sprintf("the end of %d.dat is gone: what follows in %d.dat would have had room there", seg.num-1, seg.num)
			s.stop(seg.num-1, full)
			return off, nil
		}
		s.weigher.add(e, b)
		s.add(locatedEntry{e, position{seg.num, off}})
		off += e.size()
	}
	hole, err := w.written(off)
	if err == nil && hole >= 0 {
		s.stop(seg.num, off)
	}
	return off, err
}

func (s *survey) stop(num, off int64) { s.damage = &position{num, off} }

// add adds the next valid entry to the current transaction.
func (s *survey) add(p locatedEntry) {
	s.entries++
	if len(s.open) > 0 && s.open[0].tx != p.tx {
		s.orphans = append(s.orphans, s.open)
		s.open = nil
	}
	s.open = append(s.open, p)
	if !p.committed {
		return
	}
	s.txs++
	s.last = position{p.segment, p.off + p.size()}
	s.open = nil
}

const maxBehind = 1000 // bounds the count of transactions after damage

// readBehind searches byte by byte for entries after the last commit. If nothing after that
// was acknowledged, the damaged entry was being written: what its value imitates is no entry.
func (s *survey) readBehind() error {
	torn := s.known && s.last == s.acked && s.damage != nil
	for _, seg := range s.segments[s.last.segment:] {
		from := int64(0)
		if seg.num == s.last.segment {
			from = s.last.off
		}
		n, err := scanDamaged(segmentPath(s.dir, seg.num), from, func(off int64, e entry, _ []byte) error {
			if torn && seg.num == s.damage.segment && off > s.damage.off && off < s.extent {
				return nil
			}
			s.beyond = seg.num
			if !slices.Contains(s.behind, e.tx) && len(s.behind) < maxBehind {
				s.behind = append(s.behind, e.tx)
			}
			return nil
		})
		if err != nil {
			return err
		}
		s.torn += n
	}
	return nil
}

// scanDamaged calls fn with every valid entry of a segment from byte from on,
// whatever lies between them, and returns how many bytes up to the last one
// that is not zero there are. If one is damaged and the next follows where its header
// says, what its value imitates is no entry.
func scanDamaged(path string, from int64, fn func(off int64, e entry, b []byte) error) (written int64, err error) {
	w, closeFile, err := openWindow(path)
	if err != nil {
		return 0, err
	}
	defer closeFile()
	end, begin, within := from, from, int64(0) // begin: where an entry must be; within: end of a damaged one
	for off := from; off < w.size; {
		e, b, v, err := w.entryAt(off)
		if err != nil {
			return 0, err
		}
		switch {
		case off < within && v == valid:
			v = broken
		case v == broken && off == begin && e.size() > 0:
			if _, _, follows, err := w.entryAt(off + e.size()); err != nil {
				return 0, err
			} else if follows == valid {
				within = off + e.size()
			}
		}
		switch v {
		case valid:
			if err := fn(off, e, b); err != nil {
				return 0, err
			}
			off += e.size()
			end, begin = off, off
		case broken:
			off++
			if c, err := w.peek(off-1, 1); err != nil {
				return 0, err
			} else if c[0] != 0 {
				end = off
			}
		default: // a run of zeroes: skip to its end, less what may belong to a header
			next, err := w.written(off)
			if err != nil {
				return 0, err
			}
			if next < 0 {
				return end - from, nil
			}
			off = max(off+1, next-maxHeader)
		}
	}
	return end - from, nil
}

// judge returns nil if all acknowledged data is there, otherwise what is lost.
func (s *survey) judge() error {
	lost := &DamageError{Dir: s.dir, File: fmt.Sprintf("%d.dat", s.last.segment), From: s.last.off, After: len(s.behind)}
	if s.damage != nil {
		lost.File, lost.From = fmt.Sprintf("%d.dat", s.damage.segment), s.damage.off
	}
	switch {
	case s.gap != "":
		lost.What = s.gap
	case s.damage != nil && (len(s.behind) > 1 || s.beyond > s.damage.segment):
		// A segment is fsynced before the next begins, and a transaction before the next.
		lost.What = "it cannot be read, and it is not the end of the log"
	case s.known && s.last.compare(s.acked) < 0:
		lost.What = fmt.Sprintf("nothing whole follows, but the log was acknowledged up to %v", s.acked)
	default:
		return nil
	}
	return lost
}

// clean reports whether NutsDB may open the log as it is: nothing follows the
// last commit, not even an empty segment.
func (s *survey) clean() bool {
	return s.damage == nil && len(s.open) == 0 && len(s.orphans) == 0 && s.last.segment == int64(len(s.segments))-1
}
