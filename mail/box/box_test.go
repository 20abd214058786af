package box

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/balefire/balefire/proto"
)

// chainNotes is the chain rule in its plainest form: a mail is the next one if the mail
// before it was taken; the last number of each boot is kept.
type chainNotes map[Chain]map[uint64]uint64

func (c chainNotes) Check(x Chain, it Numbered) proto.Code {
	switch last := c[x]; {
	case it.N.Counter <= last[it.N.Boot]:
		return proto.CodeDuplicate
	case it.Prev == proto.Seq{} || it.Prev.Counter <= last[it.Prev.Boot]:
		return proto.CodeOK
	}
	return proto.CodeBusy
}

func (c chainNotes) Note(x Chain, it Numbered, _ proto.Code) {
	if c[x] == nil {
		c[x] = map[uint64]uint64{}
	}
	c[x][it.N.Boot] = it.N.Counter
}

func (chainNotes) Forget(int64) {}

func (c chainNotes) Drop(box string) {
	maps.DeleteFunc(c, func(x Chain, _ map[uint64]uint64) bool { return x.Box == box })
}

func (c chainNotes) Merge(box string, notes []byte) error {
	other := chainNotes{}
	err := other.Load(notes)
	for x, boots := range other {
		for boot, n := range boots {
			c.Note(Chain{x.Origin, box, x.Class}, Numbered{N: proto.Seq{Boot: boot, Counter: n}}, 0)
		}
	}
	return err
}

func (c chainNotes) Rename(from, to string) {
	for x, boots := range maps.Clone(c) {
		if x.Box == from {
			delete(c, x)
			c[Chain{x.Origin, to, x.Class}] = boots
		}
	}
}

func (c chainNotes) Save() []byte {
	var b []byte
	keys := slices.SortedFunc(maps.Keys(c), func(x, y Chain) int { return bytes.Compare(x.bytes(), y.bytes()) })
	for _, x := range keys {
		for _, boot := range slices.Sorted(maps.Keys(c[x])) {
			b = appendU64(appendU64(append(b, x.bytes()...), boot), c[x][boot])
		}
	}
	return b
}

func (x Chain) bytes() []byte { return append(appendText(x.Origin[:], x.Box), byte(x.Class)) }

func (c chainNotes) Load(b []byte) error {
	d := decoder{b: b}
	for len(d.b) > 0 {
		x := Chain{proto.PeerID(d.array32()), string(d.text(MaxName)), proto.Class(d.u8())}
		c.Note(x, Numbered{N: d.number()}, 0)
	}
	if d.failed || !bytes.Equal(c.Save(), b) {
		return errors.New("not what Save returned")
	}
	return nil
}

// start is the wall clock at which tests begin, Unix milliseconds.
const start = 1_700_000_000_000

// A bench is a state with a ledger and a clock that tests move.
type bench struct {
	testing.TB
	s   *State
	now Now
	log [][]byte // applied records: the place of each is its number
	out Output   // of the last call
	ids byte
}

// newBench returns a state that runs, with a mailbox as box 1.
func newBench(t testing.TB) *bench {
	b := &bench{TB: t, s: New(chainNotes{}), now: Now{Wall: start, Mono: 1000}}
	b.s.Start(b.now, 1, &b.out)
	b.commit()
	b.apply(EncodeBox(b.s.NewBox(), &BoxSettings{Name: "agent:ceo", Kind: Mailbox}))
	return b
}

// apply appends a record to the ledger and applies it.
func (b *bench) apply(rec []byte) Result {
	b.Helper()
	b.out.Reset()
	b.log = append(b.log, bytes.Clone(rec))
	if err := b.s.Apply(Place(len(b.log)), rec, &b.out); err != nil {
		b.Fatalf("apply %x: %v", rec, err)
	}
	if n := len(b.out.Results); n > 0 {
		return b.out.Results[n-1]
	}
	return Result{}
}

// commit applies the records that the last call made. What they cause is in b.out.
func (b *bench) commit() {
	b.Helper()
	var all Output
	for _, rec := range cloneRecords(b.out.Records) {
		b.log = append(b.log, rec)
		if err := b.s.Apply(Place(len(b.log)), rec, &all); err != nil {
			b.Fatalf("apply %x: %v", rec, err)
		}
	}
	b.out = all
}

func cloneRecords(recs [][]byte) (out [][]byte) {
	for _, r := range recs {
		out = append(out, bytes.Clone(r))
	}
	return out
}

// A note is a mail for tests: what is zero is a default.
type note struct {
	box      BoxID // default 1
	class    proto.Class
	key      string
	dedupe   string
	subject  string
	body     string
	ttl      time.Duration // default an hour
	after    time.Duration // not before
	hops     uint8
	origin   uint32
	chain    proto.Class
	number   proto.Seq
	prev     proto.Seq
	produced proto.Produced
	object   byte // the body is this object
	flags    proto.LetterFlags
	bounce   bool // it tells of the end of a mail
	cause    uint32
}

// record returns the MAIL record of a note.
func (b *bench) record(n note) []byte {
	b.Helper()
	b.ids++
	l := proto.Letter{
		Class: or(n.class, proto.Normal), ID: proto.MailID{0: 1, 15: b.ids}, Created: b.now.Wall, NotAfter: b.now.Wall + or(n.ttl, time.Hour).Milliseconds(),
		Flags: n.flags, Hops: n.hops, Subject: []byte(n.subject), Key: []byte(n.key), Dedupe: []byte(n.dedupe), Body: []byte(n.body), Produced: n.produced,
	}
	if n.bounce {
		l.BounceOf = proto.MailID{0: 2, 15: b.ids}
	}
	if n.after > 0 {
		l.NotBefore = l.Created + n.after.Milliseconds()
	}
	if n.object > 0 {
		l.Object = proto.LetterObject{Name: [32]byte{n.object}, Size: 1 << 20}
	}
	letter, err := proto.AppendLetter(nil, &l)
	if err != nil {
		b.Fatal(err)
	}
	return AppendMail(nil, &Mail{Box: or(n.box, 1), At: b.now.Wall, Origin: n.origin, Chain: n.chain, Number: n.number, Prev: n.prev, Cause: n.cause, Letter: letter})
}

func (b *bench) send(n note) Result {
	b.Helper()
	return b.apply(b.record(n))
}

// mustSend sends and returns the sequence.
func (b *bench) mustSend(n note) uint64 {
	b.Helper()
	r := b.send(n)
	if r.Code != proto.CodeOK || r.Seq == 0 {
		b.Fatalf("send: %+v", r)
	}
	return r.Seq
}

// attach begins a session of a subscription of a box.
func (b *bench) attach(id BoxID, sub SubID) *Session {
	b.Helper()
	x, err := b.s.Attach(id, sub, fmt.Sprintf("reader %d of %d", sub, id), 0, 100)
	if err != nil {
		b.Fatal(err)
	}
	return x
}

// deliver leases at most n mails.
func (b *bench) deliver(x *Session, n int) []Delivery {
	b.Helper()
	b.out.Reset()
	got := b.s.Deliver(b.now, x, n, nil, &b.out)
	return got
}

// classOf returns the class of a mail that was delivered, as package fair counts them.
func (s *State) classOf(id BoxID, d Delivery) int { return s.boxes[id].mails.get(d.Handle.Seq).class() }

// seqs are the mails of deliveries.
func seqs(list []Delivery) (out []uint64) {
	for _, d := range list {
		out = append(out, d.Handle.Seq)
	}
	return out
}

// want checks which mails a session is given.
func (b *bench) want(x *Session, seq ...uint64) []Delivery {
	b.Helper()
	got := b.deliver(x, 100)
	if !slices.Equal(seqs(got), seq) {
		b.Fatalf("delivered %v, want %v", seqs(got), seq)
	}
	return got
}

// settle settles a delivery and commits.
func (b *bench) settle(x Settlement) proto.Code {
	b.Helper()
	b.out.Reset()
	x.Box = or(x.Box, 1)
	b.s.Settle(b.now, []Settlement{x}, &b.out)
	code := b.out.Settled[0].Code
	b.commit()
	return code
}

// must settles, and fails unless it counts.
func (b *bench) must(op Op, h Handle) {
	b.Helper()
	if code := b.settle(Settlement{Handle: h, Op: op}); code != proto.CodeOK {
		b.Fatalf("settlement %d of %v: %v", op, h, code)
	}
}

// wait lets time pass, in one step, and commits what Tick made.
func (b *bench) wait(d time.Duration) {
	b.Helper()
	b.now.Wall += d.Milliseconds()
	b.now.Mono += d.Milliseconds()
	b.out.Reset()
	b.s.Tick(b.now, &b.out)
	b.commit()
}

// restart begins a new start of the home from the ledger alone.
func (b *bench) restart() {
	b.Helper()
	boot := b.s.Boot() + 1
	b.s = b.replay(New(chainNotes{}), 0)
	b.out.Reset()
	b.s.Start(b.now, boot, &b.out)
	b.commit()
}

// replay applies the ledger from a record on.
func (b *bench) replay(s *State, from int) *State {
	b.Helper()
	var out Output
	for i, rec := range b.log[from:] {
		if err := s.Apply(Place(from+i+1), rec, &out); err != nil {
			b.Fatal(err)
		}
	}
	return s
}

func save(t testing.TB, s *State) []byte {
	t.Helper()
	var w bytes.Buffer
	if err := s.Save(&w); err != nil {
		t.Fatal(err)
	}
	return w.Bytes()
}

// info returns what box 1 has.
func (b *bench) info() Info {
	b.Helper()
	i, ok := b.s.Info(1)
	if !ok {
		b.Fatal("no box 1")
	}
	return i
}

// states are the states of the ends in b.out.
func (b *bench) ends() (out []MailState) {
	for _, e := range b.out.Ends {
		out = append(out, e.State)
	}
	return out
}

// records returns all records that a state needs.
func records(s *State) (all []Kept) {
	for _, k := range s.Places(Cursor{}) {
		all = append(all, k)
	}
	return all
}
