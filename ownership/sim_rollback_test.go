package ownership

import (
	"encoding/binary"
	"maps"
	"time"

	"github.com/balefire/balefire/proto"
)

// A simBackup is a copy of a disk, as made by an operator or a machine snapshot.
type simBackup struct {
	disk map[string][]byte
	at   time.Duration
}

// A simHistory is what a disk that was rolled back does not contain.
type simHistory struct {
	backup   simBackup
	touched  map[proto.TaskID]time.Duration // by task: when something of it was last written
	decided  map[proto.TaskID]time.Duration // likewise, of its state at its home
	highest  uint64                         // boot number of all starts of the node
	restored bool                           // since its last start
}

// touch records which task is written.
func (x *simNode) touch(key string) {
	if x.touched == nil {
		x.touched, x.decided = map[proto.TaskID]time.Duration{}, map[proto.TaskID]time.Duration{}
	}
	if len(key) == 17 {
		x.touched[proto.TaskID([]byte(key[1:]))] = x.s.now
		if key[0] == keyLease || key[0] == keyMoved {
			x.decided[proto.TaskID([]byte(key[1:]))] = x.s.now
		}
	}
}

// backUp copies the disk of x, or stops x and restores the last copy. What was written
// about a task since then is lost to x: no promise holds for such a task, except that its
// epochs rise at x, and that an at_most_once task starts once if x is only an owner of it.
// All other tasks must not be harmed.
func (s *sim) backUp(x *simNode) {
	if x.backup.disk == nil {
		x.backup.disk, x.backup.at = maps.Clone(x.disk), s.now
		return
	}
	x.crash()
	s.w.count("rolled back")
	for id, at := range x.touched {
		if at > x.backup.at {
			s.w.tasks[id].rolled = true
			s.w.tasks[id].undecided = s.w.tasks[id].undecided || x.decided[id] > x.backup.at
			s.w.trace(id, "node %d: forgotten by a disk that was rolled back", x.i)
		}
	}
	x.disk, x.backup.disk, x.restored = x.backup.disk, nil, true
	for key, val := range x.disk {
		if val, err := Restored(key, val); err == nil {
			x.disk[key] = val
		}
	}
	for _, name := range simQueues {
		s.w.shifts[name] += simSeized
	}
	s.at(s.between(time.Second, 10*time.Second), x.restart)
}

// bootNumber returns the boot number of a start, and checks I5 for it: the epochs of each
// start are above those of all earlier ones.
func (x *simNode) bootNumber(now Now) uint64 {
	boot := max(lastBoot(x.disk)+1, uint64(max(now.Wall/1000, 1)))
	if boot <= x.highest && x.restored {
		x.s.w.count("rolled back with its clock")
		boot = x.highest + 1 // the others reject it until its clock is right: see addressbook.ErrOldBoot
	}
	if boot <= x.highest {
		x.s.w.fail("I5: node %d starts with the boot number %d after %d", x.i, boot, x.highest)
	}
	x.highest, x.restored = boot, false
	return boot
}

func lastBoot(disk map[string][]byte) uint64 {
	if v := disk["boot"]; v != nil {
		return binary.BigEndian.Uint64(v)
	}
	return 0
}
