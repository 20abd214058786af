package mail

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/mail/chain"
	"github.com/balefire/balefire/proto"
)

// beginCopy begins the copy of a mailbox of a home.
func (f *fixture) beginCopy(name string, home proto.PeerID) error {
	f.t.Helper()
	h := box.Handover{ID: [16]byte{1}, Peer: home, Generation: 1}
	return f.BeginCopy(f.t.Context(), box.BoxSettings{Name: name, Kind: box.Mailbox}, h)
}

// refusedWith checks that an error is a refusal.
func refusedWith(t *testing.T, err error, code proto.Code) {
	t.Helper()
	if refused := (*RefusedError)(nil); !errors.As(err, &refused) || refused.Code != code {
		t.Errorf("%v, want code %v", err, code)
	}
}

// A home may say that mail of a box came from any node. Those that were never a member take no
// space: their mail is that of the home.
func TestInventedOriginsOfACopy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		member := proto.PeerID{9}
		f := newFixture(t, Config{Self: homeID, Known: func(p proto.PeerID) bool { return p == originID || p == member }})
		if err := f.beginCopy("agent:ceo", originID); err != nil {
			t.Fatal(err)
		}
		head := box.New(&Chains{})
		settings := box.BoxSettings{Name: "agent:ceo", Kind: box.Mailbox}
		if err := head.Apply(0, box.EncodeBox(1, &settings), new(box.Output)); err != nil {
			t.Fatal(err)
		}
		p := Piece{Origins: []proto.PeerID{originID, member}}
		for i := range 100 {
			if i >= len(p.Origins) {
				p.Origins = append(p.Origins, proto.PeerID{77, byte(i)})
			}
			rec := box.AppendMail(nil, &box.Mail{Box: 1, At: 1, Letter: f.letter(fmt.Sprint(i), nil)})
			if err := head.Apply(0, rec, new(box.Output)); err != nil {
				t.Fatal(err)
			}
			rec, _, err := box.ForTransit(rec, uint64(i)+1, func(uint32) uint32 { return uint32(i) + 1 })
			if err != nil {
				t.Fatal(err)
			}
			p.Records = append(p.Records, rec)
		}
		p.Records = slices.Concat(head.CopyHead(1), p.Records)
		if err := f.AddToCopy(t.Context(), "agent:ceo", [16]byte{1}, &p); err != nil {
			t.Fatal(err)
		}
		if n := f.state.NewOrigin() - 1; n != 2 {
			t.Errorf("%d nodes are noted", n)
		}
		if err := errors.Join(f.EndCopy(t.Context(), "agent:ceo", [16]byte{1}), f.Serve(t.Context(), "agent:ceo", 2)); err != nil {
			t.Fatal(err)
		}
		s := f.read("agent:ceo", 100)
		given, _ := f.next(s, 100)
		for i, d := range given {
			if want := []proto.PeerID{originID, member, originID}[min(i, 2)]; d.From != want {
				t.Fatalf("mail %d is of %v, want %v", i, d.From, want)
			}
		}
	})
}

// Boxes of one home, also whole ones, leave room for those of others.
func TestCopiesOfOneHomeLeaveRoomForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, Config{Self: homeID})
		begun := 0
		for ; begun < maxCopies; begun++ {
			name := fmt.Sprint("agent:a", begun)
			if err := f.beginCopy(name, originID); err != nil {
				refusedWith(t, err, proto.CodeBusy)
				break
			}
			if err := f.EndCopy(t.Context(), name, [16]byte{1}); err != nil {
				t.Fatal(err)
			}
		}
		if begun != 58 {
			t.Errorf("one home has %d copies", begun)
		}
		f.restart()
		refusedWith(t, f.beginCopy("agent:more", originID), proto.CodeBusy)
		if err := f.beginCopy("agent:a0", originID); err != nil {
			t.Errorf("one that begins again: %v", err)
		}
		if err := f.beginCopy("agent:b", proto.PeerID{9}); err != nil {
			t.Errorf("another home has none: %v", err)
		}
		if err := errors.Join(f.DropCopy(t.Context(), "agent:a0"), f.DropCopy(t.Context(), "agent:a1"), f.DropCopy(t.Context(), "agent:a2"), f.beginCopy("agent:more", originID)); err != nil {
			t.Errorf("after one was dropped: %v", err)
		}
	})
}

// What a box has besides its mail has a limit, of which one home leaves some to others, and which a
// copy that is gone gives back.
func TestPartsOfCopiesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, Config{Self: homeID})
		notes := new(chain.Home)
		notes.Take(chain.Chain{Origin: originID, Box: "agent:a", Class: proto.Normal}, chain.Item{N: proto.Seq{Boot: 1, Counter: 1}, NotAfter: 1})
		p := Piece{Records: [][]byte{box.EncodeChains(notes.Encode()), box.EncodeKept(nil)}}
		begin := func(name string, home proto.PeerID) {
			t.Helper()
			if err := f.beginCopy(name, home); err != nil {
				t.Fatal(err)
			}
		}
		add := func(name string) error { return f.AddToCopy(t.Context(), name, [16]byte{1}, &p) }
		begin("agent:a", originID)
		if err := errors.Join(add("agent:a"), add("agent:a")); err != nil {
			t.Fatal(err)
		}
		size, id := 8*len(p.Records[0])+len(p.Records[1]), box.BoxID(0)
		if err := f.call(t.Context(), func(box.Now) {
			id, _ = f.state.Find(box.CopyPrefix + "agent:a")
			if n := f.incoming.parts[id]; n != int64(2*size) {
				t.Errorf("two parts count %d bytes, want %d", n, 2*size)
			}
			f.incoming.parts[id] = maxParts - 1<<20
		}); err != nil {
			t.Fatal(err)
		}
		begin("agent:b", originID)
		begin("agent:c", proto.PeerID{9})
		refusedWith(t, add("agent:a"), proto.CodeFull)
		refusedWith(t, add("agent:b"), proto.CodeFull)
		if err := add("agent:c"); err != nil {
			t.Errorf("another home has no room: %v", err)
		}
		if err := f.DropCopy(t.Context(), "agent:a"); err != nil {
			t.Fatal(err)
		}
		if err := add("agent:b"); err != nil {
			t.Errorf("without the first copy: %v", err)
		}
	})
}

// come hands a mailbox over from a home, with notes.
func (f *fixture) come(name string, home proto.PeerID, notes *chain.Home) {
	f.t.Helper()
	head := box.New(&Chains{})
	settings := box.BoxSettings{Name: name, Kind: box.Mailbox}
	p := Piece{}
	if err := head.Apply(0, box.EncodeBox(1, &settings), new(box.Output)); err != nil {
		f.t.Fatal(err)
	}
	p.Records = append(head.CopyHead(1), head.CopyTail(1)...)
	for part := range notes.Parts(name) {
		p.Records = append(p.Records, box.EncodeChains(part.Encode()))
	}
	if err := errors.Join(f.beginCopy(name, home), f.AddToCopy(f.t.Context(), name, [16]byte{1}, &p), f.EndCopy(f.t.Context(), name, [16]byte{1}), f.Serve(f.t.Context(), name, 2)); err != nil {
		f.t.Fatal(err)
	}
}

// Numbers of chains of boxes that a home has handed over count for it while this node has them.
func TestNotesOfServedBoxesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, Config{Self: homeID})
		notes := new(chain.Home)
		for i := range 3000 {
			c := chain.Chain{Origin: proto.PeerID{7, byte(i), byte(i >> 8)}, Box: "agent:a", Class: proto.Normal}
			notes.Take(c, chain.Item{N: proto.Seq{Boot: 1, Counter: 1}, NotAfter: 1 << 50})
		}
		one := new(chain.Home)
		one.Take(chain.Chain{Origin: originID, Box: "agent:b", Class: proto.Normal}, chain.Item{N: proto.Seq{Boot: 1, Counter: 1}, NotAfter: 1})
		p := Piece{Records: [][]byte{box.EncodeChains(one.Encode())}}
		add := func(home proto.PeerID) (err error) {
			if err := f.beginCopy("agent:b", home); err != nil {
				t.Fatal(err)
			}
			if e := f.call(t.Context(), func(box.Now) {
				id, _ := f.state.Find(box.CopyPrefix + "agent:b")
				f.incoming.parts[id] = maxParts*9/10 - 1<<20
			}); e != nil {
				t.Fatal(e)
			}
			return f.AddToCopy(t.Context(), "agent:b", [16]byte{1}, &p)
		}
		if err := add(originID); err != nil {
			t.Fatal(err)
		}
		f.come("agent:a", originID, notes)
		refusedWith(t, add(originID), proto.CodeFull)
		f.restart()
		refusedWith(t, add(originID), proto.CodeFull)
		time.Sleep(31 * 24 * time.Hour)
		synctest.Wait()
		if n := f.chains.home.Sizes()["agent:a"]; n > 3000*60 {
			t.Errorf("notes of %d bytes are kept for good", n)
		}
	})
}

// Numbers of chains of nodes that were never a member, as far as is known, come with a copy, since one may
// become known, but few of them: nothing would ever remove them. Those of members all come.
func TestInventedOriginsOfNotes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		member, own := proto.PeerID{255}, proto.PeerID{254}
		f := newFixture(t, Config{Self: own, Known: func(p proto.PeerID) bool { return p == member }})
		take := func(notes *chain.Home, origins ...proto.PeerID) *chain.Home {
			for _, origin := range origins {
				notes.Take(chain.Chain{Origin: origin, Box: "agent:a", Class: proto.Normal}, chain.Item{N: proto.Seq{Boot: 1, Counter: 1}, NotAfter: 1 << 50})
			}
			return notes
		}
		first, all := proto.PeerID{1}, take(new(chain.Home), proto.PeerID{1}, member, own)
		for i := range 3000 {
			take(all, proto.PeerID{7, byte(i), byte(i >> 8)})
		}
		size := new(chain.Home)
		size = take(size, member, own)
		f.come("agent:a", originID, all)
		if n := f.chains.home.Sizes()["agent:a"]; n <= maxUnknown || n > maxUnknown+size.Sizes()["agent:a"] {
			t.Errorf("%d bytes came, of nodes that are not known at most %d", n, maxUnknown)
		}
		for _, origin := range []proto.PeerID{first, member, own} {
			c := chain.Chain{Origin: origin, Box: "agent:a", Class: proto.Normal}
			if _, had := f.chains.home.Had(c, proto.Seq{Boot: 1, Counter: 1}); !had {
				t.Errorf("the numbers of %v are lost", origin)
			}
		}
	})
}

// What an old home says has no times that let this one refuse the mail of a node for good.
func TestTimesOfACopy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, f := newFixture(t, Config{Self: originID}), newFixture(t, Config{Self: homeID})
		c := chain.Chain{Origin: originID, Box: "agent:ceo", Class: proto.High}
		notes := new(chain.Home)
		notes.Take(c, chain.Item{N: proto.Seq{Boot: 1 << 40, Counter: 1}, NotAfter: 1<<53 - 1})
		notes.Forget(1<<53 - 1)
		notes.Forget(1<<62 - 1)
		f.come("agent:ceo", proto.PeerID{9}, notes)
		o.forward("x")
		if err := o.SetHome(t.Context(), "agent:ceo", homeID, 2); err != nil {
			t.Fatal(err)
		}
		f.arrived(originID, o.bundle(o.lane(homeID)))
		if n := f.info("agent:ceo").Waiting; n != 1 {
			t.Errorf("%d mails wait", n)
		}
	})
}
