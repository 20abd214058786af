package executor

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/balefire/balefire/disk"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// overflowCut keeps the beginning of an output that is too large.
const overflowCut = "cut"

// Validate returns what is wrong with s, or nil.
func Validate(s wire.HandlerSpec) error {
	fail := func(format string, a ...any) error {
		return fmt.Errorf("handler %.40q: %s", s.Kind, fmt.Sprintf(format, a...))
	}
	typ, typeErr := typeOf(s)
	switch {
	case !proto.ValidKind(s.Kind):
		return fail("a kind must be 1-128 of a-z 0-9 . _ - and begin with a letter or digit")
	case len(s.Allow) == 0:
		return fail("nobody may request it: add allow: peer:NAME or role:ROLE")
	case typeErr != nil:
		return fail("%v", typeErr)
	case typ.program() && len(s.Exec) == 0:
		return fail("no program: set exec to the program and its arguments")
	case typ.unusedOption(s) != "":
		name := typ.unusedOption(s)
		return fail("%s has no effect for type %s, only for %s: drop %s, or choose another type", name, typeName(s), strings.Join(OptionTypes(name), " and "), name)
	case s.AllowFlags && !s.Args:
		return fail("allow_flags has no effect without args: set args too")
	case !oneOf(s.Body, "", "stdin", "file"):
		return fail("body %.40q: use stdin or file", s.Body)
	case !oneOf(s.OnOverflow, "", "fail", overflowCut):
		return fail("on_overflow %.40q: use fail or cut", s.OnOverflow)
	case !oneOf(s.Profile, "", "read-only", "dev-write", "dangerous"):
		return fail("profile %.40q: use read-only, dev-write or dangerous", s.Profile)
	case !oneOf(s.Lanes, "", wire.LanesOrigin, wire.LanesShared):
		return fail("lanes %.40q: use origin or shared", s.Lanes)
	case !oneOf(s.OnCrash, "", "retry", "probe", "park"):
		return fail("on_crash %.40q: use retry, probe or park", s.OnCrash)
	case s.OnCrash == "probe" && !typ.probed:
		return fail("on_crash probe asks a program (exec --check KEY), and type %s runs none", s.Type)
	case s.MaxRetries > 0 && s.MaxRetries < cmp.Or(s.MaxAttempts, 3):
		return fail("max_retries is %d, but a task has %d attempts by default", s.MaxRetries, cmp.Or(s.MaxAttempts, 3))
	}
	for _, limit := range []struct {
		name string
		n    int64
	}{{"concurrency", int64(s.Concurrency)}, {"max_attempts", int64(s.MaxAttempts)}, {"max_retries", int64(s.MaxRetries)}, {"max_body", s.MaxBody}, {"max_output", s.MaxOutput}} {
		if limit.n < 0 {
			return fail("%s is %d: it must not be negative", limit.name, limit.n)
		}
	}
	if _, err := runLimit(s); err != nil {
		return fail("timeout: %v", err)
	}
	return validateAllow(s, fail)
}

func validateAllow(s wire.HandlerSpec, fail func(string, ...any) error) error {
	for _, a := range allowed(s.Allow) {
		what, who, _ := strings.Cut(a, ":")
		switch {
		case what != "peer" && what != "role" || who == "":
			return fail("allow %.60q: use peer:NAME, peer:ID or role:ROLE", a)
		case what == "peer" && !isPeer(who):
			return fail("allow %.60q: no peer can have that name or id", a)
		case what == "role" && s.Profile == "dangerous":
			return fail("a dangerous handler is allowed peer by peer, not by %s", a)
		}
	}
	return nil
}

// allowed expands an allow list: a word without a colon is the name of a peer.
func allowed(list []string) []string {
	out := slices.Clone(list)
	for i, a := range out {
		if !strings.Contains(a, ":") {
			out[i] = "peer:" + a
		}
	}
	return out
}

// isPeer reports whether a word may refer to a peer, by its id or its name.
func isPeer(who string) bool {
	_, err := proto.ParsePeerID(who)
	return err == nil || identity.IsLabel(who)
}

// runLimit returns the limit of one run; 0 means none.
func runLimit(s wire.HandlerSpec) (time.Duration, error) {
	if s.Timeout == "" {
		return 10 * time.Minute, nil
	}
	d, err := wire.ParseDuration(s.Timeout)
	return time.Duration(d), err
}

// checkFolder returns why programs cannot run in dir. A folder that only another user may
// inspect is left to the run.
func checkFolder(dir string) error {
	if dir == "" {
		return nil
	}
	info, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrPermission):
	case err != nil:
		return fmt.Errorf("the working folder %.200q does not exist on this node: create it, or name one that exists", dir)
	case !info.IsDir():
		return fmt.Errorf("the working folder %.200q is not a folder: name one, or leave it out for a new folder for each run", dir)
	}
	return nil
}

func oneOf(s string, words ...string) bool { return slices.Contains(words, s) }

const handlersFile = "handlers.json"

// loadAdded reads the handlers that Add wrote.
func loadAdded(dir string) ([]wire.HandlerSpec, error) {
	b, err := os.ReadFile(filepath.Join(dir, handlersFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read handlers: %w", err)
	}
	var specs []wire.HandlerSpec
	if err := json.Unmarshal(b, &specs); err != nil {
		return nil, fmt.Errorf("read %s: %w: repair the file, or remove it and add the handlers again", filepath.Join(dir, handlersFile), err)
	}
	return specs, nil
}

// saveAdded replaces the file of added handlers atomically.
func saveAdded(dir string, specs []wire.HandlerSpec) error {
	b, err := json.MarshalIndent(specs, "", "  ")
	if err != nil {
		return err
	}
	return disk.WriteFile(filepath.Join(dir, handlersFile), append(b, '\n'))
}
