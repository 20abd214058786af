package proto

import (
	"errors"
	"testing"
)

// offeredLetter is a letter whose body is an object.
func offeredLetter(t testing.TB) []byte {
	l := smallLetter()
	l.Object = LetterObject{Name: [32]byte{1}, Size: 1 << 20}
	return mustLetter(t, l)
}

func TestMailOffer(t *testing.T) {
	letter := offeredLetter(t)
	o, err := OfferedMail{"agent:ceo", 0, letter}.Offer()
	if err != nil {
		t.Fatal(err)
	}
	leased, err := OfferedMail{"agent:ceo", 7, letter}.Offer()
	if err != nil {
		t.Fatal(err)
	}
	if m, _, err := leased.Mail(); err != nil || m.Seq != 7 || leased.GetType() != TypeDeliver {
		t.Errorf("%+v, %v", m, err)
	}
	m, l, err := o.Mail()
	if err != nil || m.Box != "agent:ceo" || l.ID != smallLetter().ID || l.Object.Size != 1<<20 {
		t.Fatalf("%+v, %+v, %v", m, l, err)
	}
	h := l.BodyHeader(77)
	if name, size, ok := h.Object(); !ok || name != l.Object.Name || size != 77 || MailID(h.ID) != l.ID {
		t.Errorf("%+v", h)
	}
	encode := func(b *Bundle) []byte {
		raw, err := Encode(nil, b)
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	for _, tt := range []struct {
		name string
		o    *Offer
		want error
	}{
		{"nothing", &Offer{}, ErrBadMail},
		{"no bundle", &Offer{Envelope: &Envelope{Body: []byte{0xff}}}, ErrMalformed},
		{"no box", &Offer{Envelope: &Envelope{Body: encode(&Bundle{Letters: letter})}}, ErrBadMail},
		{"a header", &Offer{Envelope: &Envelope{Header: []byte{1}, Body: encode(&Bundle{Box: "agent:ceo", Letters: letter})}}, ErrBadMail},
		{"numbers", &Offer{Envelope: &Envelope{Body: encode(&Bundle{Box: "agent:ceo", Letters: letter, Runs: []*Run{{Boot: 1, First: 1, Count: 1}}})}}, ErrBadMail},
		{"no letter", &Offer{Envelope: &Envelope{Body: encode(&Bundle{Box: "agent:ceo"})}}, ErrBadLetter},
		{"two letters", &Offer{Envelope: &Envelope{Body: encode(&Bundle{Box: "agent:ceo", Letters: append(letter, letter...)})}}, ErrBadLetter},
		{"a number of one that is sent", &Offer{Type: TypeBundle, Envelope: &Envelope{Body: encode(&Bundle{Number: 1, Box: "agent:ceo", Letters: letter})}}, ErrBadMail},
		{"no number of one that is leased", &Offer{Type: TypeDeliver, Envelope: &Envelope{Body: encode(&Bundle{Box: "agent:ceo", Letters: letter})}}, ErrBadMail},
		{"an inline body", &Offer{Envelope: &Envelope{Body: encode(&Bundle{Box: "agent:ceo", Letters: mustLetter(t, smallLetter())})}}, ErrBadLetter},
	} {
		if _, _, err := tt.o.Mail(); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, err, tt.want)
		}
	}
}

// FuzzMailOffer reads any bytes as the offer of the body of a mail.
func FuzzMailOffer(f *testing.F) {
	o, err := OfferedMail{"agent:ceo", 0, offeredLetter(f)}.Offer()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(o.GetEnvelope().GetBody())
	f.Fuzz(func(t *testing.T, b []byte) {
		m, l, err := (&Offer{Envelope: &Envelope{Body: b}}).Mail()
		switch {
		case err == nil:
			if m.Box == "" || l.Object.IsZero() || len(l.Body) > 0 {
				t.Errorf("%+v: %+v", m, l)
			}
		case !Malformed(err) && !errors.Is(err, ErrBadMail) && !errors.Is(err, ErrBadLetter) && !errors.Is(err, ErrNewLetter):
			t.Errorf("%v is not an error of the package", err)
		}
	})
}
