package identity

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/balefire/balefire/proto"
)

var homeAddrs = []string{
	"/ip4/192.168.1.20/udp/4242/quic-v1",
	"/ip4/192.168.1.20/tcp/4242",
	"/ip6/2001:db8::17/udp/4242/quic-v1",
	"/dns/home.example/tcp/443",
}

func someTicket() (Ticket, *Root) {
	root := NewRoot(nil)
	return NewTicket(root.Mesh(), NewKeys(nil, today).Peer(), homeAddrs, today.Add(time.Hour)), root
}

func TestTicketComesBackAsItWas(t *testing.T) {
	want, root := someTicket()
	text := want.Encode()
	spaced := ""
	for i, c := range strings.ToLower(text) {
		if i%13 == 12 {
			spaced += "-\n  "
		}
		spaced += string(c)
	}
	for name, in := range map[string]string{"as it is": text, "lower case, broken into lines": spaced, "with a line end": text + "\r\n"} {
		got, err := ParseTicket(in)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if !got.Expires.Equal(want.Expires) {
			t.Errorf("%s: expires %v, want %v", name, got.Expires, want.Expires)
		}
		got.Expires = want.Expires
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: ticket = %#v, want %#v", name, got, want)
		}
	}
	if strings.Trim(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789") != "" || len(text) > 210 {
		t.Errorf("%d characters, or characters other than letters and digits: %s", len(text), text)
	}
	if want.Expired(want.Expires) || !want.Expired(want.Expires.Add(time.Second)) {
		t.Error("a ticket does not expire at the stated time")
	}
	if mesh, err := want.Admits(root.Mesh().Root); err != nil || mesh.ID != want.Mesh {
		t.Errorf("its own mesh: %v", err)
	}
	if _, err := want.Admits(NewRoot(nil).Mesh().Root); !errors.Is(err, ErrWrongMesh) {
		t.Errorf("another mesh: %v", err)
	}
}

// A ticket keeps the addresses that fit, from the front, and never grows
// beyond 128 bytes.
func TestTicketKeepsTheAddressesThatFit(t *testing.T) {
	var many []string
	for i := range 40 {
		many = append(many, fmt.Sprintf("/ip4/10.0.0.%d/tcp/%d", i+1, 1000+i))
	}
	tests := []struct {
		name     string
		in, want []string
	}{
		{"none", nil, nil},
		{"two of IPv6", []string{"/ip6/2001:db8::1/tcp/1", "/ip6/2001:db8::2/tcp/2"}, []string{"/ip6/2001:db8::1/tcp/1", "/ip6/2001:db8::2/tcp/2"}},
		{"forty", many, many[:6]},
		{"a long one does not keep out a short one", []string{"/dns/" + strings.Repeat("a", 38) + "/tcp/1", "/ip6/2001:db8::1/tcp/1", "/ip4/1.2.3.4/tcp/1"},
			[]string{"/dns/" + strings.Repeat("a", 38) + "/tcp/1"}},
		{"with the inviter's name", []string{"/ip4/1.2.3.4/tcp/4/p2p/12D3Koo"}, []string{"/ip4/1.2.3.4/tcp/4"}},
		{"duplicates", []string{"/ip4/1.2.3.4/tcp/4", "/ip4/1.2.3.4/tcp/4"}, []string{"/ip4/1.2.3.4/tcp/4"}},
		{"names", []string{"/dns4/a.example/tcp/4", "/dns6/b.example/tcp/5"}, []string{"/dns4/a.example/tcp/4", "/dns6/b.example/tcp/5"}},
		{"useless", []string{
			"", "/", "x", "/ip4/1.2.3.4", "/ip4/1.2.3.4/tcp/0", "/ip4/1.2.3.4/tcp/65536", "/ip4/1.2.3.4/tcp/+4", "/ip4/1.2.3.4/tcp/04",
			"/ip4/0.0.0.0/tcp/4", "/ip6/::/tcp/4", "/ip6/::ffff:1.2.3.4/tcp/4", "/ip6/fe80::1%eth0/tcp/4", "/ip6/2001:DB8::1/tcp/4",
			"/ip4/1.2.3.4/udp/4", "/ip4/1.2.3.4/udp/4/quic", "/ip4/1.2.3.4/tcp/4/ws", "/ip4/1.2.3.4/sctp/4", "/ip4/2001:db8::1/tcp/4",
			"/dns/a..example/tcp/4", "/dns/UPPER/tcp/4", "/dns//tcp/4", "/dns/" + strings.Repeat("a.", 30) + "a/tcp/4", "/unix/a/tcp/4",
			"/ip4/1.2.3.4/udp/4/quic-v1/p2p/X/p2p-circuit"}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			ticket, _ := someTicket()
			ticket.Addrs = tt.in
			text := ticket.Encode()
			if n := ticketText.DecodedLen(len(text) - len(ticketPrefix)); n > maxTicket {
				t.Errorf("%d bytes", n)
			}
			got, err := ParseTicket(text)
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got.Addrs, tt.want) {
				t.Errorf("addresses = %q, want %q", got.Addrs, tt.want)
			}
		})
	}
}

// Every transcription error is detected and named.
func TestBadTicketsAreRefused(t *testing.T) {
	ticket, _ := someTicket()
	good := ticket.Encode()
	weak := ticket
	weak.Inviter = proto.PeerID{1}
	// again builds a ticket with other addresses and the right length and checksum.
	again := func(change func([]byte) []byte) string {
		b, err := ticketText.DecodeString(good[len(ticketPrefix):])
		if err != nil {
			t.Fatal(err)
		}
		b = change(b[: ticketFixed-4 : ticketFixed-4])
		b[0] = byte(len(b) + 4)
		return ticketPrefix + ticketText.EncodeToString(append(b, ticketSum(b)...))
	}
	tests := []struct{ name, text, says string }{
		{"nothing", "", "empty"},
		{"blanks", " \n\t", "empty"},
		{"something else", "hello", "begins with"},
		{"a later version", "BALE2" + good[5:], "begins with"},
		{"only the prefix", ticketPrefix, "cut short"},
		{"one character", good[:6], "cut short"},
		{"half", good[:len(good)/2], "cut short"},
		{"the last character missing", good[:len(good)-1], "cut short"},
		{"one character more", good + "A", "too many"},
		{"twice", good + good, "mistyped"},
		{"zero for O", good[:20] + "0" + good[21:], "character 21"},
		{"an umlaut", good[:20] + "Ä" + good[21:], "character 21"},
		{"a NUL", good[:20] + "\x00" + good[21:], "character 21"},
		{"of length zero", "BALE1AA" + good[7:], "first characters"},
		{"of length 255", "BALE177" + good[7:], "first characters"},
		{"longer than any text", strings.Repeat("A", maxTicketIn+1), "too long"},
		{"a weak inviter", weak.Encode(), "small order"},
		{"an address of no kind", again(func(b []byte) []byte { return append(b, 0x80, 1, 'a', 0, 1) }), "bad address"},
		{"an address cut short", again(func(b []byte) []byte { return append(b, 0x81, 1, 2) }), "bad address"},
		{"an address without transport", again(func(b []byte) []byte { return append(b, 1, 1, 2, 3, 4, 0, 1) }), "bad address"},
		{"an address without port", again(func(b []byte) []byte { return append(b, 0x81, 1, 2, 3, 4, 0, 0) }), "bad address"},
		{"an address that is a path", again(func(b []byte) []byte { return append(b, 0x83, 3, 'a', '/', 'b', 0, 1) }), "bad address"},
		{"a name without a length", again(func(b []byte) []byte { return append(b, 0x83) }), "bad address"},
		{"the same address twice", again(func(b []byte) []byte {
			return append(b, 0x81, 9, 9, 9, 9, 0, 1, 0x81, 9, 9, 9, 9, 0, 1)
		}), "canonical"},
		{"two transports apart", again(func(b []byte) []byte {
			return append(b, 0x41, 9, 9, 9, 9, 0, 1, 0x81, 9, 9, 9, 9, 0, 1)
		}), "canonical"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := ParseTicket(tt.text)
			if !errors.Is(err, ErrTicket) || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("err = %v, want ErrTicket that says %q", err, tt.says)
			}
		})
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
	for i := range len(good) {
		if _, err := ParseTicket(good[:i]); !errors.Is(err, ErrTicket) {
			t.Errorf("cut after %d: %v", i, err)
		}
		for range 20 { // one character, or two adjacent ones swapped
			b := []byte(good)
			b[i] = letters[rnd.IntN(len(letters))]
			if j := rnd.IntN(len(b)); rnd.IntN(4) == 0 {
				b[i], b[j] = good[j], good[i]
			}
			if _, err := ParseTicket(string(b)); string(b) != good && !errors.Is(err, ErrTicket) {
				t.Errorf("mistyped at %d: %v", i, err)
			}
		}
	}
}

// No way of printing a ticket or keys reveals their secrets.
func TestSecretsAreNotPrinted(t *testing.T) {
	ticket, root := someTicket()
	keys := NewKeys(nil, today)
	asJSON, err := json.Marshal(map[string]any{"ticket": ticket, "pointer": &ticket, "keys": keys, "root": root})
	if err != nil {
		t.Fatal(err)
	}
	for _, printed := range []string{
		fmt.Sprint(ticket), fmt.Sprintf("%+v %#v %s %q %x", ticket, ticket, ticket, ticket, ticket), fmt.Sprintf("%+v", &ticket),
		fmt.Sprintf("%v %+v %#v %s", keys, keys, keys, keys), fmt.Sprintf("%v %+v %#v %s", root, root, root, root), string(asJSON),
	} {
		for _, secret := range [][]byte{ticket.Secret[:], keys.private.Seed(), root.private.Seed()} {
			for _, shown := range []string{
				string(secret), fmt.Sprintf("%x", secret), fmt.Sprintf("%X", secret), strings.Trim(fmt.Sprint(secret), "[]"),
				strings.ReplaceAll(strings.Trim(fmt.Sprint(secret), "[]"), " ", ","), ticketText.EncodeToString(secret), ticket.Encode(),
			} {
				if strings.Contains(printed, shown) {
					t.Errorf("%.80q shows a secret", printed)
				}
			}
		}
	}
}

// The picture fits a terminal of 80 columns and 40 lines, border included.
func TestQRFitsATerminal(t *testing.T) {
	ticket, _ := someTicket()
	lines := strings.Split(strings.TrimSuffix(QR(ticket), "\n"), "\n")
	width := utf8.RuneCountInString(lines[0])
	if width > 65 || len(lines) > 33 || (width+1)/2 != len(lines) {
		t.Errorf("%d columns, %d lines", width, len(lines))
	}
	for i, line := range lines {
		if utf8.RuneCountInString(line) != width || strings.Trim(line, " █▀▄") != "" {
			t.Fatalf("line %d is not a row of dots: %q", i, line)
		}
	}
}

// A proof holds for one secret, one joiner and one inviter.
func TestJoinProof(t *testing.T) {
	ticket, _ := someTicket()
	joiner, other := NewKeys(nil, today).Peer(), NewKeys(nil, today).Peer()
	proof := JoinProof(ticket.Secret, joiner, ticket.Inviter)
	if !CheckJoinProof(ticket.Secret, joiner, ticket.Inviter, proof) {
		t.Error("a good proof is refused")
	}
	wrong := ticket.Secret
	wrong[0] ^= 1
	for name, ok := range map[string]bool{
		"another secret":    CheckJoinProof(wrong, joiner, ticket.Inviter, proof),
		"another joiner":    CheckJoinProof(ticket.Secret, other, ticket.Inviter, proof),
		"another inviter":   CheckJoinProof(ticket.Secret, joiner, other, proof),
		"changed places":    CheckJoinProof(ticket.Secret, ticket.Inviter, joiner, proof),
		"cut short":         CheckJoinProof(ticket.Secret, joiner, ticket.Inviter, proof[:31]),
		"nothing":           CheckJoinProof(ticket.Secret, joiner, ticket.Inviter, nil),
		"the secret itself": CheckJoinProof(ticket.Secret, joiner, ticket.Inviter, ticket.Secret[:]),
	} {
		if ok {
			t.Errorf("%s: accepted", name)
		}
	}
}
