package box

import (
	"time"

	"github.com/balefire/balefire/fair"
	"github.com/balefire/balefire/proto"
)

// A State is all boxes of one ledger. Its zero value is not valid: see [New] and [Load].
// One goroutine uses it.
type State struct {
	boxes     map[BoxID]*box
	names     map[string]BoxID
	nextBox   BoxID
	limits    Limits
	bytes     int64 // of all letters, dead ones included, but for those that are kept
	kept      int64 // of the letters of mail that is done and kept
	details   int   // bytes of the long reasons of dead letters
	receipts  int   // of all spools
	taken     taken
	served    served
	untold    int                     // mails that are done and whose senders are to be told
	peers     []proto.PeerID          // by index - 1
	indexes   map[proto.PeerID]uint32 // of peers
	self      uint32                  // the index of this node; 0: it has none
	chains    Chains
	dedupe    dedupe
	producers producers
	boot      uint64   // of the newest start; 0: there was none
	boots     []uint64 // of the newest starts, ascending
	ranPast   int64    // milliseconds that earlier starts ran
	ran       int64    // milliseconds that this start ran, when it was last recorded
	at        int64    // the time in the newest record that says how long, Unix milliseconds; 0: it has none
	undated   bool     // there may be dead letters without a time

	home // in memory only
}

// home is what only a running home needs: nothing of it survives.
type home struct {
	given     uint64 // deliveries of this start
	started   int64  // Now.Mono of the start
	lastAge   int64  // Now.Mono of the last AGE
	lastClean int64  // Now.Mono of the last look at retention and the archive
	sweepBox  BoxID  // where the search for expired mail goes on
	sweepSeq  uint64
	expires   int64  // when a mail is past its not_after, or earlier, Unix milliseconds
	cleans    int64  // when something is too old for retention or as a dead letter, or earlier; with changed it is not known
	changed   bool   // a record was applied since the last look at those
	timers    timers // of due times
	lapses    timers // of leases
}

// Now is what a decision needs of the outside.
type Now struct {
	Wall int64  // Unix milliseconds; it may jump
	Mono int64  // milliseconds of a clock that never goes back and counts suspended time
	Rand uint64 // random: it spreads retries
	// Grace is the time of Mono before which no lease runs out: the machine slept, and readers
	// that were suspended with it could not extend theirs.
	Grace int64
	// Doubted says that Wall may be wrong: no number of a chain is forgotten by it, and no mail
	// is done at it.
	Doubted bool
}

// Chains decide about mail with numbers, by the rule of package chain. A State changes them
// in Apply alone, and they are part of its checkpoints.
type Chains interface {
	// Check returns CodeOK for a mail that is the next of its chain, CodeDuplicate for one
	// that was taken or refused before, CodeExpired for one that is to be refused because it
	// may have been here long ago, and the code of a refusal for now otherwise: CodeBusy if
	// a mail before it is missing, CodeFull if there is no space for its number.
	Check(c Chain, it Numbered) proto.Code
	// Note records that a mail was taken, with CodeOK, or refused for good. Check has
	// returned CodeOK or CodeExpired for it.
	Note(c Chain, it Numbered, code proto.Code)

	// Forget forgets what nothing can refer to any more at a time, Unix milliseconds.
	Forget(now int64)
	// Drop forgets the chains of a box that is gone, and whose name never comes back.
	Drop(box string)

	// Save returns the content in its one encoding.
	Save() []byte
	// Load replaces the content. It refuses bytes that Save did not return.
	Load(b []byte) error

	// Merge adds chains of a box that come from its earlier home. It refuses what no home keeps.
	Merge(box string, notes []byte) error
	// Rename gives the chains of a box to another name.
	Rename(from, to string)
}

// A Chain names a chain: the mails of one origin for one box and class.
type Chain struct {
	Origin proto.PeerID
	Box    string // its name
	Class  proto.Class
}

// A Numbered is what the rule of the chain needs of a mail.
type Numbered struct {
	N        proto.Seq
	Prev     proto.Seq // the mail before it that the origin still has; zero: none
	NotAfter int64     // Unix milliseconds
}

// A box is a mailbox or a topic.
type box struct {
	id       BoxID
	settings BoxSettings
	next     uint64 // the sequence of the next mail
	mails    mailList
	bytes    int64            // of the letters that wait
	held     map[uint32]share // what origins other than this node have here
	keys     table[[16]byte]  // hashes of ordering keys
	subjects table[string]    // subjects of a topic
	later    map[uint64]int64 // not_before of mails that have one, Unix milliseconds
	kept     keptMails
	untold   mailList             // of a mailbox: done, and their senders are to be told
	objects  map[uint64]object    // bodies that are not in the letters of their mails, dead ones included
	receipts map[uint64][]byte    // of a spool: what homes signed about mails that it keeps
	accepted [fair.Classes]uint64 // mails that it ever had, by class
	ended    [mailStates]uint64   // mails that ended, by state
	subs     []*sub               // ascending by id
	nextSub  SubID
	starts   []started       // of the home, ascending: see box.begin
	given    uint64          // deliveries of the first of these before the box was made, or came
	ending   map[uint64]bool // in memory only: an END, or a FORWARD for all, was made for it
}

// A share is what one origin has in a box.
type share struct {
	mails int
	bytes int64
}

// New returns a state without boxes.
func New(chains Chains) *State {
	return &State{boxes: map[BoxID]*box{}, names: map[string]BoxID{}, nextBox: 1, indexes: map[proto.PeerID]uint32{}, chains: chains}
}

// Output is what a call wants done. Calls append to it.
type Output struct {
	Records [][]byte   // to append to the ledger, in order
	Ready   []*Session // they have credit, and mail may be ready: call Deliver
	Ends    []End      // mails that ended
	Bounces []End      // those of Ends whose senders are told
	Events  []Event    // for people
	Archive []Archive  // dead letters that are too many or too old
	Results []Result   // of Apply: one a record of type MAIL, FORWARD, SKIP, BOX, SUB, PEER or PART, and of a MOVE that adds a mail
	Settled []Settled  // of Settle: one a settlement
	Lost    []*Session // sessions whose subscription is gone
	Objects [][32]byte // bodies that a mail needs no more; another one may
	buf     []byte
	seqs    []uint64 // of the ACK at work
}

// Reset makes o empty. The records in it are not valid any more.
func (o *Output) Reset() {
	*o = Output{
		Records: o.Records[:0], Ready: o.Ready[:0], Ends: o.Ends[:0], Bounces: o.Bounces[:0], Events: o.Events[:0],
		Archive: o.Archive[:0], Results: o.Results[:0], Settled: o.Settled[:0], Lost: o.Lost[:0], Objects: o.Objects[:0], buf: o.buf[:0], seqs: o.seqs[:0],
	}
}

// record adds a record that f appends.
func (o *Output) record(f func(dst []byte) []byte) {
	start := len(o.buf)
	o.buf = f(o.buf)
	o.keep(start)
}

// keep adds the record that begins at start of the buffer and ends with it.
func (o *Output) keep(start int) {
	o.Records = append(o.Records, o.buf[start:len(o.buf):len(o.buf)])
}

// A Result says what became of a record.
type Result struct {
	Code      proto.Code // CodeOK: it counts
	ForGood   bool       // a refusal that no retry changes
	Duplicate bool       // it was here before; with CodeOK
	Box       BoxID
	Seq       uint64       // of the mail; of a duplicate 0 if it is not known
	ID        proto.MailID // of the mail; of a duplicate that of the first one
	Detail    string
}

// An End is a mail that ended, for a subscription or altogether.
type End struct {
	Box    BoxID
	Sub    SubID // of a DEAD mail of a topic, and of a bounced one
	Seq    uint64
	Place  Place
	Length int // of the record at Place
	State  MailState
	Cause  Cause
	Reason string
}

// An Event is something that a person may want to know.
type Event struct {
	Kind  EventKind
	Box   BoxID
	Sub   SubID
	Seq   uint64
	Cause Cause // of EventRetry
	Text  string
}

// An EventKind is a kind of event.
type EventKind uint8

// The kinds of events.
const (
	EventStale     EventKind = 1 + iota // a settlement came after somebody else was given the mail
	EventRescued                        // low was served only because so many had passed it
	EventBlocked                        // a dead letter blocks its lane
	EventUnblocked                      // a lane with a dead letter goes on, because too many are blocked
	EventRetry                          // a delivery failed or was given back; the text says why
	EventRead                           // a subscription of a topic has read a mail
)

// An Archive is dead letters of one subscription that are too many or too old.
type Archive struct {
	Box     BoxID
	Sub     SubID
	Letters []DeadLetter
}

// Apply changes the state by a record that is on disk at p. It is a function of the state
// and the record. Records of types from 32 on are skipped; bad ones change nothing and
// return an error wrapping ErrBadRecord.
func (s *State) Apply(p Place, rec []byte, out *Output) error {
	h, d, err := parseHead(rec)
	if err != nil {
		return err
	}
	s.changed = s.changed || h.typ != TypeAge
	switch h.typ {
	case TypeMail:
		err = s.applyMail(p, rec, out)
	case TypeAck:
		out.seqs = d.seqs(out.seqs[:0])
		if !d.done() {
			return bad(h.typ)
		}
		s.applyAck(h, out.seqs, out)
	case TypeTold:
		seqs := d.seqs(nil)
		if !d.done() || h.sub != 0 {
			return bad(h.typ)
		}
		s.applyTold(h, seqs)
	case TypeTaken:
		list := d.receipts()
		if !d.done() || h.sub != 0 {
			return bad(h.typ)
		}
		s.applyTaken(h, list, out)
	case TypeNack:
		n := d.nack()
		if !d.done() {
			return bad(h.typ)
		}
		s.applyNack(h, &n, out)
	case TypeEnd:
		e := d.end()
		if !d.done() {
			return bad(h.typ)
		}
		s.applyEnd(h, &e, out)
	case TypeSkip:
		err = s.applySkip(rec, out)
	case TypeBox:
		err = s.applyBox(h, d, out)
	case TypeSub:
		err = s.applySub(h, d, out)
	case TypePeer:
		err = s.applyPeer(d, h, out)
	case TypeAge:
		a := age{d.u64(), d.time(), d.time()}
		if !d.done() || h.box != 0 || h.sub != 0 || a.boot == 0 || a.ran > maxRan {
			return bad(h.typ)
		}
		s.applyAge(a)
	case TypeMove:
		err = s.applyMove(p, rec, out)
	case TypeForward:
		err = s.applyForward(p, rec, out)
	case TypePart:
		err = s.applyPart(h, d, out)
	}
	return err
}

// applyAge records how long the home has run.
func (s *State) applyAge(a age) {
	if a.boot < s.boot {
		return
	}
	if a.boot > s.boot {
		s.begin(a.boot)
		s.ranPast, s.ran = min(s.ranPast+s.ran, maxPast), 0
	}
	s.ran = max(s.ran, a.ran)
	s.dedupe.age(s.ranPast + s.ran)
	s.producers.age(s.ranPast + s.ran)
	s.chains.Forget(a.at)
	if s.at = a.at; a.at > 0 {
		s.dateDead(a.at)
		s.forgetOld(a.at)
	}
}

func (s *State) applyPeer(d decoder, h head, out *Output) error {
	index, id := d.u32(), d.take(uint64(len(proto.PeerID{})))
	if !d.done() || h.box != 0 || h.sub > 1 || index == 0 {
		return bad(TypePeer)
	}
	peer := proto.PeerID(id)
	r := Result{}
	switch known := s.indexes[peer]; {
	case known == index:
		r.Duplicate = true
	case known != 0 || int64(index) != int64(len(s.peers))+1:
		r = refuse(proto.CodeBusy, "the index is not the next one, or the peer has another")
	case len(s.peers) >= MaxOrigins:
		r = refuse(proto.CodeFull, "too many origins")
	default:
		s.peers = append(s.peers, peer)
		s.indexes[peer] = index
		if h.sub == 1 {
			s.self = index
		}
	}
	out.Results = append(out.Results, r)
	return nil
}

func refuse(code proto.Code, detail string) Result { return Result{Code: code, Detail: detail} }

// or returns v, or def if v is zero.
func or[T comparable](v, def T) T {
	var zero T
	if v == zero {
		return def
	}
	return v
}

// maxMails returns how many mails may wait in b.
func (b *box) maxMails() int {
	if b.settings.Kind == Topic {
		return int(or(b.settings.Mails, defaultTopicMails))
	}
	return int(or(b.settings.Mails, defaultMails))
}

// maxBytes returns how many bytes of letters may wait in b.
func (b *box) maxBytes() int64 {
	if b.settings.Kind == Topic {
		return int64(or(b.settings.Bytes, defaultTopicBytes))
	}
	return int64(or(b.settings.Bytes, defaultBytes))
}

// keepsAll reports whether a mail of b ends only when it was read, or by its not_after.
func (b *box) keepsAll() bool { return b.settings.Kind != Topic || b.settings.Interest }

// sub returns a subscription, or nil.
func (b *box) sub(id SubID) *sub {
	for _, u := range b.subs {
		if u.id == id {
			return u
		}
	}
	return nil
}

// find returns a subscription, or nil.
func (s *State) find(id BoxID, subID SubID) *sub {
	if b := s.boxes[id]; b != nil {
		return b.sub(subID)
	}
	return nil
}

// seconds returns Unix milliseconds as seconds, rounded up.
func seconds(ms int64) uint32 { return uint32(min((ms+999)/1000, 1<<32-1)) }

// retention returns how long a topic keeps mail, or 0 if it keeps all.
func (b *box) retention() time.Duration {
	if b.keepsAll() {
		return 0
	}
	return or(b.settings.Age, defaultTopicAge)
}
