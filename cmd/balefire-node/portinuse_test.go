package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/balefire/balefire/pairing"
)

// A node whose port another program uses, for TCP, for UDP or for both, does not start: it names
// the address and the setting.
func TestPortInUse(t *testing.T) {
	for _, tt := range []struct {
		name     string
		tcp, udp bool
	}{{"TCP", true, false}, {"UDP", false, true}, {"both", true, true}} {
		t.Run(tt.name, func(t *testing.T) {
			port := occupy(t, tt.tcp, tt.udp)
			dir := filepath.Join(t.TempDir(), "n")
			if _, err := pairing.Init(pairing.InitOptions{Dir: dir, Name: "solo", NewMesh: true}); err != nil {
				t.Fatal(err)
			}
			quic, tcp := fmt.Sprintf("/ip4/127.0.0.1/udp/%d/quic-v1", port), fmt.Sprintf("/ip4/127.0.0.1/tcp/%d", port)
			text := fmt.Sprintf("net: {listen: [%s, %s]}\nstore: {segment: 4MiB}\n", quic, tcp)
			if err := os.WriteFile(filepath.Join(dir, "config.yaml"), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			said := new(bytes.Buffer)
			run := exec.CommandContext(ctx, "balefire-node", "run", "--dir", dir)
			run.Stderr = said
			_ = run.Run() // its exit code says the same
			if code := run.ProcessState.ExitCode(); code != exitError || !strings.Contains(said.String(), "net.listen") {
				t.Errorf("exit code %d, want %d\n%s", code, exitError, said)
			}
			for addr, taken := range map[string]bool{quic: tt.udp, tcp: tt.tcp} {
				if taken && !strings.Contains(said.String(), addr) {
					t.Errorf("no %s in\n%s", addr, said)
				}
			}
		})
	}
}

// occupy listens on a port of this machine that was free for TCP and UDP, and returns it.
func occupy(t *testing.T, tcp, udp bool) (port int) {
	t.Helper()
	for range 100 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		c, err := net.ListenPacket("udp", l.Addr().String())
		if err != nil {
			l.Close()
			continue // that port of UDP is not free
		}
		keep := func(used bool, end func() error) {
			if !used {
				end()
				return
			}
			t.Cleanup(func() { end() })
		}
		keep(tcp, l.Close)
		keep(udp, c.Close)
		return l.Addr().(*net.TCPAddr).Port
	}
	t.Fatal("no free port")
	return 0
}
