package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/balefire/balefire/node/config"
	"github.com/balefire/balefire/pairing"
	"github.com/balefire/balefire/settings"
)

func initCommand(w *app) *cobra.Command {
	var o pairing.InitOptions
	var listen []string
	c := &cobra.Command{
		Use: "init", Short: "Create this machine's key and configuration",
		Long: `Create the node's key in its folder, and a configuration file with a few examples
as comments: docs/configuration.md has all settings. Running it again changes
nothing: a key is never overwritten. Name and id are data: they are printed with
--quiet, too.

With --new-mesh this node becomes the first of a new mesh and stores its root
key: keep a copy of the identity folder in a safe place. Without it the node
joins a mesh with a ticket: balefire-node join.`,
		Example: `  balefire-node init --new-mesh --name harbor
  balefire-node init --dir ./two --listen 127.0.0.1:4002`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			p, err := w.locate()
			if err != nil {
				return err
			}
			if _, err := listenAddrs(p.File, listen); err != nil {
				return err
			}
			o.Dir = p.Dir
			id, err := pairing.Init(o)
			if err != nil {
				return err
			}
			wrote, err := writeConfig(p.File, listen)
			if err != nil {
				return err
			}
			if wrote {
				w.infof("configuration: %s", p.File)
			}
			return w.show(view{value: id, human: func(out *printer) { printInit(out, p, id) }})
		},
	}
	f := c.Flags()
	f.StringVar(&o.Name, "name", "", "name of this node in the mesh (default: the machine's)")
	f.BoolVar(&o.NewMesh, "new-mesh", false, "create a new mesh with this node")
	addListen(c, &listen)
	return c
}

func printInit(out *printer, p config.Paths, id pairing.Identity) {
	if out.app.flags.quiet {
		out.line("%s", id.ID)
		return
	}
	done := "existing key"
	if id.Created {
		done = "new key"
	}
	out.line("%s  %s  %s in %s", id.Name, shortID(id.ID), done, p.Dir)
	if id.Mesh == "" {
		out.line("next: balefire-node join TICKET    (to create a ticket, run balefire-node invite on a machine of the mesh)")
		return
	}
	out.line("mesh %s", id.Mesh)
	out.line("next: balefire-node run")
}

// addListen adds the flag that sets net.listen in a new configuration file.
func addListen(c *cobra.Command, listen *[]string) {
	c.Flags().StringSliceVar(listen, "listen", nil, "address to listen on, like 0.0.0.0:4001 or a multiaddr; written to a new configuration file (repeatable)")
}

// writeConfig creates a configuration file if there is none.
func writeConfig(path string, listen []string) (wrote bool, err error) {
	addrs, err := listenAddrs(path, listen)
	if err != nil {
		return false, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return false, fmt.Errorf("create the folder of the configuration: %w", err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("write the configuration: %w", err)
	}
	_, err = f.WriteString(config.Starter(addrs))
	return true, errors.Join(err, f.Close())
}

// listenAddrs returns the addresses for a new configuration file. An existing file is not
// changed.
func listenAddrs(path string, listen []string) ([]string, error) {
	addrs, err := multiaddrs(listen)
	if err == nil && len(listen) > 0 && exists(path) {
		err = usage("%s exists and is not changed: set net.listen in it", path)
	}
	return addrs, err
}

// multiaddrs converts HOST:PORT to the two addresses that a node listens on. Multiaddrs are
// returned unchanged.
func multiaddrs(listen []string) ([]string, error) {
	var out []string
	for _, l := range listen {
		if strings.HasPrefix(l, "/") {
			out = append(out, l)
			continue
		}
		host, port, err := net.SplitHostPort(l)
		if err != nil {
			return nil, usage("--listen %.60q: use HOST:PORT, for example 0.0.0.0:4001", l)
		}
		if _, err := netip.ParseAddr(host); err != nil && host != "" {
			return nil, usage("--listen %.60q: the host must be an IP address of this machine, or 0.0.0.0 for all", l)
		}
		family := "/ip4/"
		switch {
		case host == "":
			host = "0.0.0.0"
		case strings.Contains(host, ":"):
			family = "/ip6/"
		}
		out = append(out, family+host+"/udp/"+port+"/quic-v1", family+host+"/tcp/"+port)
	}
	if err := settings.CheckListen(out); err != nil {
		return nil, usage("--listen: %w", err)
	}
	return out, nil
}

// shortID returns the part of an id that people recognize.
func shortID(id string) string {
	if len(id) <= 16 {
		return id
	}
	return id[:10] + "…" + id[len(id)-4:]
}
