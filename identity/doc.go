// Package identity manages who a node is: it holds the node's keys, admits nodes
// to a mesh, signs the node's statements and opens what only it may read.
//
//	Root ──issues──▶ Member certificate ◀──issues── a node with the admin role
//	                     │ names
//	                     ▼
//	Keys: node key ──signs──▶ KeyRecord, one signature per group of envelopes
//	      │                                     and receipts (Merkle root)
//	      └ sealing keys ──open──▶ wrapped key ──▶ content key ──opens──▶ body
//
// Promise: an envelope that passes [Checks.Check] was made by the admitted member
// that it names, for this node and this mesh, has not expired, and was not
// modified; no other node can read its body. Every record type is signed in a
// domain of its own (domains.go), so that no signature is valid for two types.
//
// The package stores nothing on disk except the key files. Its callers record
// which tickets were used, who is revoked and what was seen before.
package identity
