package transport

import (
	"context"
	"log/slog"

	"github.com/libp2p/go-libp2p/gologshim"
)

// SetLibp2pLog sends libp2p's log lines to h, one level lower: libp2p warns about every
// connection that closes during a request, which is routine here. It works once per
// process, before the first host is created.
func SetLibp2pLog(h slog.Handler) { gologshim.SetDefaultHandler(lowerLevel{h}) }

// lowerLevel passes lines on one level below their own.
type lowerLevel struct{ to slog.Handler }

const oneLevel = slog.LevelWarn - slog.LevelInfo

func (l lowerLevel) Enabled(ctx context.Context, at slog.Level) bool {
	return l.to.Enabled(ctx, at-oneLevel)
}

func (l lowerLevel) Handle(ctx context.Context, r slog.Record) error {
	if r.Level -= oneLevel; r.Message == "listening failed" { // the caller of Listen reports it if it matters
		r.Level = slog.LevelDebug
	}
	if !l.to.Enabled(ctx, r.Level) {
		return nil
	}
	return l.to.Handle(ctx, r)
}

func (l lowerLevel) WithAttrs(a []slog.Attr) slog.Handler { return lowerLevel{l.to.WithAttrs(a)} }
func (l lowerLevel) WithGroup(name string) slog.Handler   { return lowerLevel{l.to.WithGroup(name)} }
