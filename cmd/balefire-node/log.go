package main

import (
	"log"
	"log/slog"

	"github.com/balefire/balefire/transport"
)

// logger returns a logger to standard error: text on a terminal, else JSON.
func (w *app) logger(format string, level slog.Leveler) *slog.Logger {
	o := &slog.HandlerOptions{Level: level, ReplaceAttr: spansAsText}
	if format == "text" || format == "auto" && w.errTTY {
		return slog.New(slog.NewTextHandler(w.err, o))
	}
	return slog.New(slog.NewJSONHandler(w.err, o))
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
