package command

import (
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"unicode/utf8"

	"github.com/balefire/balefire/proto"
)

// Limits for the input of a program.
const (
	MaxArgs     = 256       // arguments
	MaxArgBytes = 64 << 10  // bytes of one argument or value; the limit of Linux itself is 128 KiB
	MaxArgTotal = 256 << 10 // bytes of all arguments
)

// check refuses an invalid configuration.
func (c Config) check() error {
	if len(c.Exec) == 0 || c.Exec[0] == "" {
		return errors.New("exec names no program")
	}
	for _, word := range c.Exec {
		if len(word) > MaxArgBytes {
			return fmt.Errorf("exec: a word has %d bytes, at most %d: put a script into a file and name that file", len(word), MaxArgBytes)
		}
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
			return fmt.Errorf("env: %q is not NAME or NAME=VALUE", entry)
		}
		if reserved(name) {
			return fmt.Errorf("env: %s is set by the node itself", name)
		}
	}
	return nil
}

// Admit implements [handler.Admitter]: it returns [ErrArgs] or [ErrEnv].
func (h *Handler) Admit(content *proto.Content) error {
	if err := h.cfg.admitArgs(content.GetArgs(), runtime.GOOS); err != nil {
		return err
	}
	for name, value := range contentEnv(content) {
		if err := checkText(value); err != nil {
			return fmt.Errorf("%w: %s: %w", ErrEnv, name, err)
		}
	}
	return nil
}

// admitArgs checks the arguments of a task. They reach the program unchanged:
// without a shell a metacharacter has no meaning. Only a leading dash could make
// an argument more than data.
func (c Config) admitArgs(args []string, goos string) error {
	if len(args) > 0 && !c.AllowArgs {
		return fmt.Errorf("%w: this handler accepts none: its owner can add it again with args (handler add --args)", ErrArgs)
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
			return fmt.Errorf("%w: number %d begins like a flag, which this handler does not accept: send it as the body, or ask the handler's owner to set allow_flags (handler add --allow-flags)", ErrArgs, i+1)
		}
	}
	if total > MaxArgTotal {
		return fmt.Errorf("%w: %d bytes, at most %d: send them as the body", ErrArgs, total, MaxArgTotal)
	}
	return nil
}

// isFlag reports whether a program might parse arg as an option. A single dash
// means standard input and counts too.
func isFlag(arg, goos string) bool {
	return strings.HasPrefix(arg, "-") || (goos == "windows" && strings.HasPrefix(arg, "/"))
}

// checkText refuses text that is not valid as an argument or value on every
// system.
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
