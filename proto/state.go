package proto

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Name returns the state as used by people and the API: PENDING, SUCCESS, ….
func (s TaskState) Name() string { return strings.TrimPrefix(s.String(), "TASK_STATE_") }

// ParseTaskState parses the form of Name, in either case.
func ParseTaskState(name string) (TaskState, error) {
	v, ok := TaskState_value["TASK_STATE_"+strings.ToUpper(name)]
	if !ok || v == 0 {
		return 0, fmt.Errorf("unknown task state %.40q: it is one of %s", name, strings.Join(TaskStateNames(), ", "))
	}
	return TaskState(v), nil
}

// TaskStateNames lists the states in the form of Name, ordered by number.
func TaskStateNames() []string {
	var out []string
	for _, v := range slices.Sorted(maps.Keys(TaskState_name))[1:] {
		out = append(out, TaskState(v).Name())
	}
	return out
}

// Terminal reports whether a task in this state has ended; false for an unknown state.
func (s TaskState) Terminal() bool {
	return s >= Success && s <= Expired
}

// Name returns the class as people and the API read it: critical, high, ….
func (c Class) Name() string {
	if c == ClassUnspecified {
		c = Normal
	}
	return strings.ToLower(strings.TrimPrefix(c.String(), "CLASS_"))
}

// Index returns the class as an index from 0, critical, to 3, low. An unknown class is
// normal.
func (c Class) Index() int {
	if c < Critical || c > Low {
		c = Normal
	}
	return int(c - Critical)
}

// ParseClass reads what Name writes; empty means normal.
func ParseClass(name string) (Class, error) {
	if name == "" {
		return Normal, nil
	}
	v, ok := Class_value["CLASS_"+strings.ToUpper(name)]
	if !ok || v == 0 {
		return 0, fmt.Errorf("unknown class %.40q: it is critical, high, normal or low", name)
	}
	return Class(v), nil
}

// Name returns the mode as people and the API read it.
func (m Mode) Name() string {
	if m == ModeUnspecified {
		m = AtLeastOnce
	}
	return strings.ToLower(strings.TrimPrefix(m.String(), "MODE_"))
}

// ParseMode reads what Name writes; empty means at_least_once.
func ParseMode(name string) (Mode, error) {
	if name == "" {
		return AtLeastOnce, nil
	}
	v, ok := Mode_value["MODE_"+strings.ToUpper(name)]
	if !ok || v == 0 {
		return 0, fmt.Errorf("unknown mode %.40q: it is at_least_once or at_most_once", name)
	}
	return Mode(v), nil
}

// Name returns the code as people and the API read it: NO_HANDLER, BUSY, ….
func (c Code) Name() string {
	if c == CodeOK {
		return "OK"
	}
	return strings.TrimPrefix(c.String(), "CODE_")
}

// Name returns the cause as people and the API read it: crashed, cancelled_unsent, …; empty
// if the state says it.
func (c TaskCause) Name() string {
	if c == TaskCause_TASK_CAUSE_UNSPECIFIED {
		return ""
	}
	return strings.ToLower(strings.TrimPrefix(c.String(), "TASK_CAUSE_"))
}

// Ends returns the state in which a refusal with this code ends a task, and false
// for all other codes: most leave it PENDING, to be tried later, and DUPLICATE,
// STALE and MOVED say what became of it.
func (c Code) Ends() (TaskState, bool) {
	switch c {
	case CodeExpired:
		return Expired, true
	case CodeDenied, CodeBadSignature, CodeTooLarge, CodeBadForm:
		return DeadLetter, true
	}
	return StateUnspecified, false
}

// Seq returns the record's signed sequence, the epoch of a task for a named node.
func (r *Record) Seq() Seq { return Seq{r.GetSeqBoot(), r.GetSeqCounter()} }

// FirstSeq returns the sequence that the record had first, which orders the tasks
// of one ordering key.
func (r *Record) FirstSeq() Seq {
	if r.GetFirstSeqBoot() == 0 {
		return r.Seq()
	}
	return Seq{r.GetFirstSeqBoot(), r.GetFirstSeqCounter()}
}

// AddEvent appends e and folds the middle of the list when it is full: the first
// quarter and the newest stay, and the folded entry counts what it stands for.
func (r *Record) AddEvent(e *Event) {
	const keep = MaxEvents / 4
	for len(r.Events) >= MaxEvents {
		first, next := r.Events[keep], r.Events[keep+1]
		r.Events[keep] = &Event{
			TimeMs: first.TimeMs,
			State:  first.State,
			Folded: max(first.Folded, 1) + max(next.Folded, 1),
		}
		r.Events = slices.Delete(r.Events, keep+1, keep+2)
	}
	e.Detail = CutWords(e.Detail, maxCause)
	r.Events = append(r.Events, e)
}

// Move sets the record's state and notes the change and its cause. detail is what a handler,
// a peer or a person said about it.
func (r *Record) Move(to TaskState, now time.Time, cause TaskCause, detail string) {
	r.State = to
	if to.Terminal() {
		r.EndedMs = now.UnixMilli()
	}
	r.AddEvent(&Event{TimeMs: now.UnixMilli(), State: to, Attempt: r.Attempts, Cause: cause, Detail: detail})
}

// Clip makes s fit for a text field of n bytes: what is not UTF-8 is replaced,
// and what is left is cut without splitting a rune.
func Clip(s string, n int) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= n {
		return s
	}
	for n > 0 && s[n]&0xc0 == 0x80 {
		n--
	}
	return s[:n]
}

// CutWords is Clip for text that people read: it cuts between two words, and marks that.
func CutWords(s string, n int) string {
	const mark = " …"
	if s = strings.ToValidUTF8(s, "\uFFFD"); len(s) <= n {
		return s
	}
	s = Clip(s, n-len(mark))
	if at := strings.LastIndexByte(s, ' '); at > n/2 {
		s = s[:at]
	}
	return s + mark
}

// Name returns why a lease was given back, as people and the API read it. A newer version
// may send causes that this one has no name for.
func (c ReleaseCause) Name() string { return strings.TrimPrefix(c.String(), "RELEASE_CAUSE_") }

// Name returns the phase of a lease at its owner as used by people and the API.
func (p LeasePhase) Name() string { return strings.TrimPrefix(p.String(), "LEASE_PHASE_") }

// Event returns the grant as an event in the history of its task. number counts the
// grants from 1; owner is the name of the node that got the lease.
func (g *Granting) Event(number uint32, owner string) *Event {
	detail := fmt.Sprintf("%s under %d.%d", owner, g.GetEpochBoot(), g.GetEpochCounter())
	if g.GetEnded() != "" {
		detail += "; ended: " + g.GetEnded()
	}
	return &Event{TimeMs: g.GetTimeMs(), State: Accepted, Attempt: number, Cause: TaskGranted, Detail: Clip(detail, maxCause)}
}
