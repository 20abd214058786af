package node

import (
	"context"
	"log/slog"

	"github.com/balefire/balefire/proto"
)

// A peerNamer is a log handler that writes each peer with its name and its full id, as
// every table does, so that either can be looked up.
type peerNamer struct {
	slog.Handler
	name func(proto.PeerID) string // empty: none is known
}

// Handle writes one line.
func (h peerNamer) Handle(ctx context.Context, r slog.Record) error {
	out := slog.NewRecord(r.Time, r.Level, r.Message, r.PC)
	r.Attrs(func(a slog.Attr) bool {
		out.AddAttrs(h.named(a))
		return true
	})
	return h.Handler.Handle(ctx, out)
}

// WithAttrs returns a handler that adds attributes to each line.
func (h peerNamer) WithAttrs(attrs []slog.Attr) slog.Handler {
	all := make([]slog.Attr, len(attrs))
	for i, a := range attrs {
		all[i] = h.named(a)
	}
	return peerNamer{h.Handler.WithAttrs(all), h.name}
}

// WithGroup returns a handler of a group.
func (h peerNamer) WithGroup(name string) slog.Handler {
	return peerNamer{h.Handler.WithGroup(name), h.name}
}

func (h peerNamer) named(a slog.Attr) slog.Attr {
	if a.Value.Kind() != slog.KindLogValuer {
		return a
	}
	p, ok := a.Value.Any().(proto.PeerID)
	if !ok {
		return a
	}
	if name := h.name(p); name != "" {
		return slog.String(a.Key, name+" "+p.String())
	}
	return slog.String(a.Key, p.String())
}

// nameInLog returns the name of a peer for the log, empty if it has none.
func (n *Node) nameInLog(p proto.PeerID) string {
	if p == n.keys.Peer() {
		return n.self.Name
	}
	if n.book == nil {
		return "" // the node is being opened
	}
	known, ok := n.book.Get(p)
	if !ok {
		return ""
	}
	return known.Name
}
