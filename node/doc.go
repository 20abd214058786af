// Package node puts the rooms together and lets a task walk through them. It
// decides nothing: what to do next is decided in the rooms.
//
//	this machine                              the other machine
//	Submit ─▶ outbox ─▶ transport ═══════════▶ transport ─▶ receive ─▶ inbox
//	                                                                     │
//	Wait   ◀─ outbox ◀─ receive ◀─ transport ◀════ transport ◀─ outbox ◀─┘ result
//
// Both walks are in node.go. A program that embeds balefire uses [New],
// [Node.Run] and [Node.Submit]; everything else here serves the window (package
// api) and the door (cmd/balefire-node).
package node
