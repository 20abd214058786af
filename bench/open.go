package main

import (
	"cmp"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/balefire/balefire/node"
	"github.com/balefire/balefire/pairing"
	"github.com/balefire/balefire/settings"
	"github.com/balefire/balefire/wire"
)

// An opening configures the node to run.
type opening struct {
	Dir    string
	Name   string // not empty: the first of a new mesh, unless there is a ticket
	Ticket string // not empty: join with it first
	Engine string
	Held   bool   // tasks are accepted but not run
	Idle   bool   // no handler: tasks run elsewhere
	Listen string // IP address; default that of loopback
	Deaf   bool   // no mDNS: with dozens of nodes on one machine each receives everything, on eight sockets
	Starts string // not empty: each task writes its start to this file and runs until it is stopped
	Slots  int    // handlers at a time; 0: the node's own number
	Memory int64  // heap limit in bytes; 0: the node's own limit
}

// open creates and joins a node as requested, runs it, and returns how long opening took.
func (c *child) open(o opening) (response, error) {
	cfg := config(o, c.watch)
	switch {
	case o.Ticket != "":
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if _, err := node.Joiner(cfg).WithTicket(ctx, o.Ticket, o.Name); err != nil {
			return response{}, err
		}
	case o.Name != "":
		if _, err := pairing.Init(pairing.InitOptions{Dir: o.Dir, Name: o.Name, NewMesh: true}); err != nil {
			return response{}, err
		}
	}
	begin := time.Now()
	n, err := node.New(cfg)
	if err != nil {
		return response{}, err
	}
	took := time.Since(begin)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	c.node, c.submitter = n, n
	c.stops = append(c.stops, func() error { cancel(); return <-done })
	return response{Took: took, Usage: measure()}, nil
}

// kind is the kind of all tasks of the benchmarks.
const kind = "discard"

// config is the default configuration, except for loopback, and limits that the run would
// reach because accepted tasks are not run.
func config(o opening, w *watch) node.Config {
	h := wire.HandlerSpec{Kind: kind, Type: wire.TypeDiscard, OnCrash: "retry", Allow: []string{"role:send"}}
	if o.Held { // the first task occupies the only slot of its kind
		h = wire.HandlerSpec{Kind: kind, Exec: []string{"/bin/sleep", "86400"}, Timeout: "0", Concurrency: 1, Allow: h.Allow}
	}
	all := []wire.HandlerSpec{h}
	switch {
	case o.Idle:
		all = nil
	case o.Starts != "":
		all[0] = wire.HandlerSpec{Kind: kind, Exec: []string{"/bin/sh", "-c", noteStart, o.Starts, filepath.Base(o.Dir)}, Timeout: "0", OnCrash: "retry", Allow: h.Allow}
	}
	ip := cmp.Or(o.Listen, "127.0.0.1")
	cfg := node.DefaultConfig(o.Dir)
	cfg.Store.Engine, cfg.Handlers = cmp.Or(o.Engine, cfg.Store.Engine), all
	cfg.Net.Listen, cfg.Net.MDNS = []string{"/ip4/" + ip + "/udp/0/quic-v1", "/ip4/" + ip + "/tcp/0"}, !o.Deaf
	l := &cfg.Limits
	l.MaxPending, l.MaxPendingBytes, l.MaxInbox = 1<<20, 4<<30, 1<<20
	l.Slots, l.MemoryLimit, l.GracefulTimeout = o.Slots, settings.Bytes(o.Memory), 100*time.Millisecond
	cfg.Mail.Keep = 0 // mail that is done is gone at once
	cfg.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	cfg.Changed = w.changed
	return cfg
}

// noteStart is a handler that writes when and where it starts, and runs until its node
// stops.
const noteStart = `echo "$(date +%s%N) $1" >>"$0"; while kill -0 $PPID; do sleep .1; done`
