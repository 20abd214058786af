package proto

import (
	"bytes"
	"errors"
	"math"
	"strings"
	"testing"

	pb "google.golang.org/protobuf/proto"
)

// checkBad changes a good message and wants Check to refuse it with an error.
func checkBad[M pb.Message](t *testing.T, good M, check func(M) error, name string, want error, change func(M)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		if err := check(good); err != nil {
			t.Fatalf("before the change: %v", err)
		}
		m := pb.Clone(good).(M)
		change(m)
		if err := check(m); !errors.Is(err, want) {
			t.Errorf("error %v, want %v", err, want)
		}
	})
}

func TestBadBundles(t *testing.T) {
	good := goldenMail()["bundle"].(*Bundle)
	letter := good.Letters[:len(good.Letters)/2]
	for _, tt := range []struct {
		name   string
		want   error
		change func(*Bundle)
	}{
		{"no number", ErrBadMail, func(b *Bundle) { b.Number = 0 }},
		{"no box", ErrBadMail, func(b *Bundle) { b.Box = "" }},
		{"a long box", ErrBadMail, func(b *Bundle) { b.Box = strings.Repeat("b", MaxTarget+1) }},
		{"a box with a space", ErrBadMail, func(b *Bundle) { b.Box = "agent: x" }},
		{"no class", ErrBadMail, func(b *Bundle) { b.Chain = 0 }},
		{"a class of the future", ErrBadMail, func(b *Bundle) { b.Chain = Low + 1 }},
		{"half a number before it", ErrBadMail, func(b *Bundle) { b.PrevBoot = 0 }},
		{"the other half", ErrBadMail, func(b *Bundle) { b.PrevNumber = 0 }},
		{"prev above the first", ErrBadMail, func(b *Bundle) { b.PrevNumber = 10 }},
		{"prev is the first", ErrBadMail, func(b *Bundle) { b.PrevNumber = 9 }},
		{"no runs", ErrBadMail, func(b *Bundle) { b.Runs, b.Letters = nil, nil }},
		{"an empty run", ErrBadMail, func(b *Bundle) { b.Runs[0].Count = 0 }},
		{"boot 0", ErrBadMail, func(b *Bundle) { b.Runs[0].Boot = 0 }},
		{"number 0", ErrBadMail, func(b *Bundle) { b.Runs[1].First = 0 }},
		{"runs that fall", ErrBadMail, func(b *Bundle) { b.Runs[0], b.Runs[1] = b.Runs[1], b.Runs[0] }},
		{"a run of 2^32", ErrBadMail, func(b *Bundle) { b.Runs[0].Count = math.MaxUint32 }},
		{"beyond 64 bits", ErrBadMail, func(b *Bundle) { b.Runs[1].First, b.Runs[1].Count = math.MaxUint64, 2 }},
		{"513 mails", ErrBadMail, func(b *Bundle) { b.Runs[0].Count = MaxBundle }},
		{"more letters than numbers", ErrBadMail, func(b *Bundle) { b.Letters = append(b.Letters, letter...) }},
		{"fewer letters than numbers", ErrBadLetter, func(b *Bundle) { b.Letters = letter }},
		{"a letter that is cut", ErrBadLetter, func(b *Bundle) { b.Letters = b.Letters[:len(b.Letters)-1] }},
		{"a letter of a later version", ErrNewLetter, func(b *Bundle) { b.Letters = append([]byte{Version + 1}, b.Letters[1:]...) }},
	} {
		checkBad(t, good, (*Bundle).Check, tt.name, tt.want, tt.change)
	}
}

func TestAFullBundle(t *testing.T) {
	letter, err := AppendLetter(nil, &Letter{Class: Low, ID: MailID{1}, Created: 1, NotAfter: 2, Body: make([]byte, 400)})
	if err != nil {
		t.Fatal(err)
	}
	b := &Bundle{Number: 1, Box: "agent:a", Chain: Low, Runs: []*Run{{Boot: 1, First: math.MaxUint64 - MaxBundle, Count: MaxBundle}}, Letters: bytes.Repeat(letter, MaxBundle)}
	if err := b.Check(); err != nil {
		t.Error(err)
	}
	payload, err := Encode(nil, b)
	if err != nil {
		t.Fatal(err)
	}
	if frame, err := AppendFrame(nil, &Message{Type: TypeBundle, Payload: payload}); err != nil || len(frame) > MaxFrame {
		t.Errorf("its frame has %d bytes: %v", len(frame), err)
	}
}

// The largest letter fits into a bundle with the most runs, and that into a frame.
func TestTheLargestLetterFitsIntoAFrame(t *testing.T) {
	b := &Bundle{Number: math.MaxUint64, Box: strings.Repeat("b", MaxTarget), Chain: Low, PrevBoot: math.MaxUint64, PrevNumber: math.MaxUint64, Letters: make([]byte, MaxLetters)}
	for range MaxBundle {
		b.Runs = append(b.Runs, &Run{Boot: math.MaxUint64, First: math.MaxUint64, Count: math.MaxUint32})
	}
	payload, err := Encode(nil, b)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := AppendFrame(nil, &Message{Type: TypeBundle, Payload: payload}); err != nil {
		t.Error(err)
	}
}

func TestBadAnswersToBundles(t *testing.T) {
	good, moved := goldenMail()["bundled"].(*Bundled), goldenMail()["bundled_moved"].(*Bundled)
	for _, tt := range []struct {
		name   string
		good   *Bundled
		change func(*Bundled)
	}{
		{"no number", good, func(b *Bundled) { b.Number = 0 }},
		{"half a number", good, func(b *Bundled) { b.Boot = 0 }},
		{"nothing done and no code", moved, func(b *Bundled) { b.Code, b.Home = CodeOK, nil }},
		{"moved to nobody", moved, func(b *Bundled) { b.Home = nil }},
		{"moved to half a peer", moved, func(b *Bundled) { b.Home = b.Home[:16] }},
		{"full, and a home", good, func(b *Bundled) { b.Home = seq(5, 32) }},
		{"refused for now", good, func(b *Bundled) { b.Skipped[0].Code = CodeBusy }},
		{"refused and taken", good, func(b *Bundled) { b.Skipped[0].Code = CodeOK }},
		{"refused above the last", good, func(b *Bundled) { b.Skipped[0].Number = 10 }},
		{"refused twice", good, func(b *Bundled) { b.Skipped = append(b.Skipped, b.Skipped[0]) }},
		{"refused without a number", good, func(b *Bundled) { b.Skipped[0].Number = 0 }},
	} {
		checkBad(t, tt.good, (*Bundled).Check, tt.name, ErrBadMail, tt.change)
	}
}

func TestCutLetter(t *testing.T) {
	both := goldenMail()["bundle"].(*Bundle).Letters
	first, rest, err := CutLetter(both)
	if err != nil || len(first) != len(both)/2 || cap(first) != len(first) || !bytes.Equal(first, rest) {
		t.Errorf("cut into %d and %d bytes: %v", len(first), len(rest), err)
	}
	for n := range first {
		if _, _, err := CutLetter(first[:n]); !errors.Is(err, ErrBadLetter) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
}

// FuzzCutLetter checks that what is cut is what ParseLetter reads as one letter.
func FuzzCutLetter(f *testing.F) {
	f.Add(goldenMail()["bundle"].(*Bundle).Letters)
	f.Add(bytes.Repeat([]byte{Version}, LetterFixed))
	f.Fuzz(func(t *testing.T, b []byte) {
		letter, rest, err := CutLetter(b)
		if err != nil {
			if !errors.Is(err, ErrBadLetter) && !errors.Is(err, ErrNewLetter) {
				t.Errorf("%v is not an error of the package", err)
			}
			if _, parseErr := ParseLetter(b); parseErr == nil {
				t.Errorf("a letter is not cut: %v", err)
			}
			return
		}
		if len(letter)+len(rest) != len(b) {
			t.Errorf("%d bytes cut into %d and %d", len(b), len(letter), len(rest))
		}
		if _, err := ParseLetter(b); err == nil && len(rest) > 0 {
			t.Errorf("one letter is cut before its last %d bytes", len(rest))
		}
	})
}

// FuzzMailMessages decodes and checks arbitrary bytes as each message about mail.
func FuzzMailMessages(f *testing.F) {
	for name, m := range goldenMail() {
		f.Add(name, marshal(f, m))
	}
	f.Fuzz(func(t *testing.T, name string, b []byte) {
		good := goldenMail()[name]
		if good == nil {
			return
		}
		m := good.ProtoReflect().New().Interface()
		if DecodeKnown(b, m) != nil {
			return
		}
		var err error
		switch m := m.(type) {
		case *Bundle:
			err = m.Check()
		case *Bundled:
			err = m.Check()
		case *Open:
			err = m.Check()
		case *Opened:
			err = m.Check()
		case *Deliver:
			err = m.Check()
		case *Settle:
			err = m.Check()
		case *Settled:
			err = m.Check(MaxBundle)
		}
		if err != nil && !errors.Is(err, ErrBadMail) && !errors.Is(err, ErrBadLetter) && !errors.Is(err, ErrNewLetter) {
			t.Errorf("%v is not an error of the package", err)
		}
	})
}
