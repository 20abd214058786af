package command

import (
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"unicode/utf8"

	"github.com/balefire/balefire/handler"
)

// Limits of what a task may say to a program.
const (
	MaxArgs     = 256       // arguments
	MaxArgBytes = 64 << 10  // bytes of one argument or value; Linux itself ends at 128 KiB
	MaxArgTotal = 256 << 10 // bytes of all arguments
)

// check refuses a configuration that cannot be meant.
func (c Config) check() error {
	if len(c.Exec) == 0 || c.Exec[0] == "" {
		return errors.New("exec names no program")
	}
	for _, word := range c.Exec {
		if err := checkText(word); err != nil {
			return fmt.Errorf("exec: %w", err)
		}
	}
	if name := c.Exec[0]; !filepath.IsAbs(name) && strings.ContainsAny(name, `/\`) {
		return fmt.Errorf("exec: %q depends on the working directory: use an absolute path or a bare name", name)
	}
	if err := refuseBatch(c.Exec[0], runtime.GOOS); err != nil {
		return err
	}
	for _, entry := range c.Env {
		name, value, _ := strings.Cut(entry, "=")
		if !validEnv.MatchString(name) || checkText(value) != nil {
			return fmt.Errorf("env: %q is no NAME or NAME=VALUE", entry)
		}
		if reserved(name) {
			return fmt.Errorf("env: %s is set by the node itself", name)
		}
	}
	return nil
}

// Admit says whether the handler would start for r. It returns [ErrArgs] or
// [ErrEnv]; nothing is run.
func (h *Handler) Admit(r *handler.Run) error {
	if err := h.cfg.admitArgs(r.Content.GetArgs(), runtime.GOOS); err != nil {
		return err
	}
	for name, value := range runEnv(r) {
		if err := checkText(value); err != nil {
			return fmt.Errorf("%w: %s: %w", ErrEnv, name, err)
		}
	}
	return nil
}

// admitArgs decides about the arguments of a task. They reach the program as
// they are: a metacharacter means nothing without a shell. What could turn an
// argument into something else than data is a leading dash.
func (c Config) admitArgs(args []string, goos string) error {
	if len(args) > 0 && !c.AllowArgs {
		return fmt.Errorf("%w: this handler takes none: have its owner add it again with args (handler add --args)", ErrArgs)
	}
	if len(args) > MaxArgs {
		return fmt.Errorf("%w: %d arguments, at most %d", ErrArgs, len(args), MaxArgs)
	}
	total := 0
	for i, arg := range args {
		total += len(arg)
		if err := checkText(arg); err != nil {
			return fmt.Errorf("%w: number %d: %w", ErrArgs, i+1, err)
		}
		if !c.AllowFlags && isFlag(arg, goos) {
			return fmt.Errorf("%w: number %d begins like a flag, and this handler takes none: send it as the body, or have the handler's owner set allow_flags (handler add --allow-flags)", ErrArgs, i+1)
		}
	}
	if total > MaxArgTotal {
		return fmt.Errorf("%w: %d bytes, at most %d: send them as the body", ErrArgs, total, MaxArgTotal)
	}
	return nil
}

// isFlag reports whether a program might read arg as an option. A lone dash
// means standard input and counts too.
func isFlag(arg, goos string) bool {
	return strings.HasPrefix(arg, "-") || (goos == "windows" && strings.HasPrefix(arg, "/"))
}

// checkText refuses what cannot be an argument or a value on every system.
func checkText(s string) error {
	switch {
	case strings.ContainsRune(s, 0):
		return errors.New("it contains a NUL byte")
	case !utf8.ValidString(s):
		return errors.New("it is not UTF-8")
	case len(s) > MaxArgBytes:
		return fmt.Errorf("it has %d bytes, at most %d: send it as the body", len(s), MaxArgBytes)
	}
	return nil
}

var validEnv = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// reserved reports whether the node itself sets name.
func reserved(name string) bool {
	name = strings.ToUpper(name)
	return strings.HasPrefix(name, "BALEFIRE_") || name == "TRACEPARENT"
}
