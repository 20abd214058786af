//go:build linux

package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/balefire/balefire/internal/lab/netfilter"
)

// The environment of a router, also known to commands that run in its container.
const (
	wanVariable = "NETLAB_WAN" // the outer network: 11.0.0.0/24
	lanVariable = "NETLAB_LAN" // the router's address in the inner one: 10.51.1.1/24
	natVariable = "NETLAB_NAT" // cone or symmetric
)

var kinds = map[string]netfilter.NAT{"cone": netfilter.Cone, "symmetric": netfilter.Symmetric}

// router configures everything, then waits: the kernel does the forwarding.
func router([]string) error {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	if err := gateway(); err != nil {
		return err
	}
	if err := netfilter.Route(); err != nil {
		return err
	}
	if err := nat([]string{os.Getenv(natVariable)}); err != nil {
		return err
	}
	fmt.Printf("netlab: %s is behind %s, %s\n", os.Getenv(lanVariable), os.Getenv(wanVariable), os.Getenv(natVariable))
	<-stop
	return nil
}

// gateway takes the address in the inner network that its members send to what is
// for outside. The network itself gives it to nobody.
func gateway() error {
	inner, err := netip.ParsePrefix(os.Getenv(lanVariable))
	if err != nil {
		return fmt.Errorf("%s: %w", lanVariable, err)
	}
	dev, has, err := find(inner)
	if err != nil || has {
		return err
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	mask := net.CIDRMask(inner.Bits(), 32)
	for _, set := range []struct {
		request uint
		value   []byte
	}{{unix.SIOCSIFADDR, inner.Addr().AsSlice()}, {unix.SIOCSIFNETMASK, mask}} {
		req, err := unix.NewIfreq(dev + ":lan") // a second address next to the first
		if err != nil {
			return err
		}
		if err := errors.Join(req.SetInet4Addr(set.value), unix.IoctlIfreq(fd, set.request, req)); err != nil {
			return fmt.Errorf("give %s the address %s: %w; a router needs the capability NET_ADMIN", dev, inner, err)
		}
	}
	return nil
}

// find returns the interface in the network of p, whose name differs from start
// to start, and whether it has p's very address.
func find(p netip.Prefix) (dev string, has bool, err error) {
	all, err := net.Interfaces()
	if err != nil {
		return "", false, err
	}
	for _, i := range all {
		addrs, err := i.Addrs()
		if err != nil {
			return "", false, err
		}
		for _, a := range addrs {
			own, err := netip.ParsePrefix(a.String())
			if err == nil && p.Contains(own.Addr()) {
				dev, has = i.Name, has || own.Addr() == p.Addr()
			}
		}
	}
	if dev == "" {
		return "", false, fmt.Errorf("no interface is in %s", p)
	}
	return dev, has, nil
}

func nat(args []string) error {
	if len(args) != 1 {
		return errors.New("nat wants one word: cone or symmetric")
	}
	kind, ok := kinds[args[0]]
	if !ok {
		return fmt.Errorf("there is no NAT %q: cone or symmetric", args[0])
	}
	outer, err := netip.ParsePrefix(os.Getenv(wanVariable))
	if err != nil {
		return fmt.Errorf("%s: %w", wanVariable, err)
	}
	dev, _, err := find(outer)
	if err != nil {
		return err
	}
	if err := netfilter.Translate(dev, kind); err != nil {
		return err
	}
	return netfilter.Forget()
}

// impair writes what the router does to all that passes. A cut and a loss stand
// in tables of their own: each is changed without the other.
func impair(table string, rules ...netfilter.Rule) error {
	const early = -10 // before the router looks at connections
	return netfilter.Replace(netfilter.Table{Family: netfilter.IPv4, Name: table, Chains: []netfilter.Chain{
		{Name: "pass", Hook: netfilter.Forward, Priority: early, Rules: rules},
	}})
}

func cut(args []string) error {
	if len(args) == 0 {
		return impair("cut", netfilter.Rule{netfilter.Drop()})
	}
	var rules []netfilter.Rule
	for _, arg := range args {
		addr, err := netip.ParseAddr(arg)
		if err != nil {
			return err
		}
		p := netip.PrefixFrom(addr, addr.BitLen())
		rules = append(rules, netfilter.Rule{netfilter.From(p), netfilter.Drop()}, netfilter.Rule{netfilter.To(p), netfilter.Drop()})
	}
	return impair("cut", rules...)
}

func loss(args []string) error {
	if len(args) != 1 {
		return errors.New("loss wants one number, from 0 to 1")
	}
	part, err := strconv.ParseFloat(args[0], 64)
	if err != nil || part < 0 || part > 1 {
		return fmt.Errorf("%q is no part from 0 to 1", args[0])
	}
	return impair("loss", netfilter.Rule{netfilter.Lost(part), netfilter.Drop()})
}

func heal([]string) error { return errors.Join(impair("cut"), impair("loss")) }

func forget([]string) error { return netfilter.Forget() }

// health is well when the inner network has its gateway: everything else was set
// before, or the router would have ended.
func health([]string) error {
	inner, err := netip.ParsePrefix(os.Getenv(lanVariable))
	if err != nil {
		return fmt.Errorf("%s: %w", lanVariable, err)
	}
	_, has, err := find(inner)
	if err == nil && !has {
		err = fmt.Errorf("the address %s is not there", inner.Addr())
	}
	return err
}
