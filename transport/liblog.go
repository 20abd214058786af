package transport

import (
	"context"
	"log/slog"

	"github.com/libp2p/go-libp2p/gologshim"
)

// SetLibp2pLog sends libp2p's log lines to h, one level lower: libp2p warns about every
// connection that closes during a request, which is routine here. It works once per
// process, before the first host is created.
func SetLibp2pLog(h slog.Handler) { gologshim.SetDefaultHandler(lower{h}) }

// lower passes lines on one level below their own.
type lower struct{ to slog.Handler }

const oneLevel = slog.LevelWarn - slog.LevelInfo

func (l lower) Enabled(ctx context.Context, at slog.Level) bool {
	return l.to.Enabled(ctx, at-oneLevel)
}

func (l lower) Handle(ctx context.Context, r slog.Record) error {
	if r.Level -= oneLevel; r.Message == "listening failed" { // the caller of Listen reports it if it matters
		r.Level = slog.LevelDebug
	}
	if !l.to.Enabled(ctx, r.Level) {
		return nil
	}
	return l.to.Handle(ctx, r)
}

func (l lower) WithAttrs(a []slog.Attr) slog.Handler { return lower{l.to.WithAttrs(a)} }
func (l lower) WithGroup(name string) slog.Handler   { return lower{l.to.WithGroup(name)} }
