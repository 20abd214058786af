//go:build e2e && linux

package lab

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/balefire/balefire/internal/lab/netfilter"
)

// socket opens a UDP socket in a network.
func socket(t *testing.T, s namespace, addr string) *net.UDPConn {
	t.Helper()
	var c *net.UDPConn
	at, network := netip.MustParseAddrPort(addr), "udp4"
	if at.Addr().Is6() {
		network = "udp6"
	}
	err := s.Do(func() (err error) {
		c, err = net.ListenUDP(network, net.UDPAddrFromAddrPort(at))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// say sends one packet.
func say(t *testing.T, c *net.UDPConn, to string) {
	t.Helper()
	if _, err := c.WriteToUDPAddrPort([]byte("hello"), netip.MustParseAddrPort(to)); err != nil {
		t.Fatal(err)
	}
}

// hear returns who sent the next packet, or nothing when none comes.
func hear(t *testing.T, c *net.UDPConn, within time.Duration) netip.AddrPort {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(within)); err != nil {
		t.Fatal(err)
	}
	_, from, err := c.ReadFromUDPAddrPort(make([]byte, 2000))
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal(err)
	}
	return from
}

const (
	soon  = 5 * time.Second        // what must come has come by then
	never = 200 * time.Millisecond // what has not come by then does not
)

// reached reports whether a packet from one socket gets to another one.
func reached(t *testing.T, from, to *net.UDPConn, within time.Duration) bool {
	t.Helper()
	say(t, from, to.LocalAddr().String())
	return hear(t, to, within).IsValid()
}

func TestRoutersOfBothKinds(t *testing.T) {
	for _, tt := range []struct {
		name string
		kind netfilter.NAT
		kept bool
	}{{"cone", netfilter.Cone, true}, {"symmetric", netfilter.Symmetric, false}} {
		t.Run(tt.name, func(t *testing.T) {
			l := New(t)
			public := l.Net("public", "11.0.0.0/24")
			r := public.Router("nat", Attachment{Addr: "11.0.0.101"}, "192.168.1.0/24", tt.kind)
			inside := r.LAN.Host("inside", Attachment{Addr: "192.168.1.2"}).namespace
			in, other := socket(t, inside, "192.168.1.2:4001"), socket(t, inside, "192.168.1.2:4002")
			one := socket(t, public.Host("one", Attachment{Addr: "11.0.0.1"}).namespace, "11.0.0.1:4001")
			two := socket(t, public.Host("two", Attachment{Addr: "11.0.0.2"}).namespace, "11.0.0.2:4001")
			say(t, in, "11.0.0.1:4001")
			first := hear(t, one, soon)
			if first.Addr().String() != "11.0.0.101" {
				t.Fatalf("a packet comes from %s", first)
			}
			// By another hole, so that both know each other's hardware address: a packet that
			// waits for that comes later than never.
			say(t, other, "11.0.0.2:4001")
			say(t, two, hear(t, two, soon).String())
			if from := hear(t, other, soon); from.String() != "11.0.0.2:4001" {
				t.Fatalf("the answer by the other hole comes from %q", from)
			}
			if reached := func() bool { say(t, two, first.String()); return hear(t, in, never).IsValid() }(); reached {
				t.Error("the router lets in what was not asked for")
			}
			say(t, in, "11.0.0.2:4001")
			second := hear(t, two, soon)
			if (first == second) != tt.kept {
				t.Errorf("seen as %s and as %s", first, second)
			}
			say(t, one, first.String())
			if from := hear(t, in, soon); from.String() != "11.0.0.1:4001" {
				t.Errorf("the answer comes from %q", from)
			}
			r.WAN.readdress("11.0.0.102") // a new dial-in
			r.Forget()
			say(t, one, first.String())
			if from := hear(t, in, never); from.IsValid() {
				t.Errorf("the old address of the router still works")
			}
			say(t, in, "11.0.0.1:4001")
			if again := hear(t, one, soon); again.Addr().String() != "11.0.0.102" {
				t.Errorf("after it dialled in anew a packet comes from %s", again)
			}
		})
	}
}

// two makes a network of two hosts, the first at the end of the wire.
func two(t *testing.T, wire Wire) (a *Host, ca, cb *net.UDPConn) {
	n := New(t).Net("net", "11.0.0.0/24")
	a = n.Host("a", Attachment{Addr: "11.0.0.1", Wire: wire})
	b := n.Host("b", Attachment{Addr: "11.0.0.2"})
	return a, socket(t, a.namespace, "11.0.0.1:4001"), socket(t, b.namespace, "11.0.0.2:4001")
}

func TestPartitionInOneDirection(t *testing.T) {
	a, ca, cb := two(t, Cable)
	check := func(what string, out, in bool) {
		t.Helper()
		wait := map[bool]time.Duration{true: soon, false: never}
		if got := reached(t, ca, cb, wait[out]); got != out {
			t.Errorf("%s: from a to b: %v, want %v", what, got, out)
		}
		if got := reached(t, cb, ca, wait[in]); got != in {
			t.Errorf("%s: from b to a: %v, want %v", what, got, in)
		}
	}
	check("at first", true, true)
	a.Port.CutIn("11.0.0.2")
	check("deaf", true, false)
	a.Port.Heal()
	check("healed", true, true)
	a.Port.CutOut()
	check("mute", false, true)
	a.Port.Heal()
	a.Port.Cut("11.0.0.64/26")
	check("cut from others", true, true)
	a.Port.Cut()
	check("cut", false, false)
	a.Port.Heal()
	check("healed again", true, true)
}

func TestPulledCable(t *testing.T) {
	a, ca, cb := two(t, Cable)
	a.Port.Down()
	if reached(t, cb, ca, never) {
		t.Error("something passes a pulled cable")
	}
	a.Port.Up()
	if !passes(t, cb, ca) {
		t.Error("nothing passes after it was plugged in again")
	}
}

// passes sends until something arrives.
func passes(t *testing.T, from, to *net.UDPConn) bool {
	for range 50 {
		if reached(t, from, to, 100*time.Millisecond) {
			return true
		}
	}
	return false
}

func TestLossIsWhatWasAskedFor(t *testing.T) {
	const sent = 2000
	for name, lossy := range map[string]struct {
		wire Wire
		set  func(h *Host, loss float64)
	}{
		"cable": {Cable, func(h *Host, loss float64) { h.Port.Loss(0, loss) }},
		"long":  {Long, func(h *Host, loss float64) { h.Port.Link.SetOut(Shape{Loss: loss}) }},
	} {
		t.Run(name, func(t *testing.T) {
			a, ca, cb := two(t, lossy.wire)
			if !reached(t, ca, cb, soon) {
				t.Fatal("nothing passes")
			}
			lossy.set(a, 0.2)
			came := 0
			for range sent / 100 { // as many as the receiver's buffer surely holds
				for range 100 {
					say(t, ca, "11.0.0.2:4001")
				}
				for hear(t, cb, 20*time.Millisecond).IsValid() {
					came++
				}
			}
			// Six standard deviations: it fails by chance once in 500 million runs.
			if off := math.Abs(float64(sent-came) - 0.2*sent); off > 6*math.Sqrt(sent*0.2*0.8) {
				t.Errorf("of %d packets %d arrived, at 20 %% loss", sent, came)
			}
		})
	}
}

func TestDelayAndRateOfALongWire(t *testing.T) {
	a, ca, cb := two(t, Long)
	trip := func() time.Duration {
		began := time.Now()
		if !reached(t, ca, cb, soon) || !reached(t, cb, ca, soon) {
			t.Fatal("nothing passes")
		}
		return time.Since(began)
	}
	trip() // they find each other
	a.Port.Link.SetOut(Shape{Delay: 80 * time.Millisecond})
	if got := quickest(trip); got < 80*time.Millisecond || got > 140*time.Millisecond {
		t.Errorf("with 80 ms in one direction a trip takes %s", got)
	}
	a.Port.Link.Set(Shape{Delay: 80 * time.Millisecond, Jitter: 20 * time.Millisecond})
	if got := quickest(trip); got < 120*time.Millisecond || got > 260*time.Millisecond {
		t.Errorf("with 60 to 100 ms in both directions a trip takes %s", got)
	}
	a.Port.Link.Set(Shape{Rate: 1_000_000})
	if got := quickest(func() time.Duration { return burst(t, ca, cb) }); got < 300*time.Millisecond || got > 700*time.Millisecond {
		t.Errorf("40 KB at 1 Mbit/s take %s, want about 330 ms", got)
	}
	a.Port.Link.SetOut(Shape{Down: true})
	if reached(t, ca, cb, never) {
		t.Error("something passes a link that is down")
	}
	a.Port.Link.Set(Shape{})
	trip()
	if carried, dropped := a.Port.Link.Counts(); carried < 40 || dropped == 0 {
		t.Errorf("the link has carried %d and dropped %d", carried, dropped)
	}
}

// quickest returns the least of three times: what else the machine does only adds.
func quickest(took func() time.Duration) time.Duration { return min(took(), took(), took()) }

// burst sends 40 packets of 1000 bytes and returns how long they take.
func burst(t *testing.T, from, to *net.UDPConn) time.Duration {
	began := time.Now()
	for range 40 {
		if _, err := from.WriteTo(make([]byte, 1000), to.LocalAddr()); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 40 {
		if !hear(t, to, soon).IsValid() {
			t.Fatalf("%d of 40 packets have come", i)
		}
	}
	return time.Since(began)
}

func TestRateOfACable(t *testing.T) {
	a, ca, cb := two(t, Cable)
	if !reached(t, ca, cb, soon) {
		t.Fatal("nothing passes")
	}
	fast := burst(t, ca, cb)
	a.Port.Rate(100_000) // 32 KiB pass at once
	slow := burst(t, ca, cb)
	a.Port.Rate(0)
	if slow < 300*time.Millisecond || slow < 3*fast {
		t.Errorf("40 KB take %s, and %s at 100 kbit/s", fast, slow)
	}
}

// TestHostThatMoves carries a host from a network behind one router to one behind
// two, and gives it another address there.
func TestHostThatMoves(t *testing.T) {
	l := New(t)
	public := l.Net("public", "11.0.0.0/24")
	server := socket(t, public.Host("server", Attachment{Addr: "11.0.0.1"}).namespace, "11.0.0.1:4001")
	office := public.Router("office", Attachment{Addr: "11.0.0.101"}, "192.168.1.0/24", netfilter.Cone)
	provider := public.Router("provider", Attachment{Addr: "11.0.0.102", Wire: Long}, "100.64.0.0/16", netfilter.Cone)
	cafe := provider.LAN.Router("cafe", Attachment{Addr: "100.64.0.9"}, "192.168.1.0/24", netfilter.Symmetric)
	laptop := office.LAN.Host("laptop", Attachment{Addr: "192.168.1.2", Wire: Long})
	seen := func(addr string) string {
		t.Helper()
		c := socket(t, laptop.namespace, addr)
		defer c.Close()
		say(t, c, "11.0.0.1:4001")
		return hear(t, server, soon).Addr().String()
	}
	if got := seen("192.168.1.2:4001"); got != "11.0.0.101" {
		t.Errorf("in the office it is seen as %s", got)
	}
	laptop.Move(cafe.LAN, Attachment{Addr: "192.168.1.77"})
	if got := seen("192.168.1.77:4001"); got != "11.0.0.102" {
		t.Errorf("in the café it is seen as %s", got)
	}
	laptop.Readdress("192.168.1.78")
	if got := seen("192.168.1.78:4001"); got != "11.0.0.102" {
		t.Errorf("with another address it is seen as %s", got)
	}
	if out, err := laptop.Command("ip", "-4", "addr").CombinedOutput(); err != nil || !strings.Contains(string(out), "192.168.1.78/24") || strings.Contains(string(out), "192.168.1.77") {
		t.Errorf("a process in it sees %s, %v", out, err)
	}
}

// TestNothingIsLeftBehind removes what a lab has made, and what one has made whose
// process is gone; what belongs to a living one stays.
func TestNothingIsLeftBehind(t *testing.T) {
	dead := exec.Command("true")
	if err := dead.Run(); err != nil {
		t.Fatal(err)
	}
	left := fmt.Sprintf("%s%d-1-1-left", family, dead.Process.Pid)
	if err := run("ip", "netns", "add", left); err != nil {
		t.Fatal(err)
	}
	there := func(name string) bool {
		_, err := os.Stat(filepath.Join(where, name))
		return err == nil
	}
	var mine string
	t.Run("a lab", func(t *testing.T) {
		mine = New(t).Net("net", "11.0.0.0/24").name
		New(t)
		if !there(mine) {
			t.Error("a second lab has removed the network of the first")
		}
	})
	if there(mine) || there(left) {
		t.Errorf("left behind: of this run %v, of a dead one %v", there(mine), there(left))
	}
}

// TestProcessesOutliveVisits starts processes that die with the thread that
// started them, as tests do whose processes are to die with them, and then works in
// their network: they live.
func TestProcessesOutliveVisits(t *testing.T) {
	h := New(t).Net("net", "11.0.0.0/24").Host("h", Attachment{Addr: "11.0.0.1"})
	var all []*exec.Cmd
	for range 20 {
		cmd := h.Command("sleep", "600")
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		all = append(all, cmd)
		h.Port.Cut()
		h.Port.Heal()
	}
	for _, cmd := range all {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		err := cmd.Wait()
		if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGTERM {
			t.Errorf("a process was ended before: %v", err)
		}
	}
}

// A failed says what a test was ended with.
type failed struct {
	*testing.T
	with *string
}

// Fatalf ends the goroutine as a test is ended.
func (f failed) Fatalf(format string, args ...any) {
	*f.with = fmt.Sprintf(format, args...)
	panic(f.with)
}

func TestFailuresSayWhichStep(t *testing.T) {
	var with string
	l := New(failed{t, &with})
	n := l.Net("net", "11.0.0.0/24")
	for want, f := range map[string]func(){
		"ip -n":                     func() { n.ip("link", "set", "nothing", "up") },
		"Cannot find device":        func() { n.ip("link", "set", "nothing", "up") },
		"no address of 11.0.0.0/24": func() { n.Host("h", Attachment{Addr: "10.0.0.1"}) },
		"there is a net already":    func() { l.Net("net", "11.0.0.0/24") },
	} {
		func() {
			defer func() { _ = recover() }()
			f()
		}()
		if !strings.Contains(with, want) {
			t.Errorf("it says %q, want %q", with, want)
		}
	}
}
