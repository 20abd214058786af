// Package asnutil takes the place of github.com/libp2p/go-libp2p-asn-util: see
// third_party/README.md. It has the same networks, compressed: 200 KB of the program instead
// of 1.6 MB. They are unpacked at the first lookup, which a node makes when it is a relay
// and a peer with an IPv6 address asks for a reservation.
package asnutil

import (
	"bytes"
	"compress/flate"
	_ "embed" // networks.bin
	"encoding/binary"
	"io"
	"net"
	"sort"
	"sync"
)

//go:embed networks.bin
var packed []byte

const entrySize = 8 + 8 + 4 // first and last network, their AS number; little endian

// dataset returns the entries of the original, sorted by network.
var dataset = sync.OnceValue(func() []byte {
	cols, err := io.ReadAll(flate.NewReader(bytes.NewReader(packed)))
	if err != nil {
		panic("networks.bin: " + err.Error()) // a test unpacks it
	}
	return unpack(cols)
})

// unpack reads the columns that pack wrote.
func unpack(cols []byte) []byte {
	n := int(binary.LittleEndian.Uint32(cols))
	zeros, cols := cols[4:4+2*n], cols[4+2*n:]
	asns, cols := cols[:4*n], cols[4*n:]
	out := make([]byte, 0, n*entrySize)
	var next uint64
	for i := range n {
		gap, size := binary.Uvarint(cols)
		cols = cols[size:]
		length, size := binary.Uvarint(cols)
		cols = cols[size:]
		first := next + gap<<zeros[i]
		next = first + length<<zeros[n+i]
		out = binary.LittleEndian.AppendUint64(out, first)
		out = binary.LittleEndian.AppendUint64(out, next-1)
		out = append(out, asns[i], asns[n+i], asns[2*n+i], asns[3*n+i])
	}
	return out
}

// AsnForIPv6 returns the AS number of the network of this IPv6 address, 0 if there is none.
func AsnForIPv6(ip net.IP) uint32 {
	if ip = ip.To16(); ip == nil {
		return 0
	}
	return AsnForIPv6Network(binary.BigEndian.Uint64(ip))
}

// AsnForIPv6Network returns the AS number of the network with these first 64 bits, 0 if
// there is none.
func AsnForIPv6Network(network uint64) uint32 {
	all := dataset()
	entry := func(i int) []byte { return all[i*entrySize:] }
	n := len(all) / entrySize
	i := sort.Search(n, func(i int) bool { return binary.LittleEndian.Uint64(entry(i)[8:]) >= network })
	if i == n || binary.LittleEndian.Uint64(entry(i)) > network {
		return 0
	}
	return binary.LittleEndian.Uint32(entry(i)[16:])
}
