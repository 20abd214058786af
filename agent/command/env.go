package command

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/proto"
)

// DefaultEnv lists the variables of the node's environment that a program gets by
// default: enough to find programs, a home directory and a language.
func DefaultEnv() []string {
	if runtime.GOOS == "windows" {
		return []string{"PATH", "PATHEXT", "SystemRoot", "SystemDrive", "ComSpec", "TEMP", "TMP", "USERPROFILE", "APPDATA", "LOCALAPPDATA", "ProgramData", "ProgramFiles"}
	}
	return []string{"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR"}
}

// runEnv returns the variables that describe the run to the program.
func runEnv(r *handler.Run) map[string]string {
	env := contentEnv(r.Content)
	env["BALEFIRE_TASK_ID"] = r.ID.String()
	env["BALEFIRE_ATTEMPT"] = strconv.Itoa(r.Attempt)
	env["BALEFIRE_EPOCH"] = fmt.Sprintf("%d.%d", r.Epoch.Boot, r.Epoch.Counter)
	env["BALEFIRE_ORIGIN"] = r.Origin.String()
	return env
}

// contentEnv returns those of them that the sender has chosen.
func contentEnv(c *proto.Content) map[string]string {
	return map[string]string{
		"BALEFIRE_IDEMPOTENCY_KEY": c.GetIdempotencyKey(),
		"BALEFIRE_KIND":            c.GetKind(),
		"BALEFIRE_CONTENT_TYPE":    c.GetContentType(),
		"TRACEPARENT":              c.GetTraceparent(),
	}
}

// environ builds the environment of a program: only listed variables, in a fixed order.
func (h *Handler) environ(r *handler.Run, extra map[string]string, a *account) []string {
	env := make(map[string]string)
	for _, entry := range h.cfg.Env {
		name, value, set := strings.Cut(entry, "=")
		if !set {
			value, set = os.LookupEnv(name)
		}
		if set {
			env[name] = value
		}
	}
	if a != nil {
		for name, value := range map[string]string{"HOME": a.home, "USER": a.name, "LOGNAME": a.name} {
			if slices.Contains(h.cfg.Env, name) {
				env[name] = value
			}
		}
	}
	described := r.Env
	if described == nil {
		described = runEnv(r)
	}
	for name, value := range described {
		if value != "" {
			env[name] = value
		}
	}
	if h.cfg.Node != "" {
		env["BALEFIRE_NODE"] = h.cfg.Node
	}
	maps.Copy(env, extra)
	list := make([]string, 0, len(env))
	for _, name := range slices.Sorted(maps.Keys(env)) {
		list = append(list, name+"="+env[name])
	}
	return list
}

// newMarker returns a marker that is unique to one run.
func newMarker() string {
	var b [16]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}
