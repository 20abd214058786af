package proto

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"testing"
)

func goldenMailReceipt() MailReceipt {
	r := MailReceipt{
		Statement: MailStatement{
			Mail: MailID{1, 15: 2}, Mesh: MeshID{3}, Home: PeerID{4}, Origin: PeerID{5}, Time: 1_700_000_000_000, Class: High,
			Number: Seq{6, 7}, Digest: [32]byte{8, 31: 9}, Box: "agent:ceo",
		},
		Index: 2, Path: seq(1, 64),
	}
	copy(r.Signature[:], seq(2, 64))
	return r
}

// A receipt survives a round trip; any other length is refused, and any flipped bit is refused or
// decodes to another receipt.
func TestMailReceipt(t *testing.T) {
	local := goldenMailReceipt()
	local.Statement.Class, local.Statement.Number, local.Path, local.Index = 0, Seq{}, []byte{}, 0
	longest := goldenMailReceipt()
	longest.Statement.Box, longest.Path = "topic:"+strings.Repeat("x", MaxTarget-6), make([]byte, maxPath)
	for _, r := range []MailReceipt{goldenMailReceipt(), local, longest} {
		b := r.Append([]byte("before"))[len("before"):]
		if len(b) > MaxMailReceipt {
			t.Errorf("%d bytes, at most %d", len(b), MaxMailReceipt)
		}
		if back, err := ParseMailReceipt(b); err != nil || !reflect.DeepEqual(back, r) {
			t.Fatalf("%+v became %+v: %v", r, back, err)
		}
		for cut := range len(b) {
			if _, err := ParseMailReceipt(b[:cut]); !errors.Is(err, ErrBadMailReceipt) {
				t.Fatalf("cut at %d: %v", cut, err)
			}
		}
		if _, err := ParseMailReceipt(append(bytes.Clone(b), 0)); !errors.Is(err, ErrBadMailReceipt) {
			t.Fatalf("with a trailer: %v", err)
		}
		for bit := range 8 * len(b) {
			b[bit/8] ^= 1 << (bit % 8)
			back, err := ParseMailReceipt(b)
			if err == nil && (reflect.DeepEqual(back, r) || !bytes.Equal(back.Append(nil), b)) {
				t.Fatalf("bit %d flipped and nothing changed", bit)
			}
			if err != nil && !errors.Is(err, ErrBadMailReceipt) {
				t.Fatalf("bit %d flipped: %v is not an error of the package", bit, err)
			}
			b[bit/8] ^= 1 << (bit % 8)
		}
	}
	if b := goldenMailReceipt(); !bytes.Equal(golden(t, "mailreceipt", b.Append(nil)), b.Append(nil)) {
		t.Error("the golden receipt changed")
	}
}

func TestBadMailReceipts(t *testing.T) {
	for name, change := range map[string]func(*MailReceipt){
		"no mail":                func(r *MailReceipt) { r.Statement.Mail = MailID{} },
		"no home":                func(r *MailReceipt) { r.Statement.Home = PeerID{} },
		"no origin":              func(r *MailReceipt) { r.Statement.Origin = PeerID{} },
		"no box":                 func(r *MailReceipt) { r.Statement.Box = "" },
		"a box of two words":     func(r *MailReceipt) { r.Statement.Box = "agent: ceo" },
		"a box of 257 bytes":     func(r *MailReceipt) { r.Statement.Box = strings.Repeat("x", MaxTarget+1) },
		"a time before 1970":     func(r *MailReceipt) { r.Statement.Time = -1 },
		"a class of no chain":    func(r *MailReceipt) { r.Statement.Class = 5 },
		"a number of no chain":   func(r *MailReceipt) { r.Statement.Class = 0 },
		"a chain without number": func(r *MailReceipt) { r.Statement.Number = Seq{} },
		"half a number":          func(r *MailReceipt) { r.Statement.Class, r.Statement.Number.Boot = 0, 0 },
		"a path of 11 steps":     func(r *MailReceipt) { r.Path = make([]byte, maxPath+32) },
	} {
		r := goldenMailReceipt()
		change(&r)
		if _, err := ParseMailReceipt(r.Append(nil)); !errors.Is(err, ErrBadMailReceipt) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzMailReceipt(f *testing.F) {
	r := goldenMailReceipt()
	f.Add(r.Append(nil))
	f.Add(make([]byte, mailStatementFixed+mailProofFixed))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := ParseMailReceipt(b)
		if err == nil && !bytes.Equal(r.Append(nil), b) {
			t.Errorf("%x encodes as %x", b, r.Append(nil))
		}
		if err != nil && !errors.Is(err, ErrBadMailReceipt) {
			t.Errorf("%v is not an error of the package", err)
		}
	})
}
