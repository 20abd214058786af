package main

import (
	"context"
	"log"
	"log/slog"
	"sync/atomic"

	"github.com/balefire/balefire/node/config"
	"github.com/balefire/balefire/transport"
)

// A logStyle is what a reload may change of a log and of all loggers derived from it.
type logStyle struct {
	w     *app
	level slog.LevelVar
	text  atomic.Bool
}

// set applies the settings: in the format auto a log is text on a terminal, else JSON.
func (s *logStyle) set(l config.Log) {
	s.level.Set(l.Severity())
	s.text.Store(l.Format == "text" || l.Format == "auto" && s.w.errTTY)
}

// logger returns a logger to standard error.
func (s *logStyle) logger() *slog.Logger {
	o := &slog.HandlerOptions{Level: &s.level, ReplaceAttr: spansAsText}
	return slog.New(styledHandler{s, slog.NewTextHandler(s.w.err, o), slog.NewJSONHandler(s.w.err, o)})
}

// A styledHandler writes each record in the format that its style has by then.
type styledHandler struct {
	style      *logStyle
	text, json slog.Handler
}

func (h styledHandler) Enabled(ctx context.Context, l slog.Level) bool { return h.json.Enabled(ctx, l) }

func (h styledHandler) Handle(ctx context.Context, r slog.Record) error {
	if h.style.text.Load() {
		return h.text.Handle(ctx, r)
	}
	return h.json.Handle(ctx, r)
}

func (h styledHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return styledHandler{h.style, h.text.WithAttrs(attrs), h.json.WithAttrs(attrs)}
}

func (h styledHandler) WithGroup(name string) slog.Handler {
	return styledHandler{h.style, h.text.WithGroup(name), h.json.WithGroup(name)}
}

// spansAsText logs durations with their unit, also in JSON, which would otherwise have
// nanoseconds.
func spansAsText(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		a.Value = slog.StringValue(a.Value.Duration().String())
	}
	return a
}

// quietLogger is for commands that open a part of a node themselves: it logs only warnings
// and errors.
func (w *app) quietLogger() *slog.Logger {
	level := slog.LevelWarn
	if w.flags.verbose {
		level = slog.LevelDebug
	}
	log := slog.New(slog.NewTextHandler(w.err, &slog.HandlerOptions{Level: level}))
	logLibraries(log)
	return log
}

// logLibraries sends the log of libp2p and of the standard logger through the same handler,
// so that a JSON log has only JSON lines.
func logLibraries(l *slog.Logger) {
	transport.SetLibp2pLog(l.Handler())
	log.SetFlags(0)
	log.SetOutput(slog.NewLogLogger(l.Handler(), slog.LevelDebug).Writer())
}
