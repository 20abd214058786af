package main

import (
	"log"
	"log/slog"

	"github.com/balefire/balefire/transport"
)

// logger writes to standard error: text on a terminal, else JSON.
func (w *app) logger(format string, level slog.Leveler) *slog.Logger {
	o := &slog.HandlerOptions{Level: level, ReplaceAttr: spansAsText}
	if format == "text" || format == "auto" && w.errTTY {
		return slog.New(slog.NewTextHandler(w.err, o))
	}
	return slog.New(slog.NewJSONHandler(w.err, o))
}

// spansAsText writes a span of time with its unit, in JSON too, where it is else a number
// of nanoseconds.
func spansAsText(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		a.Value = slog.StringValue(a.Value.Duration().String())
	}
	return a
}

// quietLogger is for a command that opens a part of a node itself: people want
// to know what is wrong, not how it goes.
func (w *app) quietLogger() *slog.Logger {
	level := slog.LevelWarn
	if w.flags.verbose {
		level = slog.LevelDebug
	}
	log := slog.New(slog.NewTextHandler(w.err, &slog.HandlerOptions{Level: level}))
	logLibraries(log)
	return log
}

// logLibraries sends what libp2p, and others that write to the standard logger, have to
// say through the same handler: a log in JSON has no other lines.
func logLibraries(l *slog.Logger) {
	transport.SetLibp2pLog(l.Handler())
	log.SetFlags(0)
	log.SetOutput(slog.NewLogLogger(l.Handler(), slog.LevelDebug).Writer())
}
