// Package node connects the subsystems and passes tasks between them. It decides
// nothing: what happens next is decided in the subsystems.
//
//	this machine                              the other machine
//	Submit ─▶ outbox ─▶ transport ═══════════▶ transport ─▶ receive ─▶ inbox
//	                                                                     │
//	Views  ◀─ outbox ◀─ receive ◀─ transport ◀════ transport ◀─ outbox ◀─┘ result
//
// Out starts in node.go, in at the receiver that subsystems.go connects. A program that
// embeds balefire uses [New], [Node.Run] and [Node.Submit]; everything else here serves the
// API server (package api) and the command line (cmd/balefire-node).
package node
