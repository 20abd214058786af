//go:build e2e && linux

package transport_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/balefire/balefire/internal/lab"
	"github.com/balefire/balefire/transport"
)

// lanVariable makes this test binary run as the LAN node with the number that it
// contains.
const lanVariable = "BALEFIRE_TEST_LAN_PEER"

func TestMain(m *testing.M) {
	if number, err := strconv.Atoi(os.Getenv(lanVariable)); err == nil {
		runLANPeer(number)
		return
	}
	os.Exit(m.Run())
}

// runLANPeer runs a node on the LAN and prints when it is connected to others.
func runLANPeer(number int) {
	n := &simNode{mesh: new(sim), id: number, boot: 1}
	tr, err := transport.New(simKeys(number), n, n, transport.Config{
		Listen: []string{"/ip4/0.0.0.0/udp/4001/quic-v1", "/ip4/0.0.0.0/tcp/4001", "/ip6/::/udp/4001/quic-v1", "/ip6/::/tcp/4001"},
		MDNS:   true,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	go tr.Run(context.Background())
	for last := ""; ; <-time.After(50 * time.Millisecond) {
		connected := 0
		for _, p := range tr.Peers() {
			if p.Connected {
				connected++
			}
		}
		if line := fmt.Sprintf("%s, %d connected", tr.Discovery().LAN, connected); line != last {
			fmt.Println(line)
			last = line
		}
	}
}

// lanPeer starts a node at h and returns its output.
func lanPeer(t *testing.T, h *lab.Host, number int) <-chan string {
	t.Helper()
	c := h.Command(os.Args[0])
	c.Env = append(os.Environ(), fmt.Sprintf("%s=%d", lanVariable, number))
	c.Stderr = os.Stderr
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	lines := make(chan string, 1000)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			lines <- s.Text()
		}
	}()
	t.Cleanup(func() {
		c.Process.Kill()
		c.Wait()
	})
	return lines
}

func awaitLine(t *testing.T, lines <-chan string, want string, within time.Duration) time.Duration {
	t.Helper()
	began := time.Now()
	limit := time.After(within)
	for {
		select {
		case line, ok := <-lines:
			t.Logf("%v: %s", time.Since(began), line)
			if !ok {
				t.Fatal("the node stopped")
			}
			if line == want {
				return time.Since(began)
			}
		case <-limit:
			t.Fatalf("%q: not within %v", want, within)
		}
	}
}

// TestNodesFindEachOtherOnLAN checks that two nodes that know no address of each other
// connect by mDNS, even if one has changed its address since it started.
func TestNodesFindEachOtherOnLAN(t *testing.T) {
	lan := lab.New(t).Net("lan", "10.9.0.0/24")
	first, second := lan.Host("first", lab.Attachment{Addr: "10.9.0.1"}), lan.Host("second", lab.Attachment{Addr: "10.9.0.2"})
	a := lanPeer(t, first, 1)
	awaitLine(t, a, "up, 0 connected", 15*time.Second)
	first.Readdress("10.9.0.77")
	b := lanPeer(t, second, 2)
	t.Logf("found after %v", awaitLine(t, b, "up, 1 connected", 30*time.Second))
	awaitLine(t, a, "up, 1 connected", 10*time.Second)
}
