//go:build linux

package netfilter

import (
	"golang.org/x/sys/unix"
)

// Holes are the ports that the hosts behind a router have used: [Note] notes the sender of
// what leaves, [Admit] leads what comes to one of these ports to it. The router must keep
// ports: see [MasqueradeKept].
type Holes struct {
	Name       string
	PerAddress bool // a hole admits only packets from addresses that it was used to send to
}

// The registers of the key, one word each, and of the host.
const (
	holeKey  = unix.NFT_REG32_00
	holeHost = unix.NFT_REG32_08
)

// step creates the map of a table: protocol, port and perhaps the remote address to the host.
func (h Holes) step(table string) step {
	const protocol, port, address, bits, flags, room = 12, 13, 7, 6, unix.NFT_SET_MAP | unix.NFT_SET_EVAL, 65_535 // types as nft numbers them
	kind, size := uint32(protocol<<bits|port), uint32(8)
	if h.PerAddress {
		kind, size = kind<<bits|address, size+4
	}
	return step{unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE, join(
		text(unix.NFTA_SET_TABLE, table), text(unix.NFTA_SET_NAME, h.Name), word(unix.NFTA_SET_ID, 1), word(unix.NFTA_SET_FLAGS, flags),
		word(unix.NFTA_SET_KEY_TYPE, kind), word(unix.NFTA_SET_KEY_LEN, size), word(unix.NFTA_SET_DATA_TYPE, address), word(unix.NFTA_SET_DATA_LEN, 4),
		nested(unix.NFTA_SET_DESC, word(unix.NFTA_SET_DESC_SIZE, room)),
	)}
}

// key loads the key of a packet whose inner port and remote address are at these offsets.
func (h Holes) key(port, remote uint32) Part {
	key := join(
		expression("meta", word(unix.NFTA_META_KEY, unix.NFT_META_L4PROTO), word(unix.NFTA_META_DREG, holeKey)),
		payload(holeKey+1, unix.NFT_PAYLOAD_TRANSPORT_HEADER, port, 2),
	)
	if h.PerAddress {
		key = append(key, payload(holeKey+2, unix.NFT_PAYLOAD_NETWORK_HEADER, remote, 4)...)
	}
	return key
}

// Note notes who has sent a packet that leaves, before its address is hidden.
func Note(h Holes) Part {
	return join(h.key(0, 16), payload(holeHost, unix.NFT_PAYLOAD_NETWORK_HEADER, 12, 4),
		expression("dynset", text(unix.NFTA_DYNSET_SET_NAME, h.Name), word(unix.NFTA_DYNSET_OP, unix.NFT_DYNSET_OP_UPDATE),
			word(unix.NFTA_DYNSET_SREG_KEY, holeKey), word(unix.NFTA_DYNSET_SREG_DATA, holeHost)))
}

// Admit leads a packet that comes to a hole, and all packets of its connection, to the host
// that made it.
func Admit(h Holes) Part {
	return join(h.key(2, 12),
		expression("lookup", text(unix.NFTA_LOOKUP_SET, h.Name), word(unix.NFTA_LOOKUP_SREG, holeKey), word(unix.NFTA_LOOKUP_DREG, holeHost)),
		expression("nat", word(unix.NFTA_NAT_TYPE, unix.NFT_NAT_DNAT), word(unix.NFTA_NAT_FAMILY, unix.NFPROTO_IPV4), word(unix.NFTA_NAT_REG_ADDR_MIN, holeHost)))
}
