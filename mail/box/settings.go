package box

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/balefire/balefire/proto"
)

// A Kind says what a box is.
type Kind uint8

// The kinds of boxes.
const (
	Mailbox Kind = 1 + iota // one subscription, itself
	Topic                   // any number of subscriptions
	Spool                   // mail for a box on another node; no subscription
)

// SpoolPrefix begins the name of a spool. The name of the box at its home follows.
const SpoolPrefix = "out:"

// A Mode says how the sessions of a subscription share its mail.
type Mode uint8

// The modes of a subscription.
const (
	Shared    Mode = iota // each mail goes to one session
	Exclusive             // a second session is refused
	Failover              // the session of the highest priority, then the oldest, has all
)

// A Strategy says which session of a shared subscription is given the next mail, of those
// that have credit.
type Strategy uint8

// The strategies. Among equals the oldest session is given the mail.
const (
	Ordered     Strategy = iota // the oldest, as much as it has credit for
	RoundRobin                  // the one that was given a mail the longest ago, or none yet
	Priority                    // the one of the highest priority, then the least loaded
	LeastLoaded                 // the one of which the smallest part of the credit is in use
)

// BoxSettings are the settings of a box. Zero values mean defaults.
type BoxSettings struct {
	Name     string        // unique in the ledger; it never changes
	Kind     Kind          // it never changes
	Mails    uint32        // waiting mails at most; default 100 000, of a topic 1 000 000
	Bytes    uint64        // of the letters that wait; default 256 MiB, of a topic 1 GiB
	Age      time.Duration // a topic drops what is older; default 7 days
	Interest bool          // of a topic: a mail ends when all subscriptions have it, and a full topic refuses; default: a full topic drops the oldest
	PerPeer  bool          // keys of different origins are different lanes
	Draining bool          // new mail is refused for now
	Closed   bool          // its home is elsewhere: it takes and gives no mail, and all dead letters go to the archive
	Notes    string        // of the caller, for whom they are kept: at most MaxNotes bytes
	JSON     bool          // a mail whose body is not JSON is dead at once; one outside of the letter is not read
	Once     bool          // when it is removed, no box ever has its name again: its chains are dropped

	Keep      time.Duration // how long a mailbox keeps mail that is done; zero: it keeps none
	KeepMails uint32        // how many of those at most; default 10 000

	Home       proto.PeerID // of a spool: the home of its box; zero: not known
	Generation uint64       // of that home; of another box: of this node as its home

	Handover Handover // the box moves to another home, or came from one
}

// SubSettings are the settings of a subscription. Zero values mean defaults.
type SubSettings struct {
	Name     string        // unique in its topic, "" in a mailbox; it never changes
	Filter   string        // subjects that it reads; default all
	Mode     Mode          // default Shared
	Strategy Strategy      // of Shared; default Ordered
	Attempts uint8         // failed deliveries until a mail is dead; default 3
	KeyBatch uint8         // mails of one lane that a session has at once; default 1
	Block    bool          // a dead letter blocks its lane; default: the next one goes on
	Paused   bool          // nothing is delivered
	Lease    time.Duration // default 5, 10, 30 or 60 s by class
	Dead     uint32        // dead letters that are kept; default 10 000
	DeadAge  time.Duration // how long they are kept; default 30 days
	To       string        // of a topic: the box into which its mail is delivered, kept for the caller
}

// WithDefaults returns the settings with the defaults in place of zero values.
func (b BoxSettings) WithDefaults() BoxSettings {
	x := box{settings: b}
	b.Mails, b.Bytes = uint32(x.maxMails()), uint64(x.maxBytes())
	if b.Kind == Topic {
		b.Age = or(b.Age, defaultTopicAge)
	}
	b.KeepMails = uint32(x.maxKept())
	return b
}

// WithDefaults returns the settings with the defaults in place of zero values. The lease
// stays zero if it depends on the class.
func (s SubSettings) WithDefaults() SubSettings {
	s.Attempts, s.KeyBatch, s.Dead, s.DeadAge = or(s.Attempts, defaultAttempts), or(s.KeyBatch, 1), or(s.Dead, defaultDead), or(s.DeadAge, defaultDeadAge)
	return s
}

// A Start is where a new subscription, or one that seeks, begins.
type Start struct {
	At  StartAt
	Seq uint64 // of StartSeq
	Ms  int64  // of StartTime: what was accepted then or later, Unix milliseconds
}

// A StartAt is a kind of start.
type StartAt uint8

// The kinds of starts.
const (
	StartNew   StartAt = iota // with the next mail
	StartFirst                // with the oldest mail
	StartSeq                  // with a sequence
	StartTime                 // with a time
	StartLast                 // with the newest mail of each subject, and then the next
)

// Limits are limits of all boxes of a ledger. Zero values mean defaults.
type Limits struct {
	Bytes uint64 // of all letters, dead ones included; default 10 GiB
	Keys  uint32 // dedupe keys; default 200 000
	Kept  uint64 // of the letters of mail that is done and kept; default 256 MiB
}

// What a BOX record does.
const (
	boxSet = 1 + iota
	boxRemove
	boxLimits // of the ledger: the box is 0
	boxMake   // with the deliveries of this start before it
)

// What a SUB record does.
const (
	subSet = 1 + iota // with a start if it is new
	subRemove
	subSeek
	subUnblock  // a lane
	_           // 5 is reserved
	subRedriven // dead letters
	subArchived // dead letters
)

// EncodeNewBox returns a BOX record that makes a box: see [State.NewBox].
func (s *State) EncodeNewBox(id BoxID, b *BoxSettings) []byte {
	rec := append(appendHead(nil, head{typ: TypeBox, box: id}), boxMake)
	return finish(b.append(appendU64(rec, s.given)), 0)
}

// EncodeBox returns a BOX record that changes a box, or makes one that nobody reads here: a
// spool or a copy.
func EncodeBox(id BoxID, b *BoxSettings) []byte {
	rec := append(appendHead(nil, head{typ: TypeBox, box: id}), boxSet)
	return finish(b.append(rec), 0)
}

// EncodeRemoveBox returns a BOX record that removes a box with all that waits in it.
func EncodeRemoveBox(id BoxID) []byte {
	return finish(append(appendHead(nil, head{typ: TypeBox, box: id}), boxRemove), 0)
}

// EncodeLimits returns a BOX record that sets the limits of the ledger.
func EncodeLimits(l Limits) []byte {
	rec := append(appendHead(nil, head{typ: TypeBox}), boxLimits)
	return finish(l.append(rec), 0)
}

// EncodeSub returns a SUB record that makes or changes a subscription; a new one
// begins at from: see [State.NewSub].
func EncodeSub(box BoxID, id SubID, s *SubSettings, from Start) []byte {
	rec := append(appendHead(nil, head{typ: TypeSub, sub: id, box: box}), subSet)
	return finish(from.append(s.append(rec)), 0)
}

// EncodeRemoveSub returns a SUB record that removes a subscription of a topic.
func EncodeRemoveSub(box BoxID, id SubID) []byte {
	return finish(append(appendHead(nil, head{typ: TypeSub, sub: id, box: box}), subRemove), 0)
}

// EncodeSeek returns a SUB record that moves a subscription of a topic.
func EncodeSeek(box BoxID, id SubID, to Start) []byte {
	rec := append(appendHead(nil, head{typ: TypeSub, sub: id, box: box}), subSeek)
	return finish(to.append(rec), 0)
}

// EncodeUnblock returns a SUB record that lets a blocked lane go on. Origin is the
// index of the node whose lane it is, if the box separates them.
func EncodeUnblock(box BoxID, id SubID, origin uint32, key []byte) []byte {
	rec := append(appendHead(nil, head{typ: TypeSub, sub: id, box: box}), subUnblock)
	return finish(appendText(appendU32(rec, origin), key), 0)
}

// EncodeRedriven returns a SUB record: these dead letters were sent again, as new mails.
func EncodeRedriven(box BoxID, id SubID, seqs []uint64) []byte {
	return encodeSubSeqs(box, id, subRedriven, seqs)
}

// EncodeArchived returns a SUB record: these dead letters are in a file, or were
// removed by a person.
func EncodeArchived(box BoxID, id SubID, seqs []uint64) []byte {
	return encodeSubSeqs(box, id, subArchived, seqs)
}

func encodeSubSeqs(box BoxID, id SubID, op byte, seqs []uint64) []byte {
	rec := append(appendHead(nil, head{typ: TypeSub, sub: id, box: box}), op)
	return finish(appendSeqs(rec, seqs), 0)
}

// Check returns an error wrapping ErrBadRecord if a setting is outside its limits.
func (b *BoxSettings) Check() error {
	name, spool := strings.CutPrefix(b.Name, SpoolPrefix)
	switch {
	case !validName(name) || name == "" || spool != (b.Kind == Spool):
		return fmt.Errorf("%w: box name %.64q", ErrBadRecord, b.Name)
	case b.Kind < Mailbox || b.Kind > Spool:
		return fmt.Errorf("%w: box of kind %d", ErrBadRecord, b.Kind)
	case b.Mails > MaxMails || b.Bytes > 1<<50 || !validTime(b.Age):
		return fmt.Errorf("%w: limits of box %.64q", ErrBadRecord, b.Name)
	case len(b.Notes) > MaxNotes || !utf8.ValidString(b.Notes):
		return fmt.Errorf("%w: notes of box %.64q", ErrBadRecord, b.Name)
	case !validTime(b.Keep) || b.KeepMails > MaxMails || b.Keep == 0 && b.KeepMails > 0 || b.Kind != Mailbox && b.Keep > 0:
		return fmt.Errorf("%w: what box %.64q keeps", ErrBadRecord, b.Name)
	case b.Kind != Topic && (b.Interest || b.Age != 0):
		return fmt.Errorf("%w: retention of %.64q, which is no topic", ErrBadRecord, b.Name)
	case !b.Handover.valid() || spool && b.Handover.Stage > 0 || strings.HasPrefix(b.Name, CopyPrefix) != b.Handover.IsCopy():
		return fmt.Errorf("%w: handover of box %.64q", ErrBadRecord, b.Name)
	case !spool && !b.Home.IsZero() || spool && b.PerPeer || b.Generation > proto.MaxGeneration:
		return fmt.Errorf("%w: home of box %.64q", ErrBadRecord, b.Name)
	}
	return nil
}

// Check returns an error wrapping ErrBadRecord if a setting is outside its limits.
func (s *SubSettings) Check() error {
	switch {
	case !validName(s.Name):
		return fmt.Errorf("%w: subscription name %.64q", ErrBadRecord, s.Name)
	case s.Filter != "" && !proto.ValidFilter([]byte(s.Filter)):
		return fmt.Errorf("%w: filter %.64q", ErrBadRecord, s.Filter)
	case s.Mode > Failover || s.Attempts > MaxAttempts || s.KeyBatch > MaxKeyBatch || s.Dead > MaxMails:
		return fmt.Errorf("%w: limits of subscription %.64q", ErrBadRecord, s.Name)
	case s.Strategy > LeastLoaded || s.Strategy != Ordered && s.Mode != Shared:
		return fmt.Errorf("%w: strategy of subscription %.64q", ErrBadRecord, s.Name)
	case s.To != "" && (s.Name == "" || !validName(s.To)):
		return fmt.Errorf("%w: box of subscription %.64q", ErrBadRecord, s.Name)
	case s.Lease < 0 || s.Lease > MaxLease || s.Lease%time.Millisecond != 0 || !validTime(s.DeadAge):
		return fmt.Errorf("%w: times of subscription %.64q", ErrBadRecord, s.Name)
	}
	return nil
}

func validName(s string) bool {
	for _, c := range []byte(s) {
		if c <= ' ' || c == 0x7f {
			return false
		}
	}
	return len(s) <= MaxName && utf8.ValidString(s)
}

// validTime reports whether d is at most ten years of whole milliseconds.
func validTime(d time.Duration) bool {
	return d >= 0 && d <= 10*365*24*time.Hour && d%time.Millisecond == 0
}

func (b *BoxSettings) append(dst []byte) []byte {
	dst = append(appendText(dst, b.Name), byte(b.Kind))
	dst = appendU64(appendU64(appendU32(dst, b.Mails), b.Bytes), uint64(b.Age.Milliseconds()))
	dst = appendFlag(appendFlag(dst, b.Interest), b.PerPeer)
	flags := byte(0)
	if b.Draining {
		flags = flagDraining
	}
	if b.Closed {
		flags |= flagClosed
	}
	if b.Once {
		flags |= flagOnce
	}
	if b.Keep > 0 {
		flags |= flagKeeps
	}
	if b.JSON {
		flags |= flagJSON
	}
	if b.Handover.Stage > 0 {
		flags |= flagHandover
	}
	if b.homed() {
		dst = appendU64(append(append(dst, flags|flagHomed), b.Home[:]...), b.Generation)
	} else {
		dst = append(dst, flags)
	}
	if b.Keep > 0 {
		dst = appendU32(appendU64(dst, uint64(b.Keep.Milliseconds())), b.KeepMails)
	}
	if b.Handover.Stage > 0 {
		dst = b.Handover.append(dst)
	}
	return appendText(dst, b.Notes)
}

// Flags of the settings of a box.
const (
	flagDraining = 1 << iota
	flagHomed    // home and generation follow
	flagOnce
	flagKeeps // what it keeps follows, after that
	flagJSON
	flagHandover // follows after all that
	flagClosed
)

func (b *BoxSettings) homed() bool { return !b.Home.IsZero() || b.Generation > 0 }

func (d *decoder) boxSettings() BoxSettings {
	b := BoxSettings{
		Name: string(d.text(len(SpoolPrefix) + MaxName)), Kind: Kind(d.u8()), Mails: d.u32(), Bytes: d.u64(), Age: d.duration(),
		Interest: d.flag(), PerPeer: d.flag(),
	}
	flags := d.u8()
	if b.Draining = flags&flagDraining > 0; flags&flagHomed > 0 {
		b.Home, b.Generation = proto.PeerID(d.array32()), d.u64()
	}
	b.Once, b.JSON, b.Closed = flags&flagOnce > 0, flags&flagJSON > 0, flags&flagClosed > 0
	if flags&flagKeeps > 0 {
		b.Keep, b.KeepMails = d.duration(), d.u32()
	}
	if flags&flagHandover > 0 {
		b.Handover = d.handover()
	}
	b.Notes = string(d.text(MaxNotes))
	d.check(flags <= flagDraining|flagHomed|flagOnce|flagKeeps|flagJSON|flagHandover|flagClosed && b.homed() == (flags&flagHomed > 0) && (b.Keep > 0) == (flags&flagKeeps > 0))
	d.check(d.failed || b.Check() == nil)
	return b
}

func (l Limits) append(dst []byte) []byte {
	return appendU64(appendU32(appendU64(dst, l.Bytes), l.Keys), l.Kept)
}

func (d *decoder) limits() Limits {
	l := Limits{Bytes: d.u64(), Keys: d.u32(), Kept: d.u64()}
	d.check(l.Bytes <= 1<<60 && l.Kept <= 1<<60)
	return l
}

func (s *SubSettings) append(dst []byte) []byte {
	dst = append(appendText(appendText(dst, s.Name), s.Filter), byte(s.Mode), s.Attempts, s.KeyBatch)
	flags := byte(0)
	if s.Paused {
		flags = flagPaused
	}
	if s.To != "" {
		flags |= flagTo
	}
	if s.Strategy != Ordered {
		flags |= flagStrategy
	}
	dst = appendU64(append(appendFlag(dst, s.Block), flags), uint64(s.Lease.Milliseconds()))
	dst = appendU64(appendU32(dst, s.Dead), uint64(s.DeadAge.Milliseconds()))
	if s.To != "" {
		dst = appendText(dst, s.To)
	}
	if s.Strategy != Ordered {
		dst = append(dst, byte(s.Strategy))
	}
	return dst
}

// Flags of the settings of a subscription.
const (
	flagPaused   = 1 << iota
	flagTo       // the box into which it delivers follows
	flagStrategy // the strategy follows
)

func (d *decoder) subSettings() SubSettings {
	s := SubSettings{
		Name: string(d.text(MaxName)), Filter: string(d.text(proto.MaxSubject)), Mode: Mode(d.u8()), Attempts: d.u8(), KeyBatch: d.u8(),
		Block: d.flag(),
	}
	flags := d.u8()
	s.Paused, s.Lease, s.Dead, s.DeadAge = flags&flagPaused > 0, d.duration(), d.u32(), d.duration()
	if flags&flagTo > 0 {
		s.To = string(d.text(MaxName))
	}
	if flags&flagStrategy > 0 {
		s.Strategy = Strategy(d.u8())
	}
	d.check(flags <= flagPaused|flagTo|flagStrategy && (s.To != "") == (flags&flagTo > 0) && (s.Strategy != Ordered) == (flags&flagStrategy > 0))
	d.check(d.failed || s.Check() == nil)
	return s
}

// duration reads milliseconds.
func (d *decoder) duration() time.Duration {
	v := d.u64()
	d.check(v <= uint64(10*365*24*time.Hour/time.Millisecond))
	return time.Duration(v) * time.Millisecond
}

func (s Start) append(dst []byte) []byte {
	switch s.At {
	case StartSeq:
		return appendU64(append(dst, byte(s.At)), s.Seq)
	case StartTime:
		return appendTime(append(dst, byte(s.At)), s.Ms)
	}
	return append(dst, byte(s.At))
}

func (d *decoder) start() Start {
	s := Start{At: StartAt(d.u8())}
	switch s.At {
	case StartSeq:
		s.Seq = d.u64()
	case StartTime:
		s.Ms = d.time()
	}
	d.check(s.At <= StartLast)
	return s
}
