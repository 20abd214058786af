package proto

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// fullLetter has every field.
func fullLetter(t testing.TB) *Letter {
	t.Helper()
	labels, err := MakeLabels(map[string]string{"region": "eu", "a": "", "b": "x=y"})
	if err != nil {
		t.Fatal(err)
	}
	return &Letter{
		Class: High, Flags: LetterRelaxed | LetterReceipt | LetterTellEnd, ID: MailID{1, 2, 15: 16},
		Created: 1_700_000_000_000, NotAfter: 1_700_000_060_000, NotBefore: 1_700_000_001_000, Hops: 3,
		Subject: []byte("eu.created"), Key: []byte("order-7"), Dedupe: []byte("inv-1"), ReplyTo: []byte("agent:me@alpha"),
		Correlation: []byte("c-1"), Type: []byte("task_assignment"), ContentType: []byte("application/json"),
		Traceparent: []byte("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"), Sender: []byte("agent:boss"),
		BounceTo: []byte("agent:errors"), Labels: labels, RedriveOf: MailID{1}, FirstID: MailID{2}, BounceOf: MailID{3}, Produced: Produced{ProducerID{15: 4}, 5},
		Later: []byte{0x20, 0, 1, 'x', 0x21, 0, 0},
		Body:  []byte("{}"),
	}
}

// smallLetter is the smallest valid letter.
func smallLetter() *Letter { return &Letter{Class: Normal, ID: MailID{15: 1}} }

func mustLetter(t testing.TB, l *Letter) []byte {
	t.Helper()
	b, err := AppendLetter(nil, l)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestLetterGolden fixes the bytes: they are on disks and on the wire.
func TestLetterGolden(t *testing.T) {
	object := smallLetter()
	object.Object = LetterObject{Name: [32]byte{31: 1}, Size: 1 << 20, SHA256: [32]byte{31: 2}, Key: [32]byte{31: 3}, Suite: 4, Packed: true}
	for _, tt := range []struct {
		name   string
		letter *Letter
		want   string
	}{
		{"small", smallLetter(), "01 03 0000 00000000000000000000000000000001 0000000000000000 0000000000000000 0000000000000000 00 00 0000 00000000"},
		{"object", object, "01 03 0000 00000000000000000000000000000001 0000000000000000 0000000000000000 0000000000000000 00 00 006d 00000000" +
			"82 006a 0000000000000000000000000000000000000000000000000000000000000001 0000000000100000 0000000000000000000000000000000000000000000000000000000000000002" +
			"0000000000000000000000000000000000000000000000000000000000000003 04 01"},
		{"full", fullLetter(t), "01 02 0007 01020000000000000000000000000010 0000018bcfe56800 0000018bcfe65260 0000018bcfe56be8 03 00 0125 00000002" +
			"01 000a 65752e63726561746564 02 0007 6f726465722d37 03 0005 696e762d31 04 000e 6167656e743a6d6540616c706861" +
			"05 0003 632d31 06 000f 7461736b5f61737369676e6d656e74 07 0010 6170706c69636174696f6e2f6a736f6e" +
			"08 0037 30302d34626639326633353737623334646136613363653932396430653065343733362d303066303637616130626139303262372d3031" +
			"09 000a 6167656e743a626f7373 0a 0002 613d 0a 0005 623d783d79 0a 0009 726567696f6e3d6575" +
			"0b 0010 01000000000000000000000000000000 0c 0010 02000000000000000000000000000000 0d 0010 03000000000000000000000000000000" +
			"0e 000c 6167656e743a6572726f7273 0f 0018 00000000000000000000000000000004 0000000000000005 20 0001 78 21 0000 7b7d"},
	} {
		want, err := hex.DecodeString(strings.ReplaceAll(tt.want, " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		if got := mustLetter(t, tt.letter); !bytes.Equal(got, want) {
			t.Errorf("%s: %x, want %x", tt.name, got, want)
		}
	}
}

func TestLetterRoundTrip(t *testing.T) {
	want := fullLetter(t)
	b := mustLetter(t, want)
	got, err := ParseLetter(b)
	if err != nil {
		t.Fatal(err)
	}
	if a, b := fmt.Sprintf("%+v", *want), fmt.Sprintf("%+v", got); a != b {
		t.Errorf("%s\nbecame %s", a, b)
	}
	var labels []string
	for name, value := range got.Labels.All() {
		labels = append(labels, string(name)+" is "+string(value))
	}
	if want := []string{"a is ", "b is x=y", "region is eu"}; !slices.Equal(labels, want) {
		t.Errorf("labels %q, want %q", labels, want)
	}
	prefix, err := AppendLetter([]byte("before"), want)
	if err != nil || string(prefix) != "before"+string(b) {
		t.Errorf("appended %x, %v", prefix, err)
	}
	id := NewMailID(time.UnixMilli(want.Created))
	if back, err := ParseMailID(id.String()); err != nil || back != id {
		t.Errorf("id %v became %v: %v", id, back, err)
	}
}

func TestParseProduced(t *testing.T) {
	id := "000102030405060708090a0b0c0d0e0f"
	if p, err := ParseProduced(id, 1<<63-1); err != nil || hex.EncodeToString(p.Producer[:]) != id || p.Number != 1<<63-1 {
		t.Errorf("%+v, %v", p, err)
	}
	for _, tt := range []struct {
		producer string
		number   uint64
	}{
		{"", 1}, {id[1:], 1}, {id + "00", 1}, {strings.ToUpper(id), 1}, {"x" + id[1:], 1}, {strings.Repeat("0", 32), 1}, {id, 0}, {id, 1 << 63},
	} {
		if p, err := ParseProduced(tt.producer, tt.number); !errors.Is(err, ErrBadLetter) || p != (Produced{}) {
			t.Errorf("%q, %d: %+v, %v", tt.producer, tt.number, p, err)
		}
	}
}

// TestSetNumber changes the number of a letter, and nothing else of it.
func TestSetNumber(t *testing.T) {
	l := fullLetter(t)
	b := mustLetter(t, l)
	l.Produced.Number = 1<<63 - 1
	SetNumber(b, l.Produced.Number)
	if want := mustLetter(t, l); !bytes.Equal(b, want) {
		t.Errorf("%x, want %x", b, want)
	}
	small := mustLetter(t, smallLetter())
	SetNumber(small, 7)
	if want := mustLetter(t, smallLetter()); !bytes.Equal(small, want) {
		t.Errorf("a letter without a producer became %x", small)
	}
}

func TestLetterIsParsedWithoutAllocation(t *testing.T) {
	b := mustLetter(t, fullLetter(t))
	var got Letter
	if n := testing.AllocsPerRun(100, func() { got, _ = ParseLetter(b) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if &got.Body[0] != &b[len(b)-2] {
		t.Error("the body is a copy")
	}
}

// drawLetter draws a valid letter.
func drawLetter(t *rapid.T) *Letter {
	text := func(name string, limit int) []byte {
		return []byte(rapid.StringOfN(rapid.RuneFrom([]rune("ab.-=é ")), 0, limit/2, limit).Draw(t, name))
	}
	l := smallLetter()
	l.Class = Class(rapid.IntRange(1, 4).Draw(t, "class"))
	l.Flags = LetterFlags(rapid.IntRange(0, int(letterFlags)).Draw(t, "flags"))
	l.Created = rapid.Int64Range(0, 1<<45).Draw(t, "created")
	l.NotAfter = l.Created + rapid.Int64Range(0, MaxTTL.Milliseconds()).Draw(t, "ttl")
	if rapid.Bool().Draw(t, "later") {
		l.NotBefore = rapid.Int64Range(l.Created, l.NotAfter).Draw(t, "not before")
	}
	l.Hops = rapid.Uint8().Draw(t, "hops")
	for tag := byte(letterKey); tag < letterKnown; tag++ {
		if field, limit := l.text(tag); field != nil && tag != letterTraceparent {
			*field = text("text", min(limit, 20))
		}
	}
	labels, err := MakeLabels(rapid.MapOfN(rapid.StringMatching(`[a-z.]{1,8}`), rapid.StringMatching(`[a-z =]{0,8}`), 0, 5).Draw(t, "labels"))
	if err != nil {
		t.Fatal(err)
	}
	l.Labels = labels
	if rapid.Bool().Draw(t, "produced") {
		l.Produced = Produced{ProducerID{1}, rapid.Uint64Range(1, 1<<63-1).Draw(t, "number")}
	}
	l.Body = rapid.SliceOfN(rapid.Byte(), 0, 64).Draw(t, "body")
	return l
}

func TestAnyLetterRoundTrips(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b, err := AppendLetter(nil, drawLetter(t))
		if err != nil {
			t.Fatal(err)
		}
		l, err := ParseLetter(b)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := AppendLetter(nil, &l); err != nil || !bytes.Equal(again, b) {
			t.Fatalf("%x became %x, %v", b, again, err)
		}
		for i := range b {
			if _, err := ParseLetter(b[:i]); !errors.Is(err, ErrBadLetter) {
				t.Fatalf("cut at %d: %v", i, err)
			}
		}
	})
}

// rawLetter is the small letter with these entries, and a body.
func rawLetter(tlvs, body []byte) []byte {
	b, err := AppendLetter(nil, smallLetter())
	if err != nil {
		panic(err)
	}
	binary.BigEndian.PutUint16(b[46:], uint16(len(tlvs)))
	binary.BigEndian.PutUint32(b[48:], uint32(len(body)))
	return slices.Concat(b, tlvs, body)
}

func TestBadLetters(t *testing.T) {
	tlv := func(tag byte, v string) []byte { return appendTLV(nil, tag, []byte(v)) }
	entries := func(list ...[]byte) []byte { return rawLetter(slices.Concat(list...), nil) }
	with := func(at int, v ...byte) []byte {
		b := rawLetter(nil, nil)
		copy(b[at:], v)
		return b
	}
	var labels33, million [][]byte
	for i := range MaxLabels + 1 {
		labels33 = append(labels33, tlv(letterLabel, fmt.Sprintf("l%02d=", i)))
	}
	for range 1_000_000 {
		million = append(million, tlv(0x20, ""))
	}
	object := func(size uint64) string {
		return string(binary.BigEndian.AppendUint64(make([]byte, 32), size)) + strings.Repeat("s", 64) + "\x01\x00"
	}
	for _, tt := range []struct {
		name string
		b    []byte
		want error
	}{
		{"empty", nil, ErrBadLetter},
		{"version 0", with(0, 0), ErrBadLetter},
		{"version 2", with(0, 2), ErrNewLetter},
		{"version 2 of one byte", []byte{2}, ErrNewLetter},
		{"no class", with(1, 0), ErrBadLetter},
		{"class 5", with(1, 5), ErrBadLetter},
		{"an unknown flag", with(2, 0x80, 0), ErrNewLetter},
		{"no id", with(19, 0), ErrBadLetter},
		{"made before 1970", with(20, 0x80), ErrBadLetter},
		{"ends before it is made", with(27, 1), ErrBadLetter},
		{"lives 30 days and a millisecond", func() []byte {
			b := rawLetter(nil, nil)
			binary.BigEndian.PutUint64(b[28:], uint64(MaxTTL.Milliseconds()+1))
			return b
		}(), ErrBadLetter},
		{"due after its end", with(43, 1), ErrBadLetter},
		{"due before it is made", with(20, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 8), ErrBadLetter},
		{"the zero byte is set", with(45, 1), ErrBadLetter},
		{"TLV length too long", with(47, 1), ErrBadLetter},
		{"body length too long", with(51, 1), ErrBadLetter},
		{"body length of 4 GiB", with(48, 0xff, 0xff, 0xff, 0xff), ErrBadLetter},
		{"a trailer", append(rawLetter(nil, nil), 0), ErrBadLetter},
		{"an entry cut in its head", rawLetter([]byte{letterKey, 0}, nil), ErrBadLetter},
		{"an entry cut in its value", rawLetter([]byte{letterKey, 0, 2, 'x'}, nil), ErrBadLetter},
		{"tag 0", entries(tlv(0, "x")), ErrBadLetter},
		{"the critical bit alone", entries(tlv(letterCritical, "x")), ErrBadLetter},
		{"entries out of order", entries(tlv(letterDedupe, "x"), tlv(letterKey, "x")), ErrBadLetter},
		{"an entry twice", entries(tlv(letterKey, "x"), tlv(letterKey, "x")), ErrBadLetter},
		{"an unknown entry twice", entries(tlv(0x20, "x"), tlv(0x20, "y")), ErrBadLetter},
		{"an empty key", entries(tlv(letterKey, "")), ErrBadLetter},
		{"an unknown critical entry", entries(tlv(0x83, "x")), ErrNewLetter},
		{"a key of 257 bytes", entries(tlv(letterKey, strings.Repeat("k", 257))), ErrBadLetter},
		{"a dedupe key of 257 bytes", entries(tlv(letterDedupe, strings.Repeat("k", 257))), ErrBadLetter},
		{"a reply address of 257 bytes", entries(tlv(letterReplyTo, strings.Repeat("k", 257))), ErrBadLetter},
		{"a bounce address of 257 bytes", entries(tlv(letterBounceTo, strings.Repeat("k", 257))), ErrBadLetter},
		{"a correlation of 257 bytes", entries(tlv(letterCorrelation, strings.Repeat("k", 257))), ErrBadLetter},
		{"a type of 129 bytes", entries(tlv(letterType, strings.Repeat("k", 129))), ErrBadLetter},
		{"a content type of 129 bytes", entries(tlv(letterContentType, strings.Repeat("k", 129))), ErrBadLetter},
		{"a sender of 129 bytes", entries(tlv(letterSender, strings.Repeat("k", 129))), ErrBadLetter},
		{"a key with a NUL", entries(tlv(letterKey, "a\x00")), ErrBadLetter},
		{"a key that is not UTF-8", entries(tlv(letterKey, "\xff")), ErrBadLetter},
		{"a subject with an empty word", entries(tlv(letterSubject, "a..b")), ErrBadLetter},
		{"a subject with >", entries(tlv(letterSubject, "a.>")), ErrBadLetter},
		{"a trace of a later version", entries(tlv(letterTraceparent, "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")), ErrBadLetter},
		{"a trace in upper case", entries(tlv(letterTraceparent, "00-4BF92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")), ErrBadLetter},
		{"33 labels", entries(labels33...), ErrBadLetter},
		{"labels out of order", entries(tlv(letterLabel, "b="), tlv(letterLabel, "a=")), ErrBadLetter},
		{"a label twice", entries(tlv(letterLabel, "a=1"), tlv(letterLabel, "a=2")), ErrBadLetter},
		{"a label without =", entries(tlv(letterLabel, "a")), ErrBadLetter},
		{"a label without a name", entries(tlv(letterLabel, "=a")), ErrBadLetter},
		{"a label name of 65 bytes", entries(tlv(letterLabel, strings.Repeat("n", 65)+"=")), ErrBadLetter},
		{"a label value of 257 bytes", entries(tlv(letterLabel, "n="+strings.Repeat("v", 257))), ErrBadLetter},
		{"an id of 15 bytes", entries(tlv(letterFirstID, strings.Repeat("i", 15))), ErrBadLetter},
		{"an id of zeros", entries(tlv(letterFirstID, strings.Repeat("\x00", 16))), ErrBadLetter},
		{"a number of 23 bytes", entries(tlv(letterProduced, strings.Repeat("p", 16)+"\x00number")), ErrBadLetter},
		{"a number of nobody", entries(tlv(letterProduced, strings.Repeat("\x00", 23)+"\x01")), ErrBadLetter},
		{"number 0 of a producer", entries(tlv(letterProduced, "p"+strings.Repeat("\x00", 23))), ErrBadLetter},
		{"number 2^63 of a producer", entries(tlv(letterProduced, strings.Repeat("p", 16)+"\x80"+strings.Repeat("\x00", 7))), ErrBadLetter},
		{"an object of 105 bytes", entries(tlv(letterObject, object(1)[1:])), ErrBadLetter},
		{"an object without content", entries(tlv(letterObject, object(0))), ErrBadLetter},
		{"an object of 2^63 bytes", entries(tlv(letterObject, object(1<<63))), ErrBadLetter},
		{"an object that is packed twice", entries(tlv(letterObject, object(1)[:objectSize-1]+"\x02")), ErrBadLetter},
		{"an object without a key", entries(tlv(letterCritical|1, object(1)[:72])), ErrNewLetter},
		{"an object and a body", rawLetter(tlv(letterObject, object(1)), []byte("x")), ErrBadLetter},
		{"4097 bytes of entries", entries(tlv(0x20, strings.Repeat("x", MaxLetterTLVs-2))), ErrBadLetter},
		{"a million entries", slices.Concat(rawLetter(nil, nil), slices.Concat(million...)), ErrBadLetter},
		{"a body of 256 KiB and a byte", rawLetter(nil, make([]byte, MaxInlineBody+1)), ErrBadLetter},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if l, err := ParseLetter(tt.b); !errors.Is(err, tt.want) {
				t.Errorf("%+v, %v; want %v", l, err, tt.want)
			}
		})
	}
}

// TestLargestLetter checks that everything at its limit is accepted.
func TestLargestLetter(t *testing.T) {
	labels := map[string]string{}
	for i := range MaxLabels {
		labels[fmt.Sprintf("l%02d", i)] = ""
	}
	text := func(n int) []byte { return bytes.Repeat([]byte("x"), n) }
	l := fullLetter(t)
	var err error
	if l.Labels, err = MakeLabels(labels); err != nil {
		t.Fatal(err)
	}
	l.Later, l.NotAfter, l.Body = nil, l.Created+MaxTTL.Milliseconds(), text(MaxInlineBody)
	for tag := byte(letterSubject); tag < letterKnown; tag++ {
		if field, limit := l.text(tag); field != nil && tag != letterTraceparent {
			*field = text(limit)
		}
	}
	b := mustLetter(t, l)
	l.Later = appendTLV(nil, 0x20, text(MaxLetterTLVs-(len(b)-LetterFixed-MaxInlineBody)-3))
	if b = mustLetter(t, l); len(b) != MaxLetter {
		t.Errorf("%d bytes, want %d", len(b), MaxLetter)
	}
	long, err := MakeLabels(map[string]string{strings.Repeat("n", MaxLabelName): strings.Repeat("v", MaxLabelValue)})
	if err != nil {
		t.Fatal(err)
	}
	small := smallLetter()
	small.Labels = long
	mustLetter(t, small)
	small.Labels, small.Object = nil, LetterObject{Size: MaxChunks * ChunkSize}
	mustLetter(t, small)
}

func TestAppendRefusesWhatParseRefuses(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*Letter)
	}{
		{"no class", func(l *Letter) { l.Class = 0 }},
		{"class 260", func(l *Letter) { l.Class = 260 }},
		{"a huge key", func(l *Letter) { l.Key = make([]byte, 1<<17) }},
		{"a huge body", func(l *Letter) { l.Body = make([]byte, MaxInlineBody+1) }},
		{"too much of later versions", func(l *Letter) { l.Later = appendTLV(nil, 0x20, make([]byte, MaxLetterTLVs)) }},
		{"labels that are none", func(l *Letter) { l.Labels = Labels("x") }},
		{"a filter as the subject", func(l *Letter) { l.Subject = []byte("a.*") }},
		{"a number without a producer", func(l *Letter) { l.Produced.Number = 1 }},
		{"an object without content", func(l *Letter) { l.Object.Name[0] = 1 }},
	} {
		l := smallLetter()
		tt.change(l)
		if b, err := AppendLetter([]byte("x"), l); !errors.Is(err, ErrBadLetter) || string(b) != "x" {
			t.Errorf("%s: %d bytes, %v", tt.name, len(b), err)
		}
	}
	for _, labels := range []map[string]string{{"a=b": "c"}, {"": "c"}, {"a b": "c"}, {"a": "\n"}, {"a": strings.Repeat("v", 1<<17)}} {
		if _, err := MakeLabels(labels); !errors.Is(err, ErrBadLetter) {
			t.Errorf("%.20q: %v", labels, err)
		}
	}
}

func TestSubjects(t *testing.T) {
	for s, want := range map[string][2]bool{ // as a subject, as a filter
		"a": {true, true}, "a.b": {true, true}, "é.x-1": {true, true}, "a*": {true, true}, "a>.b": {true, true},
		"": {}, ".": {}, "a.": {}, ".a": {}, "a..b": {}, "a b": {}, "a\x00": {}, "\xff": {},
		"*": {false, true}, ">": {false, true}, "a.*.b": {false, true}, "a.>": {false, true}, "*.>": {false, true},
		">.a": {}, "a.>.b": {}, ">.": {},
		strings.Repeat("x", 256): {true, true}, strings.Repeat("x", 257): {},
	} {
		if got := [2]bool{ValidSubject([]byte(s)), ValidFilter([]byte(s))}; got != want {
			t.Errorf("%.20q: %v, want %v", s, got, want)
		}
	}
	for _, tt := range []struct {
		filter, subject string
		want            bool
	}{
		{"", "a.b", true}, {"", "", true}, {">", "", true}, {">", "a.b", true},
		{"a", "a", true}, {"a", "b", false}, {"a", "a.b", false}, {"a.b", "a", false}, {"a", "", false},
		{"*", "a", true}, {"*", "a.b", false}, {"*", "", false}, {"a.*", "a.b", true}, {"a.*", "a", false}, {"a.*", "a.b.c", false},
		{"*.b", "a.b", true}, {"a.*.c", "a.b.c", true}, {"a.*.c", "a.b.d", false},
		{"a.>", "a.b", true}, {"a.>", "a.b.c", true}, {"a.>", "a", false}, {"a.>", "b.c", false}, {"*.>", "a", false}, {"*.>", "a.b", true},
	} {
		if got := MatchSubject(tt.filter, tt.subject); got != tt.want {
			t.Errorf("%q lets %q through: %v", tt.filter, tt.subject, got)
		}
	}
}

func FuzzLetter(f *testing.F) {
	f.Add(mustLetter(f, fullLetter(f)))
	f.Add(mustLetter(f, smallLetter()))
	f.Add(rawLetter(appendTLV(nil, 0x82, nil), nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := ParseLetter(b)
		if err != nil {
			if !errors.Is(err, ErrBadLetter) && !errors.Is(err, ErrNewLetter) {
				t.Errorf("%v is not an error of the package", err)
			}
			return
		}
		for name := range l.Labels.All() {
			if len(name) == 0 {
				t.Error("a label without a name")
			}
		}
		if again, err := AppendLetter(nil, &l); err != nil || !bytes.Equal(again, b) {
			t.Errorf("%x encodes as %x: %v", b, again, err)
		}
	})
}
