package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/balefire/balefire/node"
	"github.com/balefire/balefire/pairing"
	"github.com/balefire/balefire/wire"
)

// A gatedMail is the mail of a node that answers only when it is let through.
type gatedMail struct{ asked, answer chan struct{} }

func (m gatedMail) Status(ctx context.Context) (wire.MailStatus, error) {
	select {
	case m.asked <- struct{}{}:
	case <-ctx.Done():
		return wire.MailStatus{}, ctx.Err()
	}
	select {
	case <-m.answer:
	case <-ctx.Done():
	}
	return wire.MailStatus{}, ctx.Err()
}

// A node that runs is asked before each message to the watchdog: one that hangs is not fed until
// it answers.
func TestNodeThatHangsIsNotFed(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "n")
	if _, err := pairing.Init(pairing.InitOptions{Dir: dir, Name: "solo", NewMesh: true}); err != nil {
		t.Fatal(err)
	}
	cfg := node.DefaultConfig(dir)
	cfg.Logger, cfg.Net.Listen, cfg.Net.MDNS, cfg.Store.Reserve = slog.New(slog.DiscardHandler), []string{"/ip4/127.0.0.1/tcp/0"}, false, 1
	n, err := node.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	mail := gatedMail{make(chan struct{}), make(chan struct{})}
	n.Views.Mail = mail
	notified := notifySocket(t)
	t.Setenv("NOTIFY_SOCKET", notified.LocalAddr().String())
	t.Setenv("WATCHDOG_USEC", "20000")
	t.Setenv("WATCHDOG_PID", "")
	w, _, _ := newTestApp()
	d := &daemon{w: w, log: cfg.Logger}
	d.running.Store(n)
	ctx, cancel := context.WithCancel(t.Context())
	stopped, fed := make(chan error, 1), make(chan struct{})
	go func() { stopped <- n.Run(ctx) }()
	go func() { defer close(fed); d.watchdog(ctx) }()
	for range 3 {
		select {
		case <-mail.asked:
		case <-time.After(2 * time.Minute):
			t.Fatal("the node is not asked")
		}
		wantSilence(t, notified) // ten times as long as a message takes to come
		mail.answer <- struct{}{}
		if got := read(t, notified); got != "WATCHDOG=1" {
			t.Errorf("the service manager was told %q", got)
		}
	}
	cancel()
	<-fed
	if err := <-stopped; err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// wantSilence fails if a message arrives within 100 ms.
func wantSilence(t *testing.T, conn *net.UnixConn) {
	t.Helper()
	if err := conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 100)
	if n, err := conn.Read(buf); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the service manager was told %q: %v", buf[:max(n, 0)], err)
	}
}
