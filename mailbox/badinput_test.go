package mailbox

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// A badRow is one bad input, and the whole text with which it is refused.
type badRow struct {
	name string
	do   func() error
	want string
}

// A badInput is boxes with mail that no bad input may touch.
type badInput struct {
	*fixture
	lease wire.DeliveredMail // of the mailbox ceo
	other wire.DeliveredMail // of another mailbox
	next  uint64             // number of beta's next mail
}

func newBadInput(f *fixture) *badInput {
	b := &badInput{fixture: f, next: 2}
	f.mailbox("ceo", f.allowAll)
	f.mailbox("desk", nil)
	f.topic("orders", "all")
	f.mail("agent:desk", "other", nil)
	f.mail("agent:ceo", "leased", nil)
	f.mail("agent:ceo", "waits", nil)
	f.mail("topic:orders", "kept", func(m *wire.Mail) { m.Subject = "eu.created" })
	f.must(f.Receive(f.t.Context(), f.beta, f.bundleFor("ceo", 1, 10)))
	synctest.Wait()
	got, _ := f.Boxes.Lease(f.t.Context(), "ceo", "", wire.LeaseMail{})
	b.lease = got[0]
	got, _ = f.Boxes.Lease(f.t.Context(), "desk", "", wire.LeaseMail{})
	b.other = got[0]
	return b
}

// all are the boxes, as they are now.
func (b *badInput) all() string {
	b.t.Helper()
	boxes, err := b.List(b.t.Context(), "")
	b.must(err)
	return asJSON(b.t, boxes)
}

// run checks that each row is refused with its text, and has written nothing and changed
// nothing. It prints how many there were.
func (b *badInput) run(family string, rows []badRow) {
	b.t.Helper()
	before := b.all()
	for _, r := range rows {
		written := b.log.Stats().Last
		text := "it was taken"
		if err := r.do(); err != nil {
			text = err.Error()
		}
		if text = b.anonymous(text); text != r.want {
			b.t.Errorf("%s, %s: %s\nwant %s", family, r.name, text, r.want)
		}
		synctest.Wait()
		if n := b.log.Stats().Last - written; n > 0 {
			b.t.Errorf("%s, %s: %d batches were written", family, r.name, n)
		}
	}
	if after := b.all(); after != before {
		b.t.Errorf("%s: the boxes were\n%s, and are\n%s", family, before, after)
	}
	b.t.Logf("counted: %s: %d bad inputs, each refused, nothing written", family, len(rows))
}

// anonymous replaces the ids of nodes by their names.
func (b *badInput) anonymous(text string) string {
	return strings.NewReplacer(b.self.String(), "ALPHA", b.beta.String(), "BETA", b.gamma.String(), "GAMMA").Replace(text)
}

// goesOn checks that nothing is lost: what was leased is acknowledged, what waits is read,
// beta's chain goes on, and the boxes take new mail.
func (b *badInput) goesOn() {
	b.t.Helper()
	b.must(b.Receive(b.t.Context(), b.beta, b.bundleFor("ceo", b.next, 20)))
	b.mail("agent:ceo", "new", nil)
	b.mail("topic:orders", "new", func(m *wire.Mail) { m.Subject = "us.created" })
	if code := b.ack("ceo", "", b.lease); code != wire.SettledOK {
		b.t.Errorf("the ack of what was leased: %s", code)
	}
	if code := b.ack("desk", "", b.other); code != wire.SettledOK {
		b.t.Errorf("the ack at the other mailbox: %s", code)
	}
	got, bodies := b.fixture.lease("ceo", "", 9, time.Minute)
	if want := []string{"waits", string(make([]byte, 10)), string(make([]byte, 20)), "new"}; !slices.Equal(bodies, want) {
		b.t.Errorf("the mailbox has %q, want %q", bodies, want)
	}
	for _, d := range got {
		if b.ack("ceo", "", d) != wire.SettledOK || d.Attempt != 1 || d.Redelivered {
			b.t.Errorf("%+v", d)
		}
	}
	if _, bodies := b.fixture.lease("topic:orders", "all", 9, time.Minute); !slices.Equal(bodies, []string{"kept", "new"}) {
		b.t.Errorf("the topic has %q", bodies)
	}
	if v := b.box("ceo"); v.Waiting != 0 || v.Ended.Done != 5 {
		b.t.Errorf("%s", asJSON(b.t, v))
	}
}

// goodLetter returns a letter of a program, changed before it is encoded.
func (b *badInput) goodLetter(change func(*proto.Letter)) []byte {
	b.t.Helper()
	now := time.Now()
	l := &proto.Letter{Class: proto.Normal, ID: proto.MailID{7}, Created: now.UnixMilli(), NotAfter: now.Add(time.Hour).UnixMilli(), Body: []byte("hello")}
	if change != nil {
		change(l)
	}
	raw, err := proto.AppendLetter(nil, l)
	b.must(err)
	return raw
}

// rawLetter returns a letter with these entries, which nobody has checked.
func (b *badInput) rawLetter(entries ...[]byte) []byte {
	raw := b.goodLetter(func(l *proto.Letter) { l.Body = nil })
	tlvs := bytes.Join(entries, nil)
	binary.BigEndian.PutUint16(raw[46:], uint16(len(tlvs)))
	return append(raw, tlvs...)
}

// entry returns an entry of a letter.
func entry(tag byte, value string) []byte {
	return append(binary.BigEndian.AppendUint16([]byte{tag}, uint16(len(value))), value...)
}

func (b *badInput) queueLetter(to string, raw []byte) error {
	return b.QueueLetters([]Letter{{To: []byte(to), Letter: raw}}).Wait(b.t.Context())[0].Err
}

// TestBadLetters hands the boxes letters that no program may send.
func TestBadLetters(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		b := newBadInput(f)
		send := func(to string, raw []byte) func() error {
			return func() error { return b.queueLetter(to, raw) }
		}
		raw := func(raw []byte) func() error { return send("agent:ceo", raw) }
		with := func(at int, v ...byte) func() error {
			l := b.goodLetter(nil)
			copy(l[at:], v)
			return raw(l)
		}
		set := func(change func(*proto.Letter)) func() error { return raw(b.goodLetter(change)) }
		good := b.goodLetter(nil)
		b.run("letter", []badRow{
			{"nothing", raw(nil), `invalid request: proto: bad letter: 0 bytes`},
			{"51 bytes", raw(good[:51]), `invalid request: proto: bad letter: 51 bytes`},
			{"cut in its body", raw(good[:len(good)-1]), `invalid request: proto: bad letter: 56 bytes with 0 of entries and 5 of body`},
			{"a byte behind it", raw(append(slices.Clone(good), 0)), `invalid request: proto: bad letter: 58 bytes with 0 of entries and 5 of body`},
			{"two letters", raw(append(slices.Clone(good), good...)), `invalid request: proto: bad letter: 114 bytes with 0 of entries and 5 of body`},
			{"more than the largest", raw(make([]byte, proto.MaxLetter+1)), `invalid request: proto: bad letter: 266293 bytes`},
			{"version 0", with(0, 0), `invalid request: proto: bad letter: 57 bytes`},
			{"version 2", with(0, 2), `invalid request: proto: letter of a newer version: version 2`},
			{"class 0", with(1, 0), `invalid request: proto: bad letter: class 0`},
			{"class 5", with(1, 5), `invalid request: proto: bad letter: class 5`},
			{"a flag that is not known", with(2, 0x80), `invalid request: proto: letter of a newer version: flags 0x8000`},
			{"no id", with(4, make([]byte, 16)...), `invalid request: proto: bad letter: no id`},
			{"made before 1970", with(20, 0x80), `invalid request: proto: bad letter: made at -9223371090169975808, ends at 946688400000`},
			{"ends before it is made", with(28, make([]byte, 8)...), `invalid request: proto: bad letter: made at 946684800000, ends at 0`},
			{"due before it is made", with(43, 1), `invalid request: proto: bad letter: it is due at 1`},
			{"the zero byte", with(45, 1), `invalid request: proto: bad letter: 57 bytes`},
			{"a length of entries of 64 KiB", with(46, 255, 255), `invalid request: proto: bad letter: 57 bytes with 65535 of entries and 5 of body`},
			{"a length of the body of 4 GiB", with(48, 255, 255, 255, 255), `invalid request: proto: bad letter: 57 bytes with 0 of entries and 4294967295 of body`},
			{"an unknown critical entry", raw(b.rawLetter(entry(0x90, "x"))), `invalid request: proto: letter of a newer version: critical entry 0x90`},
			{"the critical bit alone", raw(b.rawLetter(entry(0x80, "x"))), `invalid request: proto: bad letter: entry 0x80`},
			{"an entry cut in its head", raw(b.rawLetter([]byte{2, 0})), `invalid request: proto: bad letter: entry 0x0`},
			{"an entry cut in its value", raw(b.rawLetter([]byte{2, 0, 9, 'x'})), `invalid request: proto: bad letter: entry 0x2`},
			{"entries out of order", raw(b.rawLetter(entry(3, "x"), entry(2, "x"))), `invalid request: proto: bad letter: entry 0x2`},
			{"a key twice", raw(b.rawLetter(entry(2, "x"), entry(2, "x"))), `invalid request: proto: bad letter: entry 0x2`},
			{"an empty key", raw(b.rawLetter(entry(2, ""))), `invalid request: proto: bad letter: entry 0x2 of 0 bytes`},
			{"a key of 257 bytes", raw(b.rawLetter(entry(2, strings.Repeat("k", 257)))), `invalid request: proto: bad letter: entry 0x2 of 257 bytes`},
			{"a key with a NUL", raw(b.rawLetter(entry(2, "a\x00b"))), `invalid request: proto: bad letter: entry 0x2 of 3 bytes`},
			{"a key that is no UTF-8", raw(b.rawLetter(entry(2, "\xff"))), `invalid request: proto: bad letter: entry 0x2 of 1 bytes`},
			{"10^6 entries", raw(b.rawLetter(bytes.Repeat(entry(0x20, ""), 1_000_000))), `invalid request: proto: bad letter: 3000052 bytes`},
			{"1366 entries", raw(b.rawLetter(bytes.Repeat(entry(0x20, ""), 1366))), `invalid request: proto: bad letter: 4150 bytes with 4098 of entries and 0 of body`},
			{"an entry of a later version", raw(b.rawLetter(entry(0x20, "x"))), `invalid request: it has entries that this node does not know`},
			{"an object as its body", set(func(l *proto.Letter) { l.Body, l.Object = nil, proto.LetterObject{Size: 1} }), `invalid request: the body is an object: send it as a stream`},
			{"a redrive", set(func(l *proto.Letter) { l.RedriveOf = l.ID }), `invalid request: redrive_of, first_id and bounce_of are set by nodes`},
			{"a series", set(func(l *proto.Letter) { l.FirstID = l.ID }), `invalid request: redrive_of, first_id and bounce_of are set by nodes`},
			{"a bounce", set(func(l *proto.Letter) { l.BounceOf = l.ID }), `invalid request: redrive_of, first_id and bounce_of are set by nodes`},
			{"a receipt of what is relaxed", set(func(l *proto.Letter) { l.Flags = proto.LetterReceipt | proto.LetterRelaxed }), `invalid request: receipt: who wants one cannot have an answer before the mail is synced: do not send it as relaxed`},
			{"17 hops", set(func(l *proto.Letter) { l.Hops = 17 }), `invalid request: hops 17: must be from 0 to 16`},
			{"made in two minutes", set(func(l *proto.Letter) { l.Created += 120_000 }), `invalid request: it was made at 2000-01-01T00:02:00Z, which is to come`},
			{"a subject for a mailbox", set(func(l *proto.Letter) { l.Subject = []byte("eu") }), `invalid request: subject "eu": agent:ceo@alpha is a mailbox, only a mail to a topic has a subject`},
			{"for nobody", send("", good), `invalid request: target "": use the name or id of a node`},
			{"for a node", send("beta", good), `invalid request: "beta" has no mail: use agent:NAME@NODE or topic:NAME`},
			{"for all", send("all", good), `invalid request: "all" has no mail: use agent:NAME@NODE or topic:NAME`},
			{"for a box that is not there", send("agent:none", good), `not found: there is no agent:none@alpha on this node; make it with balefire-node mailbox add none`},
			{"for a node that is not known", send("agent:ceo@delta", good), `not found: unknown peer "delta": known peers: beta, gamma`},
			{"a reply to a node", set(func(l *proto.Letter) { l.ReplyTo = []byte("beta") }), `reply_to: invalid request: "beta" has no mail: use agent:NAME@NODE or topic:NAME`},
		})
		b.goesOn()
	})
}

// Each bit of a letter is flipped, and it is cut at each length: it is refused with an error of
// its own, or it is another good letter, and taken once.
func TestEachBitOfALetter(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", nil)
		b := &badInput{fixture: f}
		good := b.goodLetter(func(l *proto.Letter) {
			l.Key, l.Type, l.Sender = []byte("order-7"), []byte("order"), []byte("boss")
			l.Labels, _ = proto.MakeLabels(map[string]string{"a": "b"})
		})
		refused, taken := 0, 0
		try := func(what string, raw []byte) {
			switch err := b.queueLetter("agent:ceo", raw); {
			case err == nil:
				taken++
			case errors.Is(err, wire.ErrInvalid):
				refused++
			default:
				t.Errorf("%s: %v", what, err)
			}
		}
		for n := range good {
			try(fmt.Sprintf("cut at %d", n), good[:n])
			for bit := range 8 {
				raw := slices.Clone(good)
				raw[n] ^= 1 << bit
				try(fmt.Sprintf("byte %d, bit %d", n, bit), raw)
			}
		}
		if v := f.box("ceo"); taken+refused != 9*len(good) || taken == 0 || v.Waiting+int(v.Ended.Expired) != taken || v.Next != uint64(taken+1) {
			t.Errorf("%d taken and %d refused of %d, %s", taken, refused, 9*len(good), asJSON(t, v))
		}
		t.Logf("counted: %d letters, %d refused, %d are other good letters", taken+refused, refused, taken)
	})
}

// TestBadBundles hands the boxes bundles of a peer that no node sends, and some that are refused
// for good or for now.
func TestBadBundles(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		b := newBadInput(f)
		receive := func(from proto.PeerID, payload []byte) error {
			x := b.exchanges.with(from)
			answers := len(x.arrivals)
			if err := b.Receive(t.Context(), from, &proto.Message{Type: proto.TypeBundle, Payload: payload}); err != nil {
				return err
			}
			a, err := x.arrivals[answers].bundled(t.Context())
			if err != nil {
				return err
			}
			if a.GetCode() == proto.CodeOK {
				return nil
			}
			return fmt.Errorf("answered %s up to %s: %s", a.GetCode().Name(), a.UpTo(), a.GetDetail())
		}
		good := func() *proto.Bundle {
			m := new(proto.Bundle)
			b.must(proto.Decode(b.bundleFor("ceo", 2, 10).Payload, m))
			return m
		}
		encoded := func(m *proto.Bundle) []byte {
			payload, err := proto.Encode(nil, m)
			b.must(err)
			return payload
		}
		edit := func(change func(m *proto.Bundle)) func() error {
			return func() error {
				m := good()
				change(m)
				return receive(b.beta, encoded(m))
			}
		}
		bytesOf := func(change func([]byte) []byte) func() error {
			return func() error { return receive(b.beta, change(encoded(good()))) }
		}
		b.run("bundle", []badRow{
			{"nothing", bytesOf(func([]byte) []byte { return nil }), `mail: bundle 0 of BETA: proto: bad message about mail: a bundle without a number`},
			{"no message", bytesOf(func([]byte) []byte { return []byte{0xff, 0xff} }), `proto: malformed message: Bundle is cut short or damaged`},
			{"cut", bytesOf(func(p []byte) []byte { return p[:len(p)-1] }), `proto: malformed message: Bundle is cut short or damaged`},
			{"no number", edit(func(m *proto.Bundle) { m.Number = 0 }), `mail: bundle 0 of BETA: proto: bad message about mail: a bundle without a number`},
			{"no box", edit(func(m *proto.Bundle) { m.Box = "" }), `mail: bundle 2 of BETA: proto: bad message about mail: a bundle for ""`},
			{"a box with a NUL", edit(func(m *proto.Bundle) { m.Box = "agent:\x00" }), `mail: bundle 2 of BETA: proto: bad message about mail: a bundle for "agent:\x00"`},
			{"a spool", edit(func(m *proto.Bundle) { m.Box = "out:agent:ceo" }), `mail: bundle 2 of BETA: proto: bad message about mail: for "out:agent:ceo"`},
			{"another's box", edit(func(m *proto.Bundle) { m.Box = "agent:ceo@" + b.beta.String() }), `answered NO_HANDLER up to 0.0: no box "agent:ceo@BETA"`},
			{"a box that is not there", edit(func(m *proto.Bundle) { m.Box = "agent:none@" + b.self.String() }), `answered NO_HANDLER up to 0.0: no box "agent:none@ALPHA"`},
			{"class 0", edit(func(m *proto.Bundle) { m.Chain = 0 }), `mail: bundle 2 of BETA: proto: bad message about mail: a chain of class 0`},
			{"class 5", edit(func(m *proto.Bundle) { m.Chain = 5 }), `mail: bundle 2 of BETA: proto: bad message about mail: a chain of class 5`},
			{"prev above n", edit(func(m *proto.Bundle) { m.PrevNumber = 3 }), `mail: bundle 2 of BETA: proto: bad message about mail: 1.2 comes after 1.3`},
			{"prev is n", edit(func(m *proto.Bundle) { m.PrevNumber = 2 }), `mail: bundle 2 of BETA: proto: bad message about mail: 1.2 comes after 1.2`},
			{"prev of a later start", edit(func(m *proto.Bundle) { m.PrevBoot = 2 }), `mail: bundle 2 of BETA: proto: bad message about mail: 1.2 comes after 2.1`},
			{"prev without its start", edit(func(m *proto.Bundle) { m.PrevBoot = 0 }), `mail: bundle 2 of BETA: proto: bad message about mail: the mail before the bundle is 0.1`},
			{"prev that never came", edit(func(m *proto.Bundle) { m.Runs[0].First, m.PrevNumber = 9, 8 }), `answered BUSY up to 0.0: its number does not follow in its chain`},
			{"no run", edit(func(m *proto.Bundle) { m.Runs = nil }), `mail: bundle 2 of BETA: proto: bad message about mail: a bundle without mail`},
			{"an empty run", edit(func(m *proto.Bundle) { m.Runs[0].Count = 0 }), `mail: bundle 2 of BETA: proto: bad message about mail: a run of 0 mails from 1.2`},
			{"a run of start 0", edit(func(m *proto.Bundle) { m.Runs[0].Boot = 0 }), `mail: bundle 2 of BETA: proto: bad message about mail: a run of 1 mails from 0.2`},
			{"a run from 0", edit(func(m *proto.Bundle) { m.Runs[0].First = 0 }), `mail: bundle 2 of BETA: proto: bad message about mail: a run of 1 mails from 1.0`},
			{"a run of 2^32", edit(func(m *proto.Bundle) { m.Runs[0].Count = math.MaxUint32 }), `mail: bundle 2 of BETA: proto: bad message about mail: more than 512 mails`},
			{"a run beyond 64 bits", edit(func(m *proto.Bundle) { m.Runs[0].First = math.MaxUint64 }), `mail: bundle 2 of BETA: proto: bad message about mail: a run of 1 mails from 1.18446744073709551615`},
			{"runs that fall", edit(func(m *proto.Bundle) { m.Runs = append(m.Runs, m.Runs[0]) }), `mail: bundle 2 of BETA: proto: bad message about mail: 1.2 comes after 1.2`},
			{"513 mails", edit(func(m *proto.Bundle) { m.Runs[0].Count, m.Letters = 513, bytes.Repeat(m.Letters, 513) }), `mail: bundle 2 of BETA: proto: bad message about mail: more than 512 mails`},
			{"513 runs", bytesOf(func(p []byte) []byte { return append(p, bytes.Repeat([]byte{6<<3 | 2, 6, 8, 1, 16, 9, 24, 1}, 512)...) }), `proto: too many elements: Bundle.runs has more than 512`},
			{"a letter too few", edit(func(m *proto.Bundle) { m.Runs[0].Count = 2 }), `mail: bundle 2 of BETA: letter 1 of 2: proto: bad letter: 0 bytes`},
			{"a letter too many", edit(func(m *proto.Bundle) { m.Letters = bytes.Repeat(m.Letters, 2) }), `mail: bundle 2 of BETA: proto: bad message about mail: 62 bytes after the last letter`},
			{"half a letter", edit(func(m *proto.Bundle) { m.Letters = m.Letters[:40] }), `mail: bundle 2 of BETA: letter 0 of 1: proto: bad letter: 40 bytes`},
			{"a letter with a zero byte that is set", edit(func(m *proto.Bundle) { m.Letters[45] = 1 }), `mail: bundle 2 of BETA: proto: bad letter: 62 bytes`},
			{"a letter of a later version", edit(func(m *proto.Bundle) { m.Letters[0] = 2 }), `answered UNKNOWN_VERSION up to 0.0: proto: letter of a newer version: version 2`},
			{"a letter with an unknown critical entry", edit(func(m *proto.Bundle) { m.Letters = b.rawLetter(entry(0x90, "x")) }), `answered UNKNOWN_VERSION up to 0.0: proto: letter of a newer version: critical entry 0x90`},
			{"a letter that ends in 1970", edit(func(m *proto.Bundle) { clear(m.Letters[20:36]) }), `mail: bundle 2 of BETA: proto: bad message about mail: 1.2 with an end at 0`},
			{"a letter with 1366 entries", edit(func(m *proto.Bundle) { m.Letters = b.rawLetter(bytes.Repeat(entry(0x20, ""), 1366)) }), `mail: bundle 2 of BETA: letter 0 of 1: proto: bad letter: 4150 of 4150 bytes`},
			{"a generation that is to come", edit(func(m *proto.Bundle) { m.Generation = 1 << 40 }), `answered BUSY up to 0.0: this node knows of no generation above 0 yet`},
			{"of nobody", func() error { return receive(proto.PeerID{}, encoded(good())) }, `mail: bundle 2 of 12D3KooW9pNAk8aiBuGVQtWRdbkLmo5qVL3e2h5UxbN2Nz9ttwiw: proto: bad message about mail: for "agent:ceo@ALPHA"`},
		})
		if err := receive(b.beta, encoded(good())); err != nil { // the chain was not touched
			t.Errorf("the next one of the chain: %v", err)
		}
		// What a box does not allow is refused for good: its number is noted, and the chain goes on.
		b.mailbox("ceo", func(s *wire.MailboxSettings) { s.Allow = &[]string{} })
		m := good()
		m.Runs[0].First, m.PrevNumber = 3, 2
		x := b.exchanges.with(b.beta)
		b.must(b.Receive(t.Context(), b.beta, &proto.Message{Type: proto.TypeBundle, Payload: encoded(m)}))
		a, err := x.arrivals[len(x.arrivals)-1].bundled(t.Context())
		if b.must(err); a.UpTo() != (proto.Seq{Boot: 1, Counter: 3}) || len(a.GetSkipped()) != 1 || a.GetSkipped()[0].GetCode() != proto.CodeDenied {
			t.Errorf("what the box does not allow: %v", a)
		}
		if v := b.box("ceo"); v.Waiting != 4 {
			t.Errorf("%s", asJSON(t, v))
		}
	})
}

// TestBadAnswers hands the boxes answers to bundles that no home gives: the mail that waits for
// the home stays.
func TestBadAnswers(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		b := newBadInput(f)
		for range 3 {
			b.mail("agent:ceo@beta", "away", nil)
		}
		lane, err := f.ledger.broker().Lane(t.Context(), f.beta)
		b.must(err)
		bundle, err := lane.Next(t.Context())
		b.must(err)
		last := bundle.GetRuns()[0]
		waits := func() int {
			all, err := f.Outgoing(t.Context())
			if b.must(err); len(all) == 0 {
				return 0
			}
			return all[0].Mails
		}
		answer := func(from proto.PeerID, change func(m *proto.Bundled)) func() error {
			return func() error {
				m := &proto.Bundled{Number: bundle.GetNumber(), Boot: last.GetBoot(), UpToNumber: last.GetFirst() + 2, Time: time.Now().UnixMilli()}
				change(m)
				payload, err := proto.Encode(nil, m)
				b.must(err)
				err = b.Receive(t.Context(), from, &proto.Message{Type: proto.TypeBundled, Payload: payload})
				if n := waits(); n != 3 {
					t.Errorf("%d mails wait after an answer with %v", n, err)
				}
				return err
			}
		}
		skip := func(number uint64, code proto.Code) func(*proto.Bundled) {
			return func(m *proto.Bundled) {
				m.Skipped = []*proto.Skipped{{Boot: last.GetBoot(), Number: number, Code: code}}
			}
		}
		b.run("answer", []badRow{
			{"no number", answer(b.beta, func(m *proto.Bundled) { m.Number = 0 }), `mail: answer of BETA: proto: bad message about mail: an answer to no bundle`},
			{"half a number", answer(b.beta, func(m *proto.Bundled) { m.Boot = 0 }), `mail: answer of BETA: proto: bad message about mail: an answer up to 0.3`},
			{"nothing done and no code", answer(b.beta, func(m *proto.Bundled) { m.Boot, m.UpToNumber = 0, 0 }), `mail: answer of BETA: proto: bad message about mail: an answer without a code and a number`},
			{"more than was sent", answer(b.beta, func(m *proto.Bundled) { m.UpToNumber = last.GetFirst() + 3 }), `chain: bad answer: 1.4 is not in bundle 1`},
			{"2^64 mails", answer(b.beta, func(m *proto.Bundled) { m.UpToNumber = math.MaxUint64 }), `chain: bad answer: 1.18446744073709551615 is not in bundle 1`},
			{"of a later start", answer(b.beta, func(m *proto.Bundled) { m.Boot++ }), `chain: bad answer: 2.3 is not in bundle 1`},
			{"done, but not all", answer(b.beta, func(m *proto.Bundled) { m.UpToNumber-- }), `chain: bad answer: code OK up to 1.2 of 1.3`},
			{"moved to nobody", answer(b.beta, func(m *proto.Bundled) { m.Code = proto.CodeMoved }), `mail: answer of BETA: proto: bad message about mail: MOVED to a home of 0 bytes`},
			{"moved to half a peer", answer(b.beta, func(m *proto.Bundled) { m.Code, m.Home = proto.CodeMoved, make([]byte, 16) }), `mail: answer of BETA: proto: bad message about mail: MOVED to a home of 16 bytes`},
			{"full, and a home", answer(b.beta, func(m *proto.Bundled) { m.Code, m.Home = proto.CodeFull, make([]byte, 32) }), `mail: answer of BETA: proto: bad message about mail: FULL to a home of 32 bytes`},
			{"refused for now, as if for good", answer(b.beta, skip(last.GetFirst(), proto.CodeBusy)), `mail: answer of BETA: proto: bad message about mail: 1.1 refused with BUSY`},
			{"refused and done", answer(b.beta, skip(last.GetFirst(), proto.CodeOK)), `mail: answer of BETA: proto: bad message about mail: 1.1 refused with OK`},
			{"refused above the last", answer(b.beta, skip(last.GetFirst()+3, proto.CodeDenied)), `mail: answer of BETA: proto: bad message about mail: 1.4 refused with DENIED`},
			{"refused below the first", answer(b.beta, skip(0, proto.CodeDenied)), `mail: answer of BETA: proto: bad message about mail: 1.0 refused with DENIED`},
			{"of another peer", answer(b.gamma, func(*proto.Bundled) {}), `chain: bad answer: bundle 1 went to another node`},
		})
		if err := answer(b.beta, func(m *proto.Bundled) { m.Number = 99 })(); err != nil { // it may be late
			t.Errorf("an answer to what is not expected: %v", err)
		}
		payload, err := proto.Encode(nil, &proto.Bundled{Number: bundle.GetNumber(), Boot: last.GetBoot(), UpToNumber: last.GetFirst() + 2, Time: time.Now().UnixMilli()})
		b.must(err)
		b.must(b.Receive(t.Context(), b.beta, &proto.Message{Type: proto.TypeBundled, Payload: payload}))
		time.Sleep(time.Second) // in the bubble
		if n := waits(); n != 0 {
			t.Errorf("%d mails wait after the right answer", n)
		}
		b.goesOn()
	})
}

// TestBadSubjects publishes to subjects that are none, and subscribes to filters that are none.
func TestBadSubjects(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		b := newBadInput(f)
		publish := func(subject string) func() error {
			return func() error {
				_, err := b.trySend("topic:orders", "x", func(m *wire.Mail) { m.Subject = subject })
				return err
			}
		}
		letter := func(subject string) func() error {
			return func() error { return b.queueLetter("topic:orders", b.rawLetter(entry(1, subject))) }
		}
		filter := func(text string) func() error {
			return func() error {
				_, err := b.SetSubscription(t.Context(), "orders", "new", wire.SubscriptionSettings{Filter: &text})
				return err
			}
		}
		query := func(text string) func() error {
			return func() error {
				_, _, err := b.Mails(t.Context(), "topic:orders", "all", wire.MailQuery{Subject: text})
				return err
			}
		}
		long := strings.Repeat("x", 257)
		b.run("subject", []badRow{
			{"an empty word", publish("eu..created"), `invalid request: subject "eu..created": use words with dots between them, without * and >`},
			{"an empty first word", publish(".eu"), `invalid request: subject ".eu": use words with dots between them, without * and >`},
			{"an empty last word", publish("eu."), `invalid request: subject "eu.": use words with dots between them, without * and >`},
			{"only a dot", publish("."), `invalid request: subject ".": use words with dots between them, without * and >`},
			{"257 bytes", publish(long), `invalid request: subject "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx": use words with dots between them, without * and >`},
			{"> in a publish", publish("eu.>"), `invalid request: subject "eu.>": use words with dots between them, without * and >`},
			{"> alone", publish(">"), `invalid request: subject ">": use words with dots between them, without * and >`},
			{"* in a publish", publish("*.created"), `invalid request: subject "*.created": use words with dots between them, without * and >`},
			{"a NUL", publish("eu\x00"), `invalid request: subject "eu\x00": use words with dots between them, without * and >`},
			{"a newline", publish("eu\ncreated"), `invalid request: subject "eu\ncreated": use words with dots between them, without * and >`},
			{"a space", publish("eu created"), `invalid request: subject "eu created": use words with dots between them, without * and >`},
			{"no UTF-8", publish("\xff"), `invalid request: subject "\xff": use words with dots between them, without * and >`},
			{"an empty subject in a letter", letter(""), `invalid request: proto: bad letter: entry 0x1 of 0 bytes`},
			{"an empty word in a letter", letter("eu..created"), `invalid request: proto: bad letter: entry 0x1 of 11 bytes`},
			{"257 bytes in a letter", letter(long), `invalid request: proto: bad letter: entry 0x1 of 257 bytes`},
			{"> in a letter", letter("eu.>"), `invalid request: proto: bad letter: entry 0x1 of 4 bytes`},
			{"* in a letter", letter("*"), `invalid request: proto: bad letter: entry 0x1 of 1 bytes`},
			{"a NUL in a letter", letter("\x00"), `invalid request: proto: bad letter: entry 0x1 of 1 bytes`},
			{"> that is not last", filter(">.eu"), `invalid request: filter ">.eu": use words with dots between them; * is one word, > at the end the rest`},
			{"> in the middle", filter("eu.>.x"), `invalid request: filter "eu.>.x": use words with dots between them; * is one word, > at the end the rest`},
			{"an empty word in a filter", filter("eu..x"), `invalid request: filter "eu..x": use words with dots between them; * is one word, > at the end the rest`},
			{"257 bytes in a filter", filter(long), `invalid request: filter "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx": use words with dots between them; * is one word, > at the end the rest`},
			{"a NUL in a filter", filter("eu.\x00"), `invalid request: filter "eu.\x00": use words with dots between them; * is one word, > at the end the rest`},
			{"> that is not last in a query", query(">.eu"), `invalid request: subject ">.eu": use words with dots between them; * is one word, > at the end the rest`},
			{"257 bytes in a query", query(long), `invalid request: subject "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx": use words with dots between them; * is one word, > at the end the rest`},
		})
		if v := b.box("topic:orders"); len(v.Subscriptions) != 1 || v.Next != 2 {
			t.Errorf("%s", asJSON(t, v))
		}
		b.goesOn()
	})
}

// TestBadHandles settles what was never delivered, or not to this box.
func TestBadHandles(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		b := newBadInput(f)
		ack := func(name, sub, lease string) func() error {
			return func() error {
				items, err := b.Settle(t.Context(), name, sub, wire.SettleMail{Ack: []string{lease}, Nack: []wire.NackMail{{Lease: lease, Final: true}}})
				if err != nil {
					return err
				}
				return fmt.Errorf("ack %s, nack %s", items[0].Code, items[1].Code)
			}
		}
		text := func(lease string) func() error { return ack("ceo", "", lease) }
		parts := strings.Split(b.lease.Lease, ".")
		seq, boot, n := parts[0], parts[1], parts[2]
		join := func(parts ...string) func() error { return text(strings.Join(parts, ".")) }
		const most = "18446744073709551615"
		b.run("handle", []badRow{
			{"nothing", text(""), `invalid request: lease "": must be what a delivery names, such as 88121.1795212606.4`},
			{"a word", text("first"), `invalid request: lease "first": must be what a delivery names, such as 88121.1795212606.4`},
			{"two parts", join(seq, boot), `invalid request: lease "1.1": must be what a delivery names, such as 88121.1795212606.4`},
			{"four parts", join(seq, boot, n, "1"), `invalid request: lease "1.1.1.1": must be what a delivery names, such as 88121.1795212606.4`},
			{"a zero in front", text("0" + b.lease.Lease), `invalid request: lease "01.1.1": must be what a delivery names, such as 88121.1795212606.4`},
			{"a plus", text("+" + b.lease.Lease), `invalid request: lease "+1.1.1": must be what a delivery names, such as 88121.1795212606.4`},
			{"a minus", text("-" + b.lease.Lease), `invalid request: lease "-1.1.1": must be what a delivery names, such as 88121.1795212606.4`},
			{"a space", text(b.lease.Lease + " "), `invalid request: lease "1.1.1 ": must be what a delivery names, such as 88121.1795212606.4`},
			{"a NUL", text(b.lease.Lease + "\x00"), `invalid request: lease "1.1.1\x00": must be what a delivery names, such as 88121.1795212606.4`},
			{"hexadecimal", join("0x1", boot, n), `invalid request: lease "0x1.1.1": must be what a delivery names, such as 88121.1795212606.4`},
			{"above 64 bits", join("18446744073709551616", boot, n), `invalid request: lease "18446744073709551616.1.1": must be what a delivery names, such as 88121.1795212606.4`},
			{"a megabyte", text(strings.Repeat("1", 1<<20)), `invalid request: lease "1111111111111111111111111111111111111111111111111111111111111111": must be what a delivery names, such as 88121.1795212606.4`},
			{"sequence 0", join("0", boot, n), `ack UNKNOWN, nack UNKNOWN`},
			{"a sequence that is to come", join("99", boot, n), `ack UNKNOWN, nack UNKNOWN`},
			{"the last sequence", join(most, boot, n), `ack UNKNOWN, nack UNKNOWN`},
			{"a start that is to come", join(seq, "9", n), `ack UNKNOWN, nack UNKNOWN`},
			{"the last start", join(seq, most, n), `ack UNKNOWN, nack UNKNOWN`},
			{"delivery 0", join(seq, boot, "0"), `ack UNKNOWN, nack UNKNOWN`},
			{"a delivery that is to come", join(seq, boot, "99"), `ack UNKNOWN, nack UNKNOWN`},
			{"the last delivery", join(seq, boot, most), `ack UNKNOWN, nack UNKNOWN`},
			{"of another mail", join("2", boot, n), `ack UNKNOWN, nack UNKNOWN`},
			{"of another box", text(b.other.Lease), `ack STALE, nack STALE`},
			{"of a mailbox, at a topic", ack("topic:orders", "all", b.lease.Lease), `ack UNKNOWN, nack UNKNOWN`},
			{"at a topic without a subscription", ack("topic:orders", "", b.lease.Lease), `invalid request: topic:orders is a topic: name one of its subscriptions`},
			{"at a subscription that is not there", ack("topic:orders", "none", b.lease.Lease), `not found: there is no topic:orders/none on this node; make it with balefire-node sub add orders none`},
			{"at a subscription of a mailbox", ack("ceo", "all", b.lease.Lease), `invalid request: agent:ceo@alpha is a mailbox: it has no subscription "all"`},
			{"at a box that is not there", ack("none", "", b.lease.Lease), `not found: there is no agent:none@alpha on this node; make it with balefire-node mailbox add none`},
			{"at a box elsewhere", ack("ceo@beta", "", b.lease.Lease), `beta cannot be reached: balefire-node why beta says why`},
		})
		b.goesOn()
	})
}

// Each bit of a bundle is flipped, each as of another peer: it is refused and writes nothing, or
// it is answered, and what was taken is in the box.
func TestEachBitOfABundle(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", f.allowAll)
		good := f.bundleFor("ceo", 1, 10).Payload
		refused, answered, taken := 0, 0, 0
		for i := range good {
			for bit := range 8 {
				payload := slices.Clone(good)
				payload[i] ^= 1 << bit
				from := proto.PeerID{1, byte(i >> 8), byte(i), byte(bit)}
				m := new(proto.Bundle)
				if proto.DecodeKnown(payload, m) != nil {
					refused++
					continue
				}
				written := f.log.Stats().Last
				a, err := f.ledger.broker().Arrive(from, m, nil)
				if err != nil {
					refused++
					if !errors.Is(err, proto.ErrBadMail) && !errors.Is(err, proto.ErrBadLetter) || f.log.Stats().Last != written {
						t.Errorf("byte %d, bit %d: %v", i, bit, err)
					}
					continue
				}
				answer, err := a.Wait(t.Context())
				if err != nil || answer.Check() != nil {
					t.Errorf("byte %d, bit %d: %v, %v", i, bit, answer, err)
				}
				if answered++; answer.UpTo() != (proto.Seq{}) && len(answer.GetSkipped()) == 0 {
					taken++
				}
			}
		}
		v := f.box("ceo")
		if refused+answered != 8*len(good) || taken == 0 || v.Next != uint64(taken+1) || v.Waiting+int(v.Ended.Expired+v.Ended.Dead) != taken {
			t.Errorf("%d refused, %d answered, %d taken, %s", refused, answered, taken, asJSON(t, v))
		}
		t.Logf("counted: %d bundles, %d refused, %d answered, %d taken", refused+answered, refused, answered, taken)
	})
}
