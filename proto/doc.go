// Package proto defines what nodes exchange and subsystems share: messages,
// ids, the signed header, framing, compression and limits.
//
// A task crosses the mesh as three nested layers, each opaque to the one
// outside it:
//
//	Message    one frame on a stream: type, hints, group-root signature
//	└ Envelope header (fixed layout, signed) + sealed body + Merkle path
//	  └ Content only the target can read it: kind, class, body, …   (task)
//	  └ Outcome the outcome, only for the home                     (result)
//
// The *.proto files are compiled into this package; decoding anything that came
// from outside goes through the functions here, which check lengths before they
// allocate.
package proto

//go:generate make -C .. proto
