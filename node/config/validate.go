package config

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/balefire/balefire/executor"
)

// maxSocket is the longest path of a Unix socket, in bytes, that all supported
// systems accept.
const maxSocket = 103

// Validate reports every problem of l with its location and a hint.
func (l *Loaded) Validate() error {
	var errs []error
	for _, f := range fields() {
		if _, ok := l.origin[f.Key]; !ok {
			continue
		}
		if err := cmp.Or(f.CheckLimits(&l.Config), l.check(f.Key)); err != nil {
			errs = append(errs, fmt.Errorf("%s: %s: %w", l.origin[f.Key], f.Key, err))
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

// check checks one setting beyond its limits: what a node refuses, what only the daemon
// uses, and what is harmless but certainly a mistake in a file.
func (c *Config) check(key string) error {
	switch key {
	case "api.socket":
		return checkSocket(c.API.Socket)
	case "store.max_blobs":
		if c.Store.MaxBlobs > 0 && c.Store.MaxBlobs < c.Store.MaxBlob {
			return fmt.Errorf("%s is less than store.max_blob, %s: a body of that size would never fit", c.Store.MaxBlobs, c.Store.MaxBlob)
		}
	}
	return c.Check(key)
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
