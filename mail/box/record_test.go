package box

import (
	"bytes"
	"encoding/hex"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/balefire/balefire/proto"
)

// goldenRecords are records of each type, and their bytes: they are on disks.
func goldenRecords(t testing.TB) map[string]string {
	t.Helper()
	letter, err := proto.AppendLetter(nil, &proto.Letter{Class: proto.Low, ID: proto.MailID{15: 1}, Body: []byte("x")})
	if err != nil {
		t.Fatal(err)
	}
	local := AppendMail(nil, &Mail{Box: 1, At: 5, Letter: letter})
	chained := AppendMail(nil, &Mail{Box: 1, At: 5, Origin: 2, Chain: proto.High, Number: proto.Seq{Boot: 3, Counter: 4}, Prev: proto.Seq{Boot: 3, Counter: 1}, Letter: letter})
	caused := AppendMail(nil, &Mail{Box: 1, At: 5, Cause: 2, Letter: letter})
	move, err := AppendMove(nil, 9, local)
	if err != nil {
		t.Fatal(err)
	}
	return map[string]string{
		string(local):                         "0000004e 01 00 0000 00000001 0000000000000005 00000000 00" + hex.EncodeToString(letter),
		string(chained):                       "0000006e 01 00 0000 00000001 0000000000000005 00000002 02 0000000000000003 0000000000000004 0000000000000003 0000000000000001" + hex.EncodeToString(letter),
		string(caused):                        "00000052 01 01 0000 00000001 0000000000000005 00000000 00 00000002" + hex.EncodeToString(letter),
		string(move):                          "00000062 0a 00 0000 00000001 0000000000000009 0000004e 01 00 0000 00000001 0000000000000005 00000000 00" + hex.EncodeToString(letter),
		string(EncodeForward(3, 2, 9, local)): "00000062 0b 00 0002 00000003 0000000000000009 0000004e 01 00 0000 00000001 0000000000000005 00000000 00" + hex.EncodeToString(letter),
		string(appendAck(nil, 1, 2, []uint64{300, 1, 2})):                                                                                                           "00000010 02 00 0002 00000001 01 01 aa02",
		string(appendNack(nil, 1, 2, &nack{7, CauseLapsed, 2, 1, 5, 6, []byte("r"), []byte("no")})):                                                                 "0000002c 03 00 0002 00000001 0000000000000007 03 02 01 0000000000000005 0000000000000006 0172 026e6f",
		string(appendEnd(nil, head{sub: 2, box: 1}, &end{Dead, CauseNacked, 3, 0, 5, []byte("r"), nil, []uint64{7}})):                                               "0000001c 04 00 0002 00000001 05 01 03 00 0000000000000005 0172 00 07",
		string(appendEnd(nil, head{flags: flagWhole, box: 1}, &end{Expired, CauseExpired, 0, 0, 5, nil, nil, []uint64{7, 9}})):                                      "0000001c 04 01 0000 00000001 06 08 00 00 0000000000000005 00 00 07 02",
		string(AppendSkip(nil, &Skip{1, 2, proto.Normal, proto.Seq{Boot: 3, Counter: 4}, proto.Seq{}, 9, proto.CodeDenied})):                                        "0000003a 05 00 0000 00000001 00000002 03 0000000000000003 0000000000000004 0000000000000000 0000000000000000 0000000000000009 08",
		string(EncodeBox(1, &BoxSettings{Name: "b", Kind: Mailbox, Once: true})):                                                                                    "00000028 06 00 0000 00000001 01 0162 01 00000000 0000000000000000 0000000000000000 00 00 04 00",
		string(EncodeBox(1, &BoxSettings{Name: "b", Kind: Topic, Mails: 1, Bytes: 2, Age: time.Second, Interest: true, PerPeer: true, Draining: true, Notes: "n"})): "00000029 06 00 0000 00000001 01 0162 02 00000001 0000000000000002 00000000000003e8 01 01 01 016e",
		string(EncodeBox(1, &BoxSettings{Name: "out:b", Kind: Spool, Home: proto.PeerID{31: 2}, Generation: 3})):                                                    "00000054 06 00 0000 00000001 01 056f75743a62 03 00000000 0000000000000000 0000000000000000 00 00 02" + strings.Repeat("00", 31) + "02 0000000000000003 00",
		string(EncodeSpoolDone(1, []uint64{5})):                                                                                                                     "0000000d 02 00 0000 00000001 05",
		string(EncodeSpoolEnd(1, SpoolEnd{Dead, CauseRefused, 5, "no"}, []uint64{7})):                                                                               "0000001d 04 01 0000 00000001 05 0d 00 00 0000000000000005 00 026e6f 07",
		string(EncodeTaken(1, []Receipt{{5, []byte("r")}, {7, nil}})):                                                                                               "00000011 0d 00 0000 00000001 05 0172 02 00",
		string(EncodeTold(1, []uint64{5, 7})):                                                                                                                       "0000000e 0c 00 0000 00000001 05 02",
		string(EncodeRemoveBox(1)):                                                                                                                                  "0000000d 06 00 0000 00000001 02",
		string(EncodeLimits(Limits{1, 2, 3})):                                                                                                                       "00000021 06 00 0000 00000000 03 0000000000000001 00000002 0000000000000003",
		string(EncodeBox(1, &BoxSettings{Name: "b", Kind: Mailbox, Closed: true})):                                                                                  "00000028 06 00 0000 00000001 01 0162 01 00000000 0000000000000000 0000000000000000 00 00 40 00",
		string(EncodeBox(1, &BoxSettings{Name: "b", Kind: Mailbox, JSON: true})):                                                                                    "00000028 06 00 0000 00000001 01 0162 01 00000000 0000000000000000 0000000000000000 00 00 10 00",
		string(EncodeBox(1, &BoxSettings{Name: "b", Kind: Mailbox, Keep: time.Second, KeepMails: 2})):                                                               "00000034 06 00 0000 00000001 01 0162 01 00000000 0000000000000000 0000000000000000 00 00 08 00000000000003e8 00000002 00",
		string(EncodeSub(1, 2, &SubSettings{Name: "s", To: "a:b"}, Start{})):                                                                                        "0000002e 07 00 0002 00000001 01 0173 00 00 00 00 00 02 0000000000000000 00000000 0000000000000000 03613a62 00",
		string(EncodeSub(1, 2, &SubSettings{Name: "s", Filter: ">", Mode: Failover, Attempts: 4, KeyBatch: 5, Block: true, Paused: true, Lease: time.Second, Dead: 6, DeadAge: time.Minute}, Start{At: StartSeq, Seq: 8})): "00000033 07 00 0002 00000001 01 0173 013e 02 04 05 01 01 00000000000003e8 00000006 000000000000ea60 02 0000000000000008",
		string(EncodeRemoveSub(1, 2)):                                                                    "0000000d 07 00 0002 00000001 02",
		string(EncodeSeek(1, 2, Start{At: StartTime, Ms: 7})):                                            "00000016 07 00 0002 00000001 03 03 0000000000000007",
		string(EncodeSeek(1, 2, Start{At: StartLast})):                                                   "0000000e 07 00 0002 00000001 03 04",
		string(EncodeUnblock(1, 2, 3, []byte("k"))):                                                      "00000013 07 00 0002 00000001 04 00000003 016b",
		string(EncodeRedriven(1, 2, []uint64{1})):                                                        "0000000e 07 00 0002 00000001 06 01",
		string(EncodeArchived(1, 2, []uint64{1})):                                                        "0000000e 07 00 0002 00000001 07 01",
		string(EncodeLeave(1)):                                                                           "0000000d 0e 00 0000 00000001 0c",
		string(encodePart(1, 2, &part{op: partRead, spans: seqSet{{1, 3}}})):                             "0000001e 0e 00 0002 00000001 03 01 0000000000000001 0000000000000003",
		string(encodePart(1, 2, &part{op: partRetry, seq: 7, retry: retry{attempts: 1, at: 2, due: 3}})): "00000028 0e 00 0002 00000001 06 0000000000000007 01 00 0000000000000002 0000000000000003 00",
		string(encodePart(1, 0, &part{op: partKept, seqs: []uint64{7}, done: []uint32{8}})):              "0000001a 0e 00 0000 00000001 08 01 0000000000000007 00000008",
		string(EncodeChains([]byte{1})):                                                                  "0000000e 0e 00 0000 00000000 0a 01",
		string(EncodeBox(1, &BoxSettings{Name: "b", Kind: Mailbox, Handover: Handover{ID: [16]byte{1}, Peer: proto.PeerID{31: 2}, Generation: 3, Stage: Still}})): "00000061 06 00 0000 00000001 01 0162 01 00000000 0000000000000000 0000000000000000 00 00 20 01" + strings.Repeat("00", 15) + strings.Repeat("00", 31) + "02 0000000000000003 02 00",
		string(EncodePeer(1, proto.PeerID{31: 2})): "00000030 08 00 0000 00000000 00000001" + strings.Repeat("00", 31) + "02",
		string(appendAge(nil, age{1, 2, 3})):       "00000024 09 00 0000 00000000 0000000000000001 0000000000000002 0000000000000003",
	}
}

func TestRecordsGolden(t *testing.T) {
	for got, want := range goldenRecords(t) {
		if b, err := hex.DecodeString(strings.ReplaceAll(want, " ", "")); err != nil || got != string(b) {
			t.Errorf("%x, want %s (%v)", got, want, err)
		}
	}
}

// TestRecordsHaveOneEncoding checks that each record is accepted, and that no other bytes
// of its length or a byte more or less are read as the same.
func TestRecordsHaveOneEncoding(t *testing.T) {
	for rec := range goldenRecords(t) {
		b := []byte(rec)
		if again, err := reencode(b); err != nil || !bytes.Equal(again, b) {
			t.Errorf("%x became %x: %v", b, again, err)
		}
		for i := range b {
			for bit := range 8 {
				flipped := bytes.Clone(b)
				flipped[i] ^= 1 << bit
				if again, err := reencode(flipped); err == nil && !bytes.Equal(again, flipped) {
					t.Errorf("%x with bit %d of byte %d became %x", b, bit, i, again)
				} else if err != nil && !errors.Is(err, ErrBadRecord) {
					t.Errorf("%v is not an error of the package", err)
				}
			}
			if _, err := reencode(b[:i]); !errors.Is(err, ErrBadRecord) {
				t.Errorf("%x cut at %d: %v", b, i, err)
			}
		}
		if _, err := reencode(append(bytes.Clone(b), 0)); !errors.Is(err, ErrBadRecord) {
			t.Errorf("%x with a trailer: %v", b, err)
		}
	}
}

// reencode decodes a record and encodes it again.
func reencode(rec []byte) ([]byte, error) {
	h, d, err := parseHead(rec)
	if err != nil {
		return nil, err
	}
	var out []byte
	switch h.typ {
	case TypeMail:
		m, err := ParseMail(rec)
		return AppendMail(nil, &m), err
	case TypeMove:
		seq, old, err := parseMove(rec)
		if err != nil {
			return nil, err
		}
		out, err := AppendMove(nil, seq, old)
		if err == nil {
			out[5] = h.flags
		}
		return out, err
	case TypeForward:
		h, seq, m, err := parseForward(rec)
		return EncodeForward(h.box, h.sub, seq, AppendMail(nil, &m)), err
	case TypeSkip:
		k, err := ParseSkip(rec)
		return AppendSkip(nil, &k), err
	case TypeAck:
		out = appendAck(nil, h.box, h.sub, d.seqs(nil))
	case TypeTold:
		out = EncodeTold(h.box, d.seqs(nil))
	case TypeTaken:
		out = EncodeTaken(h.box, d.receipts())
	case TypeNack:
		n := d.nack()
		out = appendNack(nil, h.box, h.sub, &n)
	case TypeEnd:
		e := d.end()
		out = appendEnd(nil, h, &e)
	case TypeBox:
		out, err = reencodeBox(h, &d)
	case TypeSub:
		out, err = reencodeSub(h, &d)
	case TypePeer:
		index := d.u32()
		id := d.take(32)
		if d.failed {
			return nil, ErrBadRecord
		}
		out = EncodePeer(index, proto.PeerID(id))
	case TypeAge:
		out = appendAge(nil, age{d.u64(), d.time(), d.time()})
	case TypePart:
		out = encodePart(h.box, h.sub, d.part())
	default:
		return rec, nil
	}
	if err != nil || !d.done() || !sameHead(h, out) {
		return nil, ErrBadRecord
	}
	return out, nil
}

// sameHead reports whether a record has a head.
func sameHead(h head, rec []byte) bool {
	x, _, err := parseHead(rec)
	return err == nil && x == h
}

func reencodeBox(h head, d *decoder) ([]byte, error) {
	switch d.u8() {
	case boxMake:
		s := &State{home: home{given: d.u64()}}
		b := d.boxSettings()
		return s.EncodeNewBox(h.box, &b), nil
	case boxSet:
		b := d.boxSettings()
		return EncodeBox(h.box, &b), nil
	case boxRemove:
		return EncodeRemoveBox(h.box), nil
	case boxLimits:
		return EncodeLimits(d.limits()), nil
	}
	return nil, ErrBadRecord
}

func reencodeSub(h head, d *decoder) ([]byte, error) {
	switch op := d.u8(); op {
	case subSet:
		s := d.subSettings()
		return EncodeSub(h.box, h.sub, &s, d.start()), nil
	case subRemove:
		return EncodeRemoveSub(h.box, h.sub), nil
	case subSeek:
		return EncodeSeek(h.box, h.sub, d.start()), nil
	case subUnblock:
		return EncodeUnblock(h.box, h.sub, d.u32(), d.text(proto.MaxKey)), nil
	case subRedriven, subArchived:
		return encodeSubSeqs(h.box, h.sub, op, d.seqs(nil)), nil
	}
	return nil, ErrBadRecord
}

func TestBadRecords(t *testing.T) {
	b := newBench(t)
	b.apply(EncodePeer(1, proto.PeerID{1}))
	mail := b.record(note{})
	before := save(t, b.s)
	chained := func(m Mail) []byte {
		m.Box, m.Letter = 1, mail[headSize+13:]
		return AppendMail(nil, &m)
	}
	with := func(rec []byte, at int, v ...byte) []byte {
		rec = bytes.Clone(rec)
		copy(rec[at:], v)
		return rec
	}
	ack := appendAck(nil, 1, 0, []uint64{1, 2})
	many := make([]uint64, MaxSeqs+1)
	for i := range many {
		many[i] = uint64(i) + 1
	}
	nacked := func(n nack) []byte { n.cause = or(n.cause, CauseNacked); return appendNack(nil, 1, 0, &n) }
	ended := func(e end) []byte {
		e.state, e.cause, e.seqs = or(e.state, Dead), or(e.cause, CauseFinal), []uint64{1}
		return appendEnd(nil, head{box: 1}, &e)
	}
	boxed := func(x BoxSettings) []byte {
		x.Name, x.Kind = or(x.Name, "b"), or(x.Kind, Mailbox)
		return EncodeBox(2, &x)
	}
	sub := func(x SubSettings) []byte { return EncodeSub(1, 0, &x, Start{}) }
	for _, tt := range []struct {
		name string
		rec  []byte
	}{
		{"nothing", nil},
		{"a head cut short", ack[:headSize-1]},
		{"another length", with(ack, 3, 99)},
		{"a length of 4 GiB", with(ack, 0, 0xff, 0xff, 0xff, 0xff)},
		{"type 0", with(ack, 4, 0)},
		{"type 11", with(ack, 4, 11)},
		{"an unknown flag", with(ack, 5, 2)},
		{"a SUB of a number that is reserved", encodeSubSeqs(1, 0, 5, []uint64{1})},
		{"an ACK for all subscriptions", with(ack, 5, 1)},
		{"an ACK of nothing", appendAck(nil, 1, 0, nil)},
		{"an ACK of sequence 0", appendAck(nil, 1, 0, []uint64{0})},
		{"an ACK of a sequence twice", appendAck(nil, 1, 0, []uint64{1, 1})},
		{"an ACK of 513 mails", appendAck(nil, 1, 0, many)},
		{"an ACK with a number that is not minimal", finish(append(bytes.Clone(ack), 0x81, 0x00), 0)},
		{"an ACK that runs over", appendAck(nil, 1, 0, []uint64{1<<63 - 1, 1 << 63})},
		{"a mail without a letter's class of chain", chained(Mail{Chain: 5, Origin: 1, Number: proto.Seq{Boot: 1, Counter: 1}})},
		{"a mail of this node with the one before it", chained(Mail{Chain: 1, Number: proto.Seq{Boot: 1, Counter: 2}, Prev: proto.Seq{Boot: 1, Counter: 1}})},
		{"a number without a boot", chained(Mail{Chain: 1, Origin: 1, Number: proto.Seq{Counter: 1}})},
		{"a number 0", chained(Mail{Chain: 1, Origin: 1, Number: proto.Seq{Boot: 1}})},
		{"a mail before itself", chained(Mail{Chain: 1, Origin: 1, Number: proto.Seq{Boot: 1, Counter: 1}, Prev: proto.Seq{Boot: 1, Counter: 1}})},
		{"a later mail before it", chained(Mail{Chain: 1, Origin: 1, Number: proto.Seq{Boot: 1, Counter: 1}, Prev: proto.Seq{Boot: 2, Counter: 1}})},
		{"a mail for a subscription", with(mail, 7, 1)},
		{"a mail before 1970", with(mail, headSize, 0x80)},
		{"a nack without a cause", with(nacked(nack{}), headSize+8, 0)},
		{"a nack of an unknown cause", nacked(nack{cause: causes})},
		{"a nack due before it was made", nacked(nack{at: 2, due: 1})},
		{"a nack due in a year", nacked(nack{due: 365 * 24 * 3600_000})},
		{"a reader of 65 bytes", nacked(nack{reader: make([]byte, MaxReader+1)})},
		{"a reason of 257 bytes", nacked(nack{reason: make([]byte, MaxReason+1)})},
		{"an end as DONE", ended(end{state: Done})},
		{"an end as state 9", ended(end{state: mailStates})},
		{"an end of an unknown cause", ended(end{cause: causes})},
		{"a reason of an end of more than 4 KiB", ended(end{reason: make([]byte, MaxDetail+1)})},
		{"a box without a name", with(boxed(BoxSettings{}), headSize+2, ' ')},
		{"a box with a name of 257 bytes", boxed(BoxSettings{Name: strings.Repeat("b", MaxName+1)})},
		{"a box of no kind", with(boxed(BoxSettings{}), headSize+3, 0)},
		{"a box of 2^24 mails and one", boxed(BoxSettings{Mails: MaxMails + 1})},
		{"a box of 2^50 bytes and one", boxed(BoxSettings{Bytes: 1<<50 + 1})},
		{"a mailbox that drops", boxed(BoxSettings{Age: time.Hour})},
		{"a mailbox by interest", boxed(BoxSettings{Interest: true})},
		{"a flag 2", with(boxed(BoxSettings{}), headSize+24, 2)},
		{"a flag 8", with(boxed(BoxSettings{}), headSize+26, 8)},
		{"a flag for a home, and no home", append(with(boxed(BoxSettings{}), headSize+26, 2), make([]byte, 40)...)},
		{"a home of a mailbox", boxed(BoxSettings{Home: proto.PeerID{1}})},
		{"a generation that nobody reaches", boxed(BoxSettings{Generation: proto.MaxGeneration + 1})},
		{"a mailbox with the name of a spool", boxed(BoxSettings{Name: "out:b"})},
		{"a spool without a target", boxed(BoxSettings{Name: "out:", Kind: Spool})},
		{"a spool with another name", boxed(BoxSettings{Kind: Spool})},
		{"a spool with retention", boxed(BoxSettings{Name: "out:b", Kind: Spool, Age: time.Hour})},
		{"a spool with lanes", boxed(BoxSettings{Name: "out:b", Kind: Spool, PerPeer: true})},
		{"a topic that drops after a century", boxed(BoxSettings{Kind: Topic, Age: 100 * 365 * 24 * time.Hour})},
		{"box 0", EncodeBox(0, &BoxSettings{Name: "b", Kind: Mailbox})},
		{"an unknown change of a box", with(EncodeRemoveBox(1), headSize, 9)},
		{"a filter with an empty word", sub(SubSettings{Filter: "a..b"})},
		{"a filter of 257 bytes", sub(SubSettings{Filter: strings.Repeat("f", proto.MaxSubject+1)})},
		{"a mailbox that delivers", sub(SubSettings{To: "agent:a"})},
		{"delivers into a name with a space", sub(SubSettings{Name: "s", To: "agent: a"})},
		{"mode 3", sub(SubSettings{Mode: 3})},
		{"101 attempts", sub(SubSettings{Attempts: MaxAttempts + 1})},
		{"17 mails of a key at once", sub(SubSettings{KeyBatch: MaxKeyBatch + 1})},
		{"a lease of 12 hours and more", sub(SubSettings{Lease: MaxLease + time.Millisecond})},
		{"2^24 dead letters and one", sub(SubSettings{Dead: MaxMails + 1})},
		{"a start of kind 5", EncodeSeek(1, 0, Start{At: 5})},
		{"an unknown change of a subscription", with(EncodeRemoveSub(1, 0), headSize, 9)},
		{"a key of 257 bytes", EncodeUnblock(1, 0, 0, make([]byte, proto.MaxKey+1))},
		{"peer 0", EncodePeer(0, proto.PeerID{1})},
		{"boot 0", appendAge(nil, age{})},
		{"time that ran back", appendAge(nil, age{boot: 2, ran: -1})},
		{"a start that ran for more than a century", appendAge(nil, age{boot: 2, ran: maxRan + 1})},
		{"a move of no mail", finish(appendU64(appendHead(nil, head{typ: TypeMove, box: 1}), 1), 0)},
		{"a move with an unknown flag", with(slices.Concat(mustMove(t, mail)), 5, 2)},
		{"a move of another box's mail", with(slices.Concat(mustMove(t, mail)), 11, 2)},
		{"a forward of no mail", finish(appendU64(appendHead(nil, head{typ: TypeForward, box: 1}), 1), 0)},
		{"a forward by another node", EncodeForward(1, 0, 1, chained(Mail{Chain: 1, Origin: 1, Number: proto.Seq{Boot: 1, Counter: 1}}))},
		{"a skip by this node", AppendSkip(nil, &Skip{Box: 1, Chain: 1, Number: proto.Seq{Boot: 1, Counter: 1}})},
		{"a skip of number 0", AppendSkip(nil, &Skip{Box: 1, Origin: 1, Chain: 1})},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var out Output
			if err := b.s.Apply(99, tt.rec, &out); !errors.Is(err, ErrBadRecord) {
				t.Errorf("%v", err)
			}
			if !bytes.Equal(save(t, b.s), before) {
				t.Error("it changed the state")
			}
		})
	}
	if err := b.s.Apply(99, finish(appendHead(nil, head{typ: typeForeign, flags: 0xff}), 0), &b.out); err != nil || !bytes.Equal(save(t, b.s), before) {
		t.Errorf("a record of another package: %v", err)
	}
}

func mustMove(t testing.TB, mail []byte) []byte {
	t.Helper()
	rec, err := AppendMove(nil, 1, mail)
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

func TestHandles(t *testing.T) {
	h := Handle{88121, 1795212606, 4}
	if h.String() != "88121.1795212606.4" {
		t.Errorf("%v", h)
	}
	if back, err := ParseHandle(h.String()); err != nil || back != h {
		t.Errorf("%v, %v", back, err)
	}
	for _, s := range []string{"", "1", "1.2", "1.2.3.4", "1.2.", "a.2.3", "-1.2.3", "01.2.3", "+1.2.3", " 1.2.3", "1.2.18446744073709551616"} {
		if h, err := ParseHandle(s); !errors.Is(err, ErrBadRecord) || h != (Handle{}) {
			t.Errorf("%q: %v, %v", s, h, err)
		}
	}
}

func TestMailOf(t *testing.T) {
	b := newBench(t)
	mail := b.record(note{body: "x"})
	for _, rec := range [][]byte{mail, mustMove(t, mail), mustMove(t, mustMove(t, mail)), mustMove(t, EncodeForward(7, 0, 1, mail))} {
		if m, err := MailOf(rec); err != nil || !bytes.HasSuffix(mail, m.Letter) || len(m.Letter) != proto.LetterFixed+1 {
			t.Errorf("%x, %v", m.Letter, err)
		}
	}
	for _, rec := range [][]byte{nil, appendAck(nil, 1, 0, []uint64{1}), mail[:20]} {
		if _, err := MailOf(rec); !errors.Is(err, ErrBadRecord) {
			t.Errorf("%x: %v", rec, err)
		}
	}
	if _, err := AppendMove(nil, 1, nil); !errors.Is(err, ErrBadRecord) {
		t.Errorf("a move of nothing: %v", err)
	}
}

// FuzzRecord reads any bytes as a record.
func FuzzRecord(f *testing.F) {
	for rec := range goldenRecords(f) {
		f.Add([]byte(rec))
	}
	f.Fuzz(func(t *testing.T, rec []byte) {
		again, err := reencode(rec)
		if err != nil && !errors.Is(err, ErrBadRecord) {
			t.Errorf("%v is not an error of the package", err)
		}
		if err == nil && !bytes.Equal(again, rec) {
			t.Errorf("%x encodes as %x", rec, again)
		}
		if m, err := MailOf(rec); err == nil && !bytes.HasSuffix(rec, m.Letter) {
			t.Errorf("the letter of %x is %x", rec, m.Letter)
		}
	})
}
