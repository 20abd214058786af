package node

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/proto"
)

// A HandlerSpec describes what this node runs for a kind, and who may request it.
// Nothing is allowed unless Allow lists it.
type HandlerSpec struct {
	Kind        string   `yaml:"kind" json:"kind" doc:"the name that senders use"`
	Type        string   `yaml:"type,omitempty" json:"type,omitempty" enum:"command,discard,echo,sha256" doc:"default command"`
	Exec        []string `yaml:"exec,omitempty" json:"exec,omitempty" doc:"program and its fixed arguments; never a shell line"`
	Args        bool     `yaml:"args,omitempty" json:"args,omitempty" doc:"the task's arguments are appended"`
	AllowFlags  bool     `yaml:"allow_flags,omitempty" json:"allow_flags,omitempty" doc:"with args: also arguments that begin with -; default they are refused"`
	Body        string   `yaml:"body,omitempty" json:"body,omitempty" enum:"stdin,file" doc:"how the program gets the body; default stdin"`
	Allow       []string `yaml:"allow" json:"allow" doc:"peer:NAME (or just NAME), peer:ID or role:ROLE"`
	Profile     string   `yaml:"profile,omitempty" json:"profile,omitempty" enum:"read-only,dev-write,dangerous" doc:"default dev-write; dangerous is allowed peer by peer, never by role"`
	Timeout     string   `yaml:"timeout,omitempty" json:"timeout,omitempty" doc:"of one run; default 10m, 0 none"`
	Concurrency int      `yaml:"concurrency,omitempty" json:"concurrency,omitempty" doc:"runs at once; default the node's slots"`
	MaxAttempts int      `yaml:"max_attempts,omitempty" json:"max_attempts,omitempty" doc:"default 3"`
	MaxRetries  int      `yaml:"max_retries,omitempty" json:"max_retries,omitempty" doc:"attempts that a task may ask for with --retries; default max_attempts"`
	Lanes       string   `yaml:"lanes,omitempty" json:"lanes,omitempty" enum:"origin,shared" doc:"which tasks with one ordering key run in order: those of each origin (default), or shared: those of all origins; it is for tasks sent to this node by name, a queue has its own setting"`
	OnCrash     string   `yaml:"on_crash,omitempty" json:"on_crash,omitempty" enum:"retry,probe,park" doc:"what happens when a run was cut off; default park: nothing is repeated unless it was declared repeatable; probe runs exec --check KEY: 0 done, 10 not done"`
	MaxBody     int64    `yaml:"max_body,omitempty" json:"max_body,omitempty" doc:"bytes; default only the node's limit"`
	MaxOutput   int64    `yaml:"max_output,omitempty" json:"max_output,omitempty" doc:"bytes of standard output; default 10 MiB"`
	OnOverflow  string   `yaml:"on_overflow,omitempty" json:"on_overflow,omitempty" enum:"fail,cut" doc:"when a run writes more than max_output, or than the task's max_result: fail (default) stops it and ends the task as FAILED, OUTPUT_TOO_LARGE; cut keeps the beginning and lets it succeed"`
	Env         []string `yaml:"env,omitempty" json:"env,omitempty" doc:"names of the node's environment variables that the program gets"`
	RunAs       string   `yaml:"run_as,omitempty" json:"run_as,omitempty" doc:"USER or USER:GROUP that the program runs as, so that it cannot read the node's keys; Linux, and the node needs CAP_SETUID and CAP_SETGID; default the node's user"`
	Dir         string   `yaml:"dir,omitempty" json:"dir,omitempty" doc:"working folder; default a new one for each run"`

	// Function does the work, for a program that embeds the node, instead of Exec.
	Function handler.Handler `yaml:"-" json:"-"`
}

// overflowCut keeps the beginning of an output that is too large.
const overflowCut = "cut"

// maxKind is the longest kind, in bytes.
const maxKind = 128

// validKind reports whether s is 1 to maxKind of a-z 0-9 . _ - and begins with a
// letter or a digit. It is called for each task.
func validKind(s string) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9':
		case i > 0 && (c == '.' || c == '_' || c == '-'):
		default:
			return false
		}
	}
	return 0 < len(s) && len(s) <= maxKind
}

// Validate returns what is wrong with s, or nil.
func (s HandlerSpec) Validate() error {
	fail := func(format string, a ...any) error {
		return fmt.Errorf("handler %.40q: %s", s.Kind, fmt.Sprintf(format, a...))
	}
	typ, typeErr := s.typ()
	switch {
	case !validKind(s.Kind):
		return fail("a kind must be 1-128 of a-z 0-9 . _ - and begin with a letter or digit")
	case len(s.Allow) == 0:
		return fail("nobody may request it: add allow: peer:NAME or role:ROLE")
	case typeErr != nil:
		return fail("%v", typeErr)
	case (s.Function != nil) != (s.Type == TypeFunction):
		return fail("type %s is for a program that embeds a node: it registers a function with Config.Handle", TypeFunction)
	case typ.program && len(s.Exec) == 0:
		return fail("no program: set exec to the program and its arguments")
	case !typ.program && len(s.Exec) > 0:
		return fail("type %s runs no program: drop exec", s.Type)
	case s.RunAs != "" && !typ.program:
		return fail("type %s runs no program: drop run_as", s.Type)
	case s.AllowFlags && !s.Args:
		return fail("allow_flags has no effect without args: set args too")
	case !oneOf(s.Body, "", "stdin", "file"):
		return fail("body %.40q: use stdin or file", s.Body)
	case !oneOf(s.OnOverflow, "", "fail", overflowCut):
		return fail("on_overflow %.40q: use fail or cut", s.OnOverflow)
	case !oneOf(s.Profile, "", "read-only", "dev-write", "dangerous"):
		return fail("profile %.40q: use read-only, dev-write or dangerous", s.Profile)
	case !oneOf(s.Lanes, "", LanesOrigin, LanesShared):
		return fail("lanes %.40q: use origin or shared", s.Lanes)
	case !oneOf(s.OnCrash, "", "retry", "probe", "park"):
		return fail("on_crash %.40q: use retry, probe or park", s.OnCrash)
	case s.OnCrash == "probe" && !typ.program && s.Function == nil:
		return fail("on_crash probe asks a program (exec --check KEY), and type %s runs none", s.Type)
	case s.MaxRetries > 0 && s.MaxRetries < cmp.Or(s.MaxAttempts, 3):
		return fail("max_retries is %d, but a task has %d attempts by default", s.MaxRetries, cmp.Or(s.MaxAttempts, 3))
	case s.Concurrency < 0 || s.MaxAttempts < 0 || s.MaxRetries < 0 || s.MaxBody < 0 || s.MaxOutput < 0:
		return fail("a limit is negative")
	}
	if _, err := s.timeout(); err != nil {
		return fail("timeout: %v", err)
	}
	return s.validateAllow(fail)
}

func (s HandlerSpec) validateAllow(fail func(string, ...any) error) error {
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
	return err == nil || nameRE.MatchString(who)
}

// timeout returns the limit of one run; 0 means none.
func (s HandlerSpec) timeout() (time.Duration, error) {
	switch s.Timeout {
	case "":
		return 10 * time.Minute, nil
	case "0":
		return 0, nil
	}
	d, err := time.ParseDuration(s.Timeout)
	if err != nil || d < 0 {
		return 0, fmt.Errorf("%.40q is not a duration: write it as 90s, 15m or 36h, or 0 for none", s.Timeout)
	}
	return d, nil
}

func oneOf(s string, words ...string) bool {
	for _, w := range words {
		if s == w {
			return true
		}
	}
	return false
}

const handlersFile = "handlers.json"

// loadHandlers reads the handlers that AddHandler wrote.
func loadHandlers(dir string) ([]HandlerSpec, error) {
	b, err := os.ReadFile(filepath.Join(dir, handlersFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read handlers: %w", err)
	}
	var specs []HandlerSpec
	if err := json.Unmarshal(b, &specs); err != nil {
		return nil, fmt.Errorf("read %s: %w: repair the file, or remove it and add the handlers again", filepath.Join(dir, handlersFile), err)
	}
	return specs, nil
}

// saveHandlers replaces the file of added handlers atomically.
func saveHandlers(dir string, specs []HandlerSpec) error {
	b, err := json.MarshalIndent(specs, "", "  ")
	if err != nil {
		return err
	}
	return writeFile(filepath.Join(dir, handlersFile), append(b, '\n'), 0o600)
}
