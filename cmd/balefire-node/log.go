package main

import (
	"log/slog"

	"github.com/balefire/balefire/transport"
)

// logger writes to standard error: text on a terminal, else JSON.
func (w *world) logger(format string, level slog.Leveler) *slog.Logger {
	o := &slog.HandlerOptions{Level: level}
	if format == "text" || format == "auto" && w.errTTY {
		return slog.New(slog.NewTextHandler(w.err, o))
	}
	return slog.New(slog.NewJSONHandler(w.err, o))
}

// quietLogger is for a command that opens a part of a node itself: people want
// to know what is wrong, not how it goes.
func (w *world) quietLogger() *slog.Logger {
	level := slog.LevelWarn
	if w.flags.verbose {
		level = slog.LevelDebug
	}
	log := slog.New(slog.NewTextHandler(w.err, &slog.HandlerOptions{Level: level}))
	logLibraries(log)
	return log
}

// logLibraries sends what libp2p has to say through the same handler.
func logLibraries(log *slog.Logger) { transport.SetLibp2pLog(log.Handler()) }
