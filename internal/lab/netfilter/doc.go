// Package netfilter writes tables of packet rules into the Linux kernel: the few
// matches and verdicts that the laboratory's routers and switches need, without
// a program or a library next to it, so that it also serves in a container that
// holds nothing else.
//
//	Table ─▶ Chain (where packets pass) ─▶ Rule: From(…) Enters(…) Lost(0.2) ─▶ Drop()
//	Replace ──▶ one transaction: the old table and the new one never both, never neither
//
// Addresses in it are of IPv4. `nft list ruleset` shows what it wrote.
package netfilter
