package main

import (
	"log/slog"
	"net"
	"strings"
)

// A notifier is the socket over which a service manager is told how the node
// is; empty where there is none.
type notifier string

func (n notifier) tell(log *slog.Logger, state string) {
	if n == "" {
		return
	}
	name := string(n)
	if rest, ok := strings.CutPrefix(name, "@"); ok {
		name = "\x00" + rest // abstract
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		log.Warn("the service manager could not be told", "err", err)
		return
	}
	defer conn.Close()
	if _, err := conn.Write([]byte(state)); err != nil {
		log.Warn("the service manager could not be told", "err", err)
	}
}
