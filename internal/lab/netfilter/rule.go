//go:build linux

package netfilter

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

// A Table is a named set of chains of one family.
type Table struct {
	Family Family
	Name   string
	Holes  []Holes
	Chains []Chain
}

// A Family is the set of packets that a table sees.
type Family byte

// The families: packets of IPv4, or of IPv4 and IPv6, that this network routes, and frames
// that a bridge of it passes on.
const (
	IPv4   Family = unix.NFPROTO_IPV4
	Inet   Family = unix.NFPROTO_INET
	Bridge Family = unix.NFPROTO_BRIDGE
)

// A Chain is a list of rules at a hook. A packet that no rule drops continues.
type Chain struct {
	Name     string
	NAT      bool // the rules translate addresses instead of filtering
	Hook     Hook
	Priority int32 // chains of one hook are passed from the lowest up
	Rules    []Rule
}

// A Hook is a place in the kernel's packet path.
type Hook uint32

// The hooks, in the order of a forwarded packet. Output is that of packets made here.
const (
	Prerouting  Hook = unix.NF_INET_PRE_ROUTING
	Input       Hook = unix.NF_INET_LOCAL_IN
	Forward     Hook = unix.NF_INET_FORWARD
	Output      Hook = unix.NF_INET_LOCAL_OUT
	Postrouting Hook = unix.NF_INET_POST_ROUTING
)

// A Rule is a list of matches followed by an action for packets that meet all of them.
type Rule []Part

// A Part is one match or verdict: expressions in the kernel's form.
type Part = []byte

// The one register that every expression uses, and the verdict register.
const (
	register = 1
	verdict  = 0
)

// Enters matches packets that arrive at the interface.
func Enters(dev string) Part { return meta(unix.NFT_META_IIFNAME, device(dev)) }

// Leaves matches packets that leave by the interface.
func Leaves(dev string) Part { return meta(unix.NFT_META_OIFNAME, device(dev)) }

// From matches IPv4 packets whose source is in p.
func From(p netip.Prefix) Part { return address(p, 12) }

// To matches IPv4 packets whose destination is in p.
func To(p netip.Prefix) Part { return address(p, 16) }

// Routable matches all packets of IPv4: on a bridge ARP still passes when those are
// dropped.
func Routable() Part {
	return meta(unix.NFT_META_PROTOCOL, []byte{unix.ETH_P_IP >> 8, unix.ETH_P_IP & 0xff})
}

// Unsolicited matches packets that do not belong to a known connection.
func Unsolicited() Part { return inState(1 << 3) }

// Invalid matches packets that do not fit the state of their connection, of which the kernel
// translates no address.
func Invalid() Part { return inState(1 << 0) }

// inState matches packets whose connection has this bit of the state, in the kernel's own byte order.
func inState(bit uint32) Part {
	return join(
		connection(unix.NFT_CT_STATE, bit),
		compare(unix.NFT_CMP_NEQ, make([]byte, 4)),
	)
}

// Unexposed matches packets of connections without a [Redirect].
func Unexposed() Part {
	const led = 1 << 5 // the bit of a connection whose destination was changed
	return join(
		connection(unix.NFT_CT_STATUS, led),
		compare(unix.NFT_CMP_EQ, make([]byte, 4)),
	)
}

// connection loads bits of what the kernel remembers of a packet's connection.
func connection(key, bits uint32) []byte {
	return join(
		expression("ct", word(unix.NFTA_CT_DREG, register), word(unix.NFTA_CT_KEY, key)),
		masked(binary.NativeEndian.AppendUint32(nil, bits)),
	)
}

// Over matches packets of an IP protocol, by number.
func Over(protocol byte) Part { return meta(unix.NFT_META_L4PROTO, []byte{protocol}) }

// ToPort matches UDP or TCP packets to a port.
func ToPort(port uint16) Part {
	return join(
		payload(register, unix.NFT_PAYLOAD_TRANSPORT_HEADER, 2, 2),
		compare(unix.NFT_CMP_EQ, binary.BigEndian.AppendUint16(nil, port)),
	)
}

// Redirect changes the destination of a packet and of all packets of its connection.
func Redirect(to netip.AddrPort) Part {
	const second = register + 1
	load := func(into uint32, value []byte) []byte {
		return expression("immediate", word(unix.NFTA_IMMEDIATE_DREG, into),
			nested(unix.NFTA_IMMEDIATE_DATA, attribute(unix.NFTA_DATA_VALUE, value)))
	}
	ip := to.Addr().As4()
	return join(
		load(register, ip[:]), load(second, binary.BigEndian.AppendUint16(nil, to.Port())),
		expression("nat", word(unix.NFTA_NAT_TYPE, unix.NFT_NAT_DNAT), word(unix.NFTA_NAT_FAMILY, unix.NFPROTO_IPV4),
			word(unix.NFTA_NAT_REG_ADDR_MIN, register), word(unix.NFTA_NAT_REG_PROTO_MIN, second)),
	)
}

// Lost matches packets at random, with the probability p.
func Lost(p float64) Part {
	const of = 1_000_000
	limit := binary.BigEndian.AppendUint32(nil, uint32(p*of))
	return join(
		expression("numgen", word(unix.NFTA_NG_DREG, register), word(unix.NFTA_NG_MODULUS, of), word(unix.NFTA_NG_TYPE, unix.NFT_NG_RANDOM)),
		expression("byteorder", word(unix.NFTA_BYTEORDER_SREG, register), word(unix.NFTA_BYTEORDER_DREG, register),
			word(unix.NFTA_BYTEORDER_OP, unix.NFT_BYTEORDER_HTON), word(unix.NFTA_BYTEORDER_LEN, 4), word(unix.NFTA_BYTEORDER_SIZE, 4)),
		compare(unix.NFT_CMP_LT, limit),
	)
}

// Drop drops a packet.
func Drop() Part { return decide(0) }

// Accept ends the chain for a packet: later rules of it do not see it.
func Accept() Part { return decide(1) }

// Reject drops a packet and tells its sender by ICMP that the port is unreachable. It is for
// tables of [Inet].
func Reject() Part {
	return expression("reject", word(unix.NFTA_REJECT_TYPE, unix.NFT_REJECT_ICMPX_UNREACH),
		attribute(unix.NFTA_REJECT_ICMP_CODE, []byte{unix.NFT_REJECT_ICMPX_PORT_UNREACH}))
}

func decide(what uint32) Part {
	code := nested(unix.NFTA_DATA_VERDICT, word(unix.NFTA_VERDICT_CODE, what))
	return expression("immediate", word(unix.NFTA_IMMEDIATE_DREG, verdict), nested(unix.NFTA_IMMEDIATE_DATA, code))
}

// MasqueradeKept gives a packet the address of the interface that it leaves by
// and keeps its port where that is free: one sender's port is the same for all
// that it talks to, as with a cone NAT.
func MasqueradeKept() Part { return masquerade(unix.NF_NAT_RANGE_PERSISTENT) }

// MasqueradeRandom gives a packet the address of the interface that it leaves by
// and a port of its own for each destination, as a symmetric NAT does.
func MasqueradeRandom() Part {
	return masquerade(unix.NF_NAT_RANGE_PROTO_RANDOM | unix.NF_NAT_RANGE_PROTO_RANDOM_FULLY)
}

// MasqueradeByAddress gives a packet the address of the interface that it leaves by and a
// port that depends on its own address and port and on the destination's address.
func MasqueradeByAddress() Part {
	const from, spread, key = 20_000, 30_000, unix.NFT_REG32_04 // the range of ports, and three words to hash
	return join(
		payload(key, unix.NFT_PAYLOAD_NETWORK_HEADER, 12, 4),
		payload(key+1, unix.NFT_PAYLOAD_TRANSPORT_HEADER, 0, 2),
		payload(key+2, unix.NFT_PAYLOAD_NETWORK_HEADER, 16, 4),
		expression("hash", word(unix.NFTA_HASH_SREG, key), word(unix.NFTA_HASH_DREG, register), word(unix.NFTA_HASH_LEN, 12),
			word(unix.NFTA_HASH_MODULUS, spread), word(unix.NFTA_HASH_OFFSET, from), word(unix.NFTA_HASH_SEED, 1)),
		expression("byteorder", word(unix.NFTA_BYTEORDER_SREG, register), word(unix.NFTA_BYTEORDER_DREG, register),
			word(unix.NFTA_BYTEORDER_OP, unix.NFT_BYTEORDER_HTON), word(unix.NFTA_BYTEORDER_LEN, 2), word(unix.NFTA_BYTEORDER_SIZE, 2)),
		expression("masq", word(unix.NFTA_MASQ_FLAGS, unix.NF_NAT_RANGE_PROTO_SPECIFIED), word(unix.NFTA_MASQ_REG_PROTO_MIN, register)),
	)
}

// payload loads a part of a packet into a register.
func payload(into, header, offset, size uint32) []byte {
	return expression("payload", word(unix.NFTA_PAYLOAD_DREG, into), word(unix.NFTA_PAYLOAD_BASE, header),
		word(unix.NFTA_PAYLOAD_OFFSET, offset), word(unix.NFTA_PAYLOAD_LEN, size))
}

func masquerade(flags uint32) Part { return expression("masq", word(unix.NFTA_MASQ_FLAGS, flags)) }

func address(p netip.Prefix, offset uint32) Part {
	p = p.Masked()
	ip := p.Addr().As4()
	return join(
		Routable(),
		payload(register, unix.NFT_PAYLOAD_NETWORK_HEADER, offset, 4),
		masked(binary.BigEndian.AppendUint32(nil, uint32(uint64(1)<<32-uint64(1)<<(32-p.Bits())))),
		compare(unix.NFT_CMP_EQ, ip[:]),
	)
}

func meta(key uint32, value []byte) Part {
	return join(
		expression("meta", word(unix.NFTA_META_KEY, key), word(unix.NFTA_META_DREG, register)),
		compare(unix.NFT_CMP_EQ, value),
	)
}

func compare(op uint32, value []byte) Part {
	return expression("cmp", word(unix.NFTA_CMP_SREG, register), word(unix.NFTA_CMP_OP, op),
		nested(unix.NFTA_CMP_DATA, attribute(unix.NFTA_DATA_VALUE, value)))
}

// masked keeps the bits of mask in the register.
func masked(mask []byte) Part {
	return expression("bitwise", word(unix.NFTA_BITWISE_SREG, register), word(unix.NFTA_BITWISE_DREG, register),
		word(unix.NFTA_BITWISE_LEN, uint32(len(mask))),
		nested(unix.NFTA_BITWISE_MASK, attribute(unix.NFTA_DATA_VALUE, mask)),
		nested(unix.NFTA_BITWISE_XOR, attribute(unix.NFTA_DATA_VALUE, make([]byte, len(mask)))))
}

// device writes the name of an interface as the kernel compares it.
func device(name string) []byte {
	b := make([]byte, unix.IFNAMSIZ)
	copy(b, name)
	return b
}
