package identity

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"
	"unicode"

	"github.com/skip2/go-qrcode"

	"github.com/balefire/balefire/proto"
)

// ErrTicket is returned for text that is not a ticket, with the reason. An expired ticket
// is still a ticket; see Ticket.Expired.
var ErrTicket = errors.New("identity: not a ticket")

// A Ticket invites one node to a mesh. Its binary form is
//
//	length 1 | mesh 16 | root fingerprint 8 | inviter 32 | secret 16 |
//	expires 4 | addresses | checksum 4
//
// of at most 128 bytes, big endian, in upper-case base32 behind BALE1. A ticket
// has one text form.
type Ticket struct {
	Mesh            proto.MeshID
	RootFingerprint [8]byte  // see Mesh.Fingerprint
	Addrs           []string // multiaddrs of the inviter, best first
	Inviter         proto.PeerID
	Secret          [16]byte // a node that proves knowledge of it is admitted, once
	ID              [8]byte  // derived from the secret without revealing it
	Expires         time.Time
}

const (
	ticketPrefix = "BALE1"
	ticketFixed  = 1 + 16 + 8 + 32 + 16 + 4 + 4
	maxTicket    = 128 // bytes of the binary form
	maxTicketIn  = 4 << 10
)

var ticketText = base32.StdEncoding.WithPadding(base32.NoPadding)

// NewTicket returns a new invitation by inviter, which is reachable at addrs.
func NewTicket(mesh Mesh, inviter proto.PeerID, addrs []string, expires time.Time) Ticket {
	t := Ticket{
		Mesh: mesh.ID, RootFingerprint: mesh.Fingerprint(), Addrs: addrs, Inviter: inviter,
		Expires: expires.Truncate(time.Second),
	}
	rand.Read(t.Secret[:])
	t.ID = ticketID(t.Secret)
	return t
}

func ticketID(secret [16]byte) [8]byte {
	sum := sha256.Sum256(append([]byte(domainTicket+"id"), secret[:]...))
	return [8]byte(sum[:8])
}

func ticketSum(b []byte) []byte {
	sum := sha256.Sum256(append([]byte(domainTicket+"sum"), b...))
	return sum[:4]
}

// Expired reports whether t has expired. The inviter decides by its own clock; other
// nodes only warn.
func (t Ticket) Expired(now time.Time) bool { return now.After(t.Expires) }

// Admits returns the mesh of a root key, or ErrWrongMesh if that is not the
// mesh that t invites to.
func (t Ticket) Admits(root ed25519.PublicKey) (Mesh, error) {
	mesh, err := NewMesh(root)
	if err != nil {
		return Mesh{}, err
	}
	if mesh.ID != t.Mesh || mesh.Fingerprint() != t.RootFingerprint {
		return Mesh{}, fmt.Errorf("%w: the ticket is for mesh %s", ErrWrongMesh, t.Mesh)
	}
	return mesh, nil
}

// String names the ticket without its secret.
func (t Ticket) String() string {
	return fmt.Sprintf("ticket %x for mesh %s until %s", t.ID, t.Mesh, t.Expires.UTC().Format(time.RFC3339))
}

// GoString is String: debug output must not contain the secret.
func (t Ticket) GoString() string { return t.String() }

// MarshalText is String, for logs. See Encode for the ticket itself.
func (t Ticket) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// Encode returns the text form: letters and digits, at most 210. It keeps as many of the
// addresses as fit, from the front: IPv4, IPv6 and DNS names with TCP or QUIC. Two that
// differ only in the transport take the space of one.
func (t Ticket) Encode() string {
	b := make([]byte, 1, maxTicket)
	b = append(b, t.Mesh[:]...)
	b = append(b, t.RootFingerprint[:]...)
	b = append(b, t.Inviter[:]...)
	b = append(b, t.Secret[:]...)
	b = binary.BigEndian.AppendUint32(b, uint32(min(max(t.Expires.Unix(), 0), math.MaxUint32)))
	b = appendAddrs(b, t.Addrs, maxTicket-4)
	b[0] = byte(len(b) + 4)
	return ticketPrefix + ticketText.EncodeToString(append(b, ticketSum(b)...))
}

// ParseTicket parses the output of Encode, in upper or lower case, with blanks, line
// breaks and hyphens anywhere.
func ParseTicket(text string) (Ticket, error) {
	if len(text) > maxTicketIn {
		return Ticket{}, fmt.Errorf("%w: %d characters is too long", ErrTicket, len(text))
	}
	text = strings.ToUpper(strings.Map(func(r rune) rune {
		if r == '-' || unicode.IsSpace(r) {
			return -1
		}
		return r
	}, text))
	b, err := ticketBytes(text)
	if err != nil {
		return Ticket{}, err
	}
	t, err := ticketOf(b)
	if err != nil {
		return Ticket{}, err
	}
	if t.Encode() != text {
		return Ticket{}, fmt.Errorf("%w: it is not in canonical form", ErrTicket)
	}
	return t, nil
}

// ticketBytes returns the binary form after checking its length and checksum.
func ticketBytes(text string) ([]byte, error) {
	code, ok := strings.CutPrefix(text, ticketPrefix)
	switch {
	case text == "":
		return nil, fmt.Errorf("%w: it is empty", ErrTicket)
	case !ok:
		return nil, fmt.Errorf("%w: a ticket begins with %s", ErrTicket, ticketPrefix)
	}
	for i, c := range []byte(code) {
		if (c < 'A' || c > 'Z') && (c < '2' || c > '7') {
			return nil, fmt.Errorf("%w: character %d, %q, is mistyped: only A to Z and 2 to 7 are valid", ErrTicket, i+len(ticketPrefix)+1, c)
		}
	}
	if len(code) < 2 {
		return nil, fmt.Errorf("%w: it is cut short", ErrTicket)
	}
	// The first two characters hold the length.
	want := ticketText.EncodedLen(digit(code[0])<<3 | digit(code[1])>>2)
	switch {
	case want < ticketText.EncodedLen(ticketFixed) || want > ticketText.EncodedLen(maxTicket):
		return nil, fmt.Errorf("%w: its first characters are mistyped", ErrTicket)
	case len(code) < want:
		return nil, fmt.Errorf("%w: it is cut short, %d of %d characters are here", ErrTicket, len(code), want)
	case len(code) > want:
		return nil, fmt.Errorf("%w: it has %d characters too many", ErrTicket, len(code)-want)
	}
	b, err := ticketText.DecodeString(code)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrTicket, err)
	}
	n := len(b) - 4
	if !bytes.Equal(b[n:], ticketSum(b[:n])) {
		return nil, fmt.Errorf("%w: a character is mistyped: the checksum does not match", ErrTicket)
	}
	return b[:n], nil
}

// digit returns the value of a base32 digit.
func digit(c byte) int {
	if c >= 'A' {
		return int(c - 'A')
	}
	return int(c-'2') + 26
}

// ticketOf parses the binary form without its checksum.
func ticketOf(b []byte) (Ticket, error) {
	var t Ticket
	r := b[1:]
	for _, field := range [][]byte{t.Mesh[:], t.RootFingerprint[:], t.Inviter[:], t.Secret[:]} {
		r = r[copy(field, r):]
	}
	t.ID = ticketID(t.Secret)
	t.Expires = time.Unix(int64(binary.BigEndian.Uint32(r)), 0)
	if err := checkKey(t.Inviter); err != nil {
		return Ticket{}, fmt.Errorf("%w: inviter: %w", ErrTicket, err)
	}
	var err error
	t.Addrs, err = parseAddrs(r[4:])
	return t, err
}

// QR returns t as a QR code for a terminal, two modules high per character. With its
// border it is at most 65 characters wide.
func QR(t Ticket) string {
	code, err := qrcode.New(t.Encode(), qrcode.Low)
	if err != nil {
		panic("identity: " + err.Error()) // 210 letters always fit
	}
	return code.ToSmallString(false)
}
