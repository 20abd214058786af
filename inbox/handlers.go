package inbox

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/proto"
)

// OnCrash is what to do about a start without an end after the process has died.
type OnCrash string

// The policies.
const (
	OnCrashRetry OnCrash = "retry" // start again: the handler is idempotent
	OnCrashProbe OnCrash = "probe" // ask the handler whether it had its effect
	OnCrashPark  OnCrash = "park"  // end as a dead letter: an operator decides
)

// Profile is how much harm the tasks of a kind can do.
type Profile string

// The profiles.
const (
	ReadOnly  Profile = "read-only"
	DevWrite  Profile = "dev-write"
	Dangerous Profile = "dangerous" // allowed only by peer, never by role, and only if Config.Dangerous names the kind
)

// A Spec describes how tasks of one kind are run and who may send them. A zero number means
// the default; no peer is allowed unless Allow names it.
type Spec struct {
	Kind        string
	Handler     handler.Handler
	Allow       []string      // "peer:<id or name>", "role:<role>", "*" for every member
	Profile     Profile       // default dev-write
	Concurrency int           // runs at a time; default: the number of slots
	MaxAttempts int           // ended runs before a task is a dead letter, unless it asks for fewer; default 3
	MaxRetries  int           // most ended runs that a task may ask for; default MaxAttempts
	SharedLanes bool          // tasks with one ordering key run one after the other across all origins; default: for each origin
	OnCrash     OnCrash       // default park: only handlers declared repeatable are repeated
	Timeout     time.Duration // of one run; default 10 min; negative: none
	MaxBody     uint64        // bytes of the plain body; default: no limit
}

// ErrSpec is returned for an invalid spec.
var ErrSpec = errors.New("inbox: invalid handler")

// A rule is one entry of an allow list.
type rule struct {
	peer proto.PeerID // if role and name are empty
	name string
	role string
	all  bool
}

// A registration is a spec that was checked.
type registration struct {
	Spec
	rules []rule
}

// Members looks up peers. It is called for each arriving task and each start, and must be
// fast.
type Members interface {
	// Member returns the name and the roles of an admitted peer; ok is false for all
	// others.
	Member(p proto.PeerID) (name string, roles []string, ok bool)
}

// A registry holds the handlers. Reading it takes no lock.
type registry struct {
	mu        sync.Mutex
	byKind    atomic.Pointer[map[string]*registration] // never changed, only replaced
	suspended sync.Map                                 // by kind, why its handler cannot be started now
	dangerous []string
}

func newRegistry(dangerous []string) *registry {
	g := &registry{dangerous: dangerous}
	g.byKind.Store(&map[string]*registration{})
	return g
}

// find returns the handler of a kind, nil if there is none.
func (g *registry) find(kind string) *registration { return (*g.byKind.Load())[kind] }

// suspendedReason returns why tasks of a kind cannot be started now; empty: they can.
func (g *registry) suspendedReason(kind string) string {
	if why, ok := g.suspended.Load(kind); ok {
		return why.(string)
	}
	return ""
}

func (g *registry) put(h *registration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	m := maps.Clone(*g.byKind.Load())
	m[h.Kind] = h
	g.byKind.Store(&m)
}

func (g *registry) remove(kind string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	m := maps.Clone(*g.byKind.Load())
	_, was := m[kind]
	delete(m, kind)
	g.byKind.Store(&m)
	return was
}

// specs returns the registered specs by kind.
func (g *registry) specs() []Spec {
	var out []Spec
	for _, h := range *g.byKind.Load() {
		out = append(out, h.Spec)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Kind < out[j].Kind })
	return out
}

// compile validates a spec and parses its allow list.
func (g *registry) compile(s Spec) (*registration, error) {
	s.Profile = cmp.Or(s.Profile, DevWrite)
	s.OnCrash = cmp.Or(s.OnCrash, OnCrashPark)
	s.MaxAttempts = cmp.Or(s.MaxAttempts, 3)
	s.MaxRetries = cmp.Or(s.MaxRetries, s.MaxAttempts)
	s.Timeout = cmp.Or(s.Timeout, 10*time.Minute)
	s.Allow = slices.Clone(s.Allow)
	h := &registration{Spec: s}
	bad := func(format string, a ...any) (*registration, error) {
		return nil, fmt.Errorf("%w: kind %.40q: %s", ErrSpec, s.Kind, fmt.Sprintf(format, a...))
	}
	_, probes := s.Handler.(handler.Prober)
	switch {
	case s.Kind == "" || len(s.Kind) > proto.MaxKind:
		return bad("a kind has 1 to %d bytes", proto.MaxKind)
	case s.Handler == nil:
		return bad("it has no handler")
	case s.MaxAttempts < 0 || s.MaxRetries < 0 || s.Concurrency < 0:
		return bad("a negative limit")
	case s.MaxRetries < s.MaxAttempts:
		return bad("a task may ask for %d attempts, and has %d without asking", s.MaxRetries, s.MaxAttempts)
	case s.OnCrash != OnCrashRetry && s.OnCrash != OnCrashProbe && s.OnCrash != OnCrashPark:
		return bad("on_crash is %.20q: it is retry, probe or park", s.OnCrash)
	case s.OnCrash == OnCrashProbe && !probes:
		return bad("on_crash is probe, but the handler cannot be asked: give it a check, or choose retry or park")
	case s.Profile != ReadOnly && s.Profile != DevWrite && s.Profile != Dangerous:
		return bad("profile is %.20q: it is read-only, dev-write or dangerous", s.Profile)
	case s.Profile == Dangerous && !slices.Contains(g.dangerous, s.Kind):
		return bad("it is dangerous: name it under dangerous in this node's own configuration")
	}
	for _, text := range s.Allow {
		r, err := parseRule(text)
		if err != nil {
			return bad("%v", err)
		}
		if s.Profile == Dangerous && (r.all || r.role != "") {
			return bad("it is dangerous: allow it to peers by name or id, not %q", text)
		}
		h.rules = append(h.rules, r)
	}
	return h, nil
}

func parseRule(text string) (rule, error) {
	what, who, _ := strings.Cut(text, ":")
	switch {
	case text == "*":
		return rule{all: true}, nil
	case what == "role" && who != "":
		return rule{role: who}, nil
	case what == "peer" && who != "":
		if p, err := proto.ParsePeerID(who); err == nil {
			return rule{peer: p}, nil
		}
		return rule{name: who}, nil
	}
	if !strings.Contains(text, ":") && text != "" {
		return rule{}, fmt.Errorf("allow %.60q: must be peer:NAME, peer:ID, role:ROLE or *: write peer:%.60s", text, text)
	}
	return rule{}, fmt.Errorf("allow %.60q: must be peer:NAME, peer:ID, role:ROLE or *", text)
}

// CheckAllow validates an allow list.
func CheckAllow(list []string) error {
	for _, text := range list {
		if _, err := parseRule(text); err != nil {
			return err
		}
	}
	return nil
}

// Allowed reports whether an allow list admits a member.
func Allowed(list []string, origin proto.PeerID, m Members) bool {
	h := &registration{}
	for _, text := range list {
		if r, err := parseRule(text); err == nil {
			h.rules = append(h.rules, r)
		}
	}
	return h.allows(origin, m)
}

// allowsAll reports whether the origin of a task and all its delegates are allowed.
func (h *registration) allowsAll(origin proto.PeerID, delegates []proto.PeerID, m Members) bool {
	return h.allows(origin, m) && !slices.ContainsFunc(delegates, func(p proto.PeerID) bool { return !h.allows(p, m) })
}

// allows reports whether the origin may send tasks of the kind. Only members may.
func (h *registration) allows(origin proto.PeerID, m Members) bool {
	if len(h.rules) == 0 {
		return false
	}
	name, roles, ok := m.Member(origin)
	return ok && slices.ContainsFunc(h.rules, func(r rule) bool {
		switch {
		case r.all:
			return true
		case r.role != "":
			return slices.Contains(roles, r.role)
		case r.name != "":
			return r.name == name
		}
		return r.peer == origin
	})
}

// maxAttempts returns the number of attempts of a task: what it asks for, at most what the
// handler allows, or else the handler's default.
func (h *registration) maxAttempts(requested uint32) uint32 {
	if requested > 0 {
		return min(requested, uint32(h.MaxRetries))
	}
	return uint32(h.MaxAttempts)
}
