//go:build linux

package netfilter

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// Replace replaces the table of the family and name of t, if any, in one transaction. It
// works on the network of the calling thread.
func Replace(t Table) error {
	name := text(unix.NFTA_TABLE_NAME, t.Name)
	steps := []step{{unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, name}, {unix.NFT_MSG_DELTABLE, 0, name}, {unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, name}}
	for _, h := range t.Holes {
		steps = append(steps, h.step(t.Name))
	}
	for _, chain := range t.Chains {
		steps = append(steps, chain.steps(t.Name)...)
	}
	// A transaction is enclosed by two messages of the subsystem.
	out := message(unix.NFNL_MSG_BATCH_BEGIN, 0, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES, nil)
	for _, s := range steps {
		out = append(out, message(unix.NFNL_SUBSYS_NFTABLES<<8|s.kind, s.flags|unix.NLM_F_ACK, byte(t.Family), 0, s.body)...)
	}
	out = append(out, message(unix.NFNL_MSG_BATCH_END, 0, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES, nil)...)
	if err := ask(out, len(steps)); err != nil {
		return fmt.Errorf("netfilter: write table %s: %w; it needs CAP_NET_ADMIN and a kernel with nf_tables", t.Name, err)
	}
	return nil
}

// Forget drops all connection tracking entries of the network of the calling thread, as a
// restarted router does: packets of those connections are unsolicited afterwards.
func Forget() error {
	const kind = unix.NFNL_SUBSYS_CTNETLINK<<8 | 2 // delete; of none in particular: of all
	if err := ask(message(kind, unix.NLM_F_ACK, unix.AF_INET, 0, nil), 1); err != nil {
		return fmt.Errorf("netfilter: forget the connections: %w; it needs CAP_NET_ADMIN and a kernel with conntrack", err)
	}
	return nil
}

// A step is one message of a transaction.
type step struct {
	kind  uint16
	flags uint16
	body  []byte
}

func (ch Chain) steps(table string) []step {
	kind := "filter"
	if ch.NAT {
		kind = "nat"
	}
	body := slices.Concat(text(unix.NFTA_CHAIN_TABLE, table), text(unix.NFTA_CHAIN_NAME, ch.Name),
		nested(unix.NFTA_CHAIN_HOOK, word(unix.NFTA_HOOK_HOOKNUM, uint32(ch.Hook)), word(unix.NFTA_HOOK_PRIORITY, uint32(ch.Priority))),
		text(unix.NFTA_CHAIN_TYPE, kind))
	out := []step{{unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE, body}}
	for _, rule := range ch.Rules {
		body := slices.Concat(text(unix.NFTA_RULE_TABLE, table), text(unix.NFTA_RULE_CHAIN, ch.Name), nested(unix.NFTA_RULE_EXPRESSIONS, rule...))
		out = append(out, step{unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE | unix.NLM_F_APPEND, body})
	}
	return out
}

func message(kind, flags uint16, family byte, resource uint16, body []byte) []byte {
	head := unix.NLMSG_HDRLEN + 4
	out := make([]byte, 0, head+len(body))
	out = binary.NativeEndian.AppendUint32(out, uint32(head+len(body)))
	out = binary.NativeEndian.AppendUint16(out, kind)
	out = binary.NativeEndian.AppendUint16(out, flags|unix.NLM_F_REQUEST)
	out = binary.NativeEndian.AppendUint64(out, 0) // number and sender: one question a socket
	out = append(out, family, 0)
	out = binary.BigEndian.AppendUint16(out, resource)
	return append(out, body...)
}

// ask sends messages to the kernel and reads as many responses, or until the first error.
func ask(out []byte, answers int) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return fmt.Errorf("open a socket to the kernel: %w", err)
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 10}); err != nil {
		return err
	}
	if err := unix.Sendto(fd, out, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	buf := make([]byte, 1<<16)
	for answers > 0 {
		n, _, err := unix.Recvfrom(fd, buf, 0)
		if err != nil {
			return fmt.Errorf("wait for the kernel's answer: %w", err)
		}
		got, err := verdicts(buf[:n])
		if err != nil {
			return err
		}
		answers -= got
	}
	return nil
}

// verdicts counts the responses of the kernel, up to the first error.
func verdicts(in []byte) (n int, err error) {
	for len(in) >= unix.NLMSG_HDRLEN+4 {
		size := int(binary.NativeEndian.Uint32(in))
		if size < unix.NLMSG_HDRLEN+4 || size > len(in) {
			return n, errors.New("the kernel's answer is cut off")
		}
		if binary.NativeEndian.Uint16(in[4:]) == unix.NLMSG_ERROR {
			if no := -int32(binary.NativeEndian.Uint32(in[unix.NLMSG_HDRLEN:])); no != 0 {
				return n, unix.Errno(no)
			}
			n++
		}
		in = in[min(len(in), aligned(size)):]
	}
	return n, nil
}

func expression(name string, data ...[]byte) Part {
	return nested(unix.NFTA_LIST_ELEM, text(unix.NFTA_EXPR_NAME, name), nested(unix.NFTA_EXPR_DATA, data...))
}

func nested(kind uint16, parts ...[]byte) []byte {
	return attribute(kind|unix.NLA_F_NESTED, slices.Concat(parts...))
}

func text(kind uint16, s string) []byte { return attribute(kind, append([]byte(s), 0)) }

func word(kind uint16, v uint32) []byte {
	return attribute(kind, binary.BigEndian.AppendUint32(nil, v))
}

func attribute(kind uint16, value []byte) []byte {
	size := unix.NLA_HDRLEN + len(value)
	out := make([]byte, 0, aligned(size))
	out = binary.NativeEndian.AppendUint16(out, uint16(size))
	out = binary.NativeEndian.AppendUint16(out, kind)
	return append(out, value...)[:aligned(size)]
}

func join(parts ...Part) (all Part) {
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}

func aligned(n int) int { return (n + unix.NLMSG_ALIGNTO - 1) &^ (unix.NLMSG_ALIGNTO - 1) }
