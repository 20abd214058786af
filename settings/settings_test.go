package settings

import (
	"math"
	"reflect"
	"strings"
	"testing"
	"time"
)

// TestEachSettingHasOneDefault checks that each setting is described, that it has a default
// or a text that says how it is computed, and that the tags can be parsed.
func TestEachSettingHasOneDefault(t *testing.T) {
	s, seen := Default(), map[string]bool{}
	for _, f := range Fields(reflect.TypeFor[Settings]()) {
		value, text := f.Tag.Get("default"), f.Tag.Get("defaultText")
		if value != "" && text != "" {
			t.Errorf("%s has two defaults", f.Key)
		}
		if f.computed(&s) != (value == "") {
			t.Errorf("%s is %s by default", f.Key, f.Text(&s))
		}
		if f.Tag.Get("doc") == "" || seen[f.Key] {
			t.Errorf("%s has no description, or two", f.Key)
		}
		seen[f.Key] = true
		for _, tag := range []string{"min", "max"} {
			f.bound(tag, 0) // panics if it cannot be parsed
		}
	}
	if err := s.Validate(); err != nil || len(seen) < 50 {
		t.Errorf("%d settings with their defaults: %v", len(seen), err)
	}
}

// Two programs in one process do not share the defaults that are lists.
func TestDefaultsAreNotShared(t *testing.T) {
	a, b := Default(), Default()
	a.Net.Listen[0] = "x"
	if b.Net.Listen[0] == "x" {
		t.Error("a change of one reaches the other")
	}
}

// TestZeroIsZero checks that a setting whose default is not zero may be zero if its limits
// allow that, and is refused by its name if they do not.
func TestZeroIsZero(t *testing.T) {
	for _, f := range Fields(reflect.TypeFor[Settings]()) {
		s := Default()
		f.value(&s).SetZero()
		low, list := f.bound("min", 0), f.Key == "net.listen"
		err := s.Validate()
		switch bad := f.Tag.Get("default") != "" && (low > 0 || f.Tag.Get("enum") != "" || list); {
		case bad && (err == nil || !strings.HasPrefix(err.Error(), f.Key+": ")):
			t.Errorf("%s is zero: %v", f.Key, err)
		case !bad && err != nil:
			t.Errorf("%s may not be zero: %v", f.Key, err)
		}
	}
}

// TestValidate checks that a program that embeds a node is told what a person with a file
// would be, all of it at once.
func TestValidate(t *testing.T) {
	s := Default()
	s.Store.Engine, s.Mesh.ProbeInterval, s.Net.Relays, s.Net.Score.Loss = "nuts", -time.Second, 5, math.NaN()
	s.Net.Seeds, s.Limits.MemoryLimit = []string{"/ip4/192.0.2.1/tcp/4001"}, 1<<20
	err := s.Validate()
	if err == nil {
		t.Fatal("the settings are accepted")
	}
	for i, want := range []string{
		`store.engine: "nuts" is not one of nutsdb, pebble: did you mean nutsdb?`,
		`net.seeds: "/ip4/192.0.2.1/tcp/4001": it must end in /p2p/`,
		"net.relays: 5 is too large: 0 to 4",
		"net.score.loss: NaN is not a number from 0 to 1000000",
		"mesh.probe_interval: -1s is negative",
		"limits.memory_limit: 1MiB is too small: at least 32MiB",
	} {
		if lines := strings.Split(err.Error(), "\n"); i >= len(lines) || !strings.HasPrefix(lines[i], want) {
			t.Errorf("%v\nwant in line %d: %s", err, i, want)
		}
	}
	s = Default()
	if s.Limits.MemoryLimit = -1; s.Validate() != nil {
		t.Error("a node without a memory limit is refused")
	}
}
