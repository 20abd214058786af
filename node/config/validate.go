package config

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/balefire/balefire/executor"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// maxSocket is the longest path of a Unix socket, in bytes, that all supported
// systems accept.
const maxSocket = 103

// maxLabels is the highest number of labels that a node announces.
const maxLabels = 32

var labelRE = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9._/=-]{0,127}$`)

var kindRE = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,127}$`)

// Validate reports every problem of l with its location and a hint.
func (l *Loaded) Validate() error {
	var errs []error
	for _, s := range specs() {
		if _, ok := l.origin[s.key]; !ok {
			continue
		}
		if err := s.check(&l.Config); err != nil {
			errs = append(errs, fmt.Errorf("%s: %s: %w", l.origin[s.key], s.key, err))
		}
	}
	for _, h := range l.Handlers {
		err := executor.Validate(h)
		if err == nil && h.Profile == "dangerous" && !slices.Contains(l.Dangerous, h.Kind) {
			err = fmt.Errorf("handler %q is dangerous: also add %s to the list dangerous of this configuration", h.Kind, h.Kind)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", l.handlers[h.Kind], err))
		}
	}
	return errors.Join(errs...)
}

// check compares the value with the limits in the tags and then runs the check
// of the setting itself, if it has one.
func (s spec) check(c *Config) error {
	f := reflect.ValueOf(c).Elem().FieldByIndex(s.index)
	switch v := f.Interface().(type) {
	case string:
		if enum := s.tag.Get("enum"); enum != "" && !slices.Contains(strings.Split(enum, ","), v) {
			return fmt.Errorf("%.40q is not one of %s%s", v, s.limits(), suggest(v, strings.Split(enum, ",")))
		}
	case int, Bytes, wire.Duration:
		if err := s.checkRange(f); err != nil {
			return err
		}
	}
	switch s.key {
	case "net.listen":
		return checkAddrs(c.Net.Listen, false)
	case "net.announce":
		return checkAddrs(c.Net.Announce, true)
	case "net.seeds":
		return checkSeeds(c.Net.Seeds)
	case "mesh.labels":
		return checkLabels(c.Mesh.Labels)
	case "api.socket":
		return checkSocket(c.API.Socket)
	case "dangerous":
		return checkKinds(c.Dangerous)
	case "store.max_blobs":
		if c.Store.MaxBlobs > 0 && c.Store.MaxBlobs < c.Store.MaxBlob {
			return fmt.Errorf("%s is less than store.max_blob, %s: a body of that size would never fit", c.Store.MaxBlobs, c.Store.MaxBlob)
		}
	}
	return nil
}

func (s spec) checkRange(f reflect.Value) error {
	var low, high Config
	bound := func(tag string, c *Config) (int64, bool) {
		text := s.tag.Get(tag)
		if text == "" || s.set(c, text) != nil {
			return 0, false
		}
		return reflect.ValueOf(c).Elem().FieldByIndex(s.index).Int(), true
	}
	n := f.Int()
	switch {
	case n < 0 && s.key == "limits.memory_limit": // none
		return nil
	case n < 0:
		return fmt.Errorf("%v is negative", f.Interface())
	}
	if b, ok := bound("min", &low); ok && n < b {
		return fmt.Errorf("%v is too small: %s", f.Interface(), s.limits())
	}
	if b, ok := bound("max", &high); ok && n > b {
		return fmt.Errorf("%v is too large: %s", f.Interface(), s.limits())
	}
	return nil
}

func checkAddrs(addrs []string, announced bool) error {
	if len(addrs) == 0 && !announced {
		return errors.New("the list is empty: peers cannot reach a node without a listen address")
	}
	for _, a := range addrs {
		if err := checkAddr(a, announced); err != nil {
			return fmt.Errorf("%.100q: %w, for example /ip4/0.0.0.0/udp/4001/quic-v1 or /ip4/0.0.0.0/tcp/4001", a, err)
		}
	}
	return nil
}

// checkSeeds checks the format of members' addresses.
func checkSeeds(seeds []string) error {
	for _, s := range seeds {
		addr, id, found := strings.Cut(s, "/p2p/")
		if _, err := proto.ParsePeerID(id); !found || err != nil {
			return fmt.Errorf("%.150q: it must end in /p2p/ and the id of a node, which `balefire-node status -o wide` prints", s)
		}
		if err := checkAddr(addr, true); err != nil {
			return fmt.Errorf("%.150q: %w, for example /ip4/192.0.2.1/udp/4001/quic-v1/p2p/12D3Koo…", s, err)
		}
	}
	return nil
}

func checkLabels(labels []string) error {
	if len(labels) > maxLabels {
		return fmt.Errorf("%d labels, at most %d", len(labels), maxLabels)
	}
	for _, l := range labels {
		if !labelRE.MatchString(l) {
			return fmt.Errorf("%.150q is not a label: use a word or key=value of a-z A-Z 0-9 . _ / -, at most 128 bytes", l)
		}
	}
	return nil
}

// checkAddr checks the format of a multiaddr. Whether the machine has the
// address turns out when the node listens.
func checkAddr(addr string, announced bool) error {
	parts := strings.Split(addr, "/")
	if len(parts) < 5 || parts[0] != "" {
		return errors.New("not a multiaddr")
	}
	ip, err := netip.ParseAddr(parts[2])
	switch parts[1] {
	case "ip4":
		if err != nil || !ip.Is4() {
			return errors.New("the second part is not an IPv4 address")
		}
	case "ip6":
		if err != nil || !ip.Is6() {
			return errors.New("the second part is not an IPv6 address")
		}
	case "dns", "dns4", "dns6":
		if !announced {
			return errors.New("cannot listen on a name: use an IP address")
		}
	default:
		return fmt.Errorf("%.20q: must begin with ip4 or ip6", parts[1])
	}
	port, err := strconv.ParseUint(parts[4], 10, 16)
	if err != nil || announced && port == 0 {
		return errors.New("the port must be a number up to 65535")
	}
	switch form := parts[3] + "/" + strings.Join(parts[5:], "/"); form {
	case "tcp/", "udp/quic-v1":
		return nil
	default:
		return fmt.Errorf("%.40q: must be tcp/PORT or udp/PORT/quic-v1", cmp.Or(strings.Join(parts[3:], "/"), "nothing"))
	}
}

func checkSocket(path string) error {
	switch {
	case path == "":
		return errors.New("the path is empty")
	case !filepath.IsAbs(path):
		return fmt.Errorf("%.80q: must be an absolute path", path)
	case len(path) > maxSocket:
		return fmt.Errorf("%d bytes long, the limit for a socket path is %d: choose a shorter one", len(path), maxSocket)
	}
	return nil
}

func checkKinds(kinds []string) error {
	for _, k := range kinds {
		if !kindRE.MatchString(k) {
			return fmt.Errorf("%.40q is not a kind: use 1-128 of a-z 0-9 . _ -", k)
		}
	}
	return nil
}
