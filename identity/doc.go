// Package identity says who a node is: it holds the node's keys, admits nodes
// to a mesh, signs what a node states and opens what only it may read.
//
//	Root ──issues──▶ Member certificate ◀──issues── a node with the admin role
//	                     │ names
//	                     ▼
//	Keys: node key ──signs──▶ KeyRecord, one signature per group of envelopes
//	      │                                     and receipts (Merkle root)
//	      └ sealing keys ──open──▶ slot ──holds──▶ content key ──opens──▶ body
//
// What is promised: an envelope that [Checks.Check] lets through was made by the
// admitted member that it names, for this node and this mesh, is in its time,
// and was not changed by anybody; nobody else can read its body. Every record
// type is signed in a domain of its own (domains.go), so that no signature says
// two things.
//
// The package keeps nothing on disk but the key files. Which ticket was used,
// who is revoked and what was seen before is for its caller to remember.
package identity
