package asnutil

import (
	"bytes"
	"compress/flate"
	"crypto/sha256"
	"encoding/binary"
	"flag"
	"fmt"
	"math/bits"
	"net"
	"os"
	"testing"
)

// original is the digest of sorted-network-list.bin of go-libp2p-asn-util v0.4.1.
const original = "858da2ac9b97728971753f7d858e6a946178a9456a2dbaf5787781e4ebe2186e"

var from = flag.String("from", "", "writes networks.bin from this sorted-network-list.bin")

// pack returns the entries as columns that compress well: how many entries; the trailing
// zeros of each distance from the entry before, and of each length; the four bytes of the
// AS numbers; then distance and length without their zeros.
func pack(entries []byte) []byte {
	n := len(entries) / entrySize
	cols := binary.LittleEndian.AppendUint32(nil, uint32(n))
	zeros, asns, rest := make([]byte, 2*n), make([]byte, 4*n), []byte(nil)
	var next uint64
	for i := range n {
		e := entries[i*entrySize:]
		first, last := binary.LittleEndian.Uint64(e), binary.LittleEndian.Uint64(e[8:])
		gap, length := first-next, last+1-first
		next = last + 1
		for col, v := range [2]uint64{gap, length} {
			z := bits.TrailingZeros64(v) % 64
			zeros[col*n+i] = byte(z)
			rest = binary.AppendUvarint(rest, v>>z)
		}
		for col := range 4 {
			asns[col*n+i] = e[16+col]
		}
	}
	return append(append(append(cols, zeros...), asns...), rest...)
}

// TestNetworksAreTheOriginal also rewrites networks.bin with -from.
func TestNetworksAreTheOriginal(t *testing.T) {
	if *from != "" {
		entries, err := os.ReadFile(*from)
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		w, _ := flate.NewWriter(&out, flate.BestCompression)
		_, _ = w.Write(pack(entries))
		_ = w.Close()
		packed = out.Bytes()
		if err := os.WriteFile("networks.bin", packed, 0o644); err != nil {
			t.Fatal(err)
		}
		t.Logf("%d bytes of %d", len(packed), len(entries))
	}
	if got := fmt.Sprintf("%x", sha256.Sum256(dataset())); got != original {
		t.Errorf("the unpacked networks have SHA-256 %s, the original %s", got, original)
	}
}

func TestAsnForIPv6(t *testing.T) {
	tests := []struct {
		ip   string
		want uint32
	}{
		{"2001:4860:4860::8888", 15169}, // three as in the test of the original
		{"2a03:2880:f003:c07:face:b00c::2", 32934},
		{"2601::", 7922},
		{"::", 0},
		{"fe80::1", 0},
		{"ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", 0},
	}
	for _, tt := range tests {
		if got := AsnForIPv6(net.ParseIP(tt.ip)); got != tt.want {
			t.Errorf("AsnForIPv6(%s) = %d, want %d", tt.ip, got, tt.want)
		}
	}
	if got := AsnForIPv6(net.IP{1}); got != 0 {
		t.Errorf("AsnForIPv6 of no address = %d, want 0", got)
	}
	all := dataset()
	for i := 0; i < len(all); i += entrySize {
		first, last, asn := binary.LittleEndian.Uint64(all[i:]), binary.LittleEndian.Uint64(all[i+8:]), binary.LittleEndian.Uint32(all[i+16:])
		if AsnForIPv6Network(first) != asn || AsnForIPv6Network(last) != asn {
			t.Fatalf("network %x-%x does not have AS number %d", first, last, asn)
		}
	}
}
