package proto

import (
	"encoding/hex"
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// The text of these keys matches libp2p. The first key is from its specification, the
// second from RFC 8032.
func TestPeerIDVectors(t *testing.T) {
	for key, want := range map[string]string{
		"1ed1e8fae2c4a144b8be8fd4b47bf3d3b34b871c3cacf6010f0e42d474fce27e": "12D3KooWBtg3aaRMjxwedh83aGiUkwSxDwUZkzuJcfaqUmo7R3pq",
		"d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a": "12D3KooWQK1wnefoLrcVHbbnf5tLzbopUd3K3bFAoJpA7YJgL5pV",
		strings.Repeat("00", 32): "12D3KooW9pNAk8aiBuGVQtWRdbkLmo5qVL3e2h5UxbN2Nz9ttwiw",
		strings.Repeat("ff", 32): "12D3KooWT3gYEvLJyx1FyyHqrmvdy1tMjpgxmu9aSeKMEuafQtyC",
	} {
		b, err := hex.DecodeString(key)
		if err != nil {
			t.Fatal(err)
		}
		p, err := PeerIDFrom(b)
		if err != nil {
			t.Fatal(err)
		}
		if got := p.String(); got != want {
			t.Errorf("key %s is %s, want %s", key, got, want)
		}
		if back, err := ParsePeerID(want); err != nil || back != p {
			t.Errorf("%s became %x: %v", want, back, err)
		}
		if got := hex.EncodeToString(p.Bytes()); got != "002408011220"+key {
			t.Errorf("binary form %s", got)
		}
		if p.Short() != want[46:] {
			t.Errorf("short form %s", p.Short())
		}
	}
}

func TestPeerIDText(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var p PeerID
		drawBytes(t, p[:], "key")
		s := p.String()
		if len(s) != 52 || !strings.HasPrefix(s, "12D3KooW") {
			t.Fatalf("%q", s)
		}
		if back, err := ParsePeerID(s); err != nil || back != p {
			t.Fatalf("%s became %s: %v", s, back, err)
		}
	})
}

// Text with one changed character is refused or names another peer.
func TestBadPeerIDs(t *testing.T) {
	p := PeerID{1, 2, 3}
	good := p.String()
	for at := range len(good) {
		for c := range 256 {
			s := good[:at] + string([]byte{byte(c)}) + good[at+1:]
			back, err := ParsePeerID(s)
			if s != good && err == nil && back == p {
				t.Errorf("%q names the same peer", s)
			}
			if err != nil && (!errors.Is(err, ErrBadPeerID) || !back.IsZero()) {
				t.Errorf("%q: %s, %v", s, back, err)
			}
		}
	}
	for _, s := range []string{
		"", good[:51], good + "1", " " + good[1:], strings.Repeat("1", 52), strings.Repeat("z", 52), strings.ToUpper(good),
		"QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N", // of an RSA key
		"16Uiu2HAm3SsMSDRqWgCUJHwVHSU9hDpSCAdtkGrRKUkFNUKPUJqY",
		strings.Repeat("1", 1<<20),
	} {
		if back, err := ParsePeerID(s); !errors.Is(err, ErrBadPeerID) || !back.IsZero() || len(err.Error()) > 200 {
			t.Errorf("%.60q: %s, %.300v", s, back, err)
		}
	}
	for _, n := range []int{0, 31, 33, 38} {
		if _, err := PeerIDFrom(make([]byte, n)); !errors.Is(err, ErrBadPeerID) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
}
