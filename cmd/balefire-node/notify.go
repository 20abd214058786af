package main

import (
	"context"
	"log/slog"
	"strings"
	"time"

	sd "github.com/coreos/go-systemd/v22/daemon"
)

// notifyManager sends the state of the node to the service manager, if there is one.
func notifyManager(log *slog.Logger, states ...string) {
	if _, err := sd.SdNotify(false, strings.Join(states, "\n")); err != nil {
		log.Warn("the service manager could not be notified", "err", err)
	}
}

// The messages for the service manager.
const (
	stateReady     = sd.SdNotifyReady
	stateStopping  = sd.SdNotifyStopping
	stateReloading = sd.SdNotifyReloading
)

func statusLine(text string) string { return "STATUS=" + strings.ReplaceAll(text, "\n", " ") }

// watchdog feeds the watchdog of the service manager, if there is one, for as long as the
// node answers: a node that hangs is not fed and is restarted.
func (d *daemon) watchdog(ctx context.Context) {
	every, err := sd.SdWatchdogEnabled(false)
	if err != nil {
		d.log.Warn("the watchdog of the service manager cannot be fed", "err", err)
	}
	if err != nil || every <= 0 {
		return
	}
	tick := time.NewTicker(every / 2)
	defer tick.Stop()
	for {
		if n := d.running.Load(); n != nil { // opening a store can take long
			n.Views.Status(ctx)
		}
		notifyManager(d.log, sd.SdNotifyWatchdog)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
