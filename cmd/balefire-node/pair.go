package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/balefire/balefire/node"
	"github.com/balefire/balefire/pairing"
	"github.com/balefire/balefire/wire"
)

// A pair is two nodes of a new mesh in this process, on loopback, with NutsDB in a
// temporary folder. demo and bench use it.
type pair struct {
	dir                      string
	sender, receiver         *localNode
	senderName, receiverName string // their names
}

// A localNode is a node in this process that can be stopped and started.
type localNode struct {
	cfg    node.Config
	node   *node.Node
	cancel context.CancelFunc
	done   chan error
}

// newPair creates, joins and starts both nodes. The receiver serves handlers for the
// sender.
func newPair(ctx context.Context, engine string, log *slog.Logger, handlers ...wire.HandlerSpec) (_ *pair, err error) {
	p := &pair{senderName: "alpha", receiverName: "beta"}
	if p.dir, err = os.MkdirTemp("", "balefire-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
		}
	}()
	if p.sender, err = p.newNode(p.senderName, engine, log); err != nil {
		return nil, err
	}
	if p.receiver, err = p.newNode(p.receiverName, engine, log); err != nil {
		return nil, err
	}
	p.receiver.cfg.Handlers = handlers
	if _, err := pairing.Init(pairing.InitOptions{Dir: p.sender.cfg.Dir, Name: p.senderName, NewMesh: true}); err != nil {
		return nil, err
	}
	if err := p.sender.start(ctx); err != nil {
		return nil, err
	}
	inv, err := p.sender.node.Pairing.Invite(ctx, wire.InviteOptions{Name: p.receiverName})
	if err != nil {
		return nil, err
	}
	if _, err := node.Joiner(p.receiver.cfg).WithTicket(ctx, inv.Ticket, p.receiverName); err != nil {
		return nil, err
	}
	return p, p.receiver.start(ctx)
}

func (p *pair) newNode(name, engine string, log *slog.Logger) (*localNode, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	cfg := node.DefaultConfig(filepath.Join(p.dir, name))
	cfg.Logger, cfg.Version = log, version
	cfg.Store.Engine, cfg.Store.Segment = engine, 8<<20
	cfg.Net.Listen = []string{fmt.Sprintf("/ip4/127.0.0.1/tcp/%d", port), fmt.Sprintf("/ip4/127.0.0.1/udp/%d/quic-v1", port)}
	return &localNode{cfg: cfg}, nil
}

// close stops both nodes and removes their folder.
func (p *pair) close() error {
	var errs []error
	for _, l := range []*localNode{p.receiver, p.sender} {
		if l != nil {
			errs = append(errs, l.stop())
		}
	}
	return errors.Join(append(errs, os.RemoveAll(p.dir))...)
}

// freePort returns a free port. A node keeps it across restarts.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	return port, l.Close()
}

// start opens and runs the node and returns when it is ready.
func (l *localNode) start(ctx context.Context) (err error) {
	if l.node, err = node.New(l.cfg); err != nil {
		return err
	}
	ctx, l.cancel = context.WithCancel(context.WithoutCancel(ctx))
	l.done = make(chan error, 1)
	go func(n *node.Node) { l.done <- n.Run(ctx) }(l.node)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for l.node.Ready() != nil {
		select {
		case err := <-l.done:
			l.cancel()
			l.cancel = nil
			return cmp.Or(err, errors.New("the node stopped immediately"))
		case <-tick.C:
		}
	}
	return nil
}

// stop stops the node gracefully.
func (l *localNode) stop() error {
	if l.cancel == nil {
		return nil
	}
	l.cancel()
	l.cancel = nil
	return dropCanceled(<-l.done)
}
