//go:build linux

package main

import (
	"go/ast"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestRepeatHasTheRealTests checks that repeat finds the tests which start processes or open
// real sockets, themselves and through their helpers, and not those in virtual time.
func TestRepeatHasTheRealTests(t *testing.T) {
	dirs, names, err := realTests("../..")
	must(t, err)
	for _, dir := range []string{"./mailbox", "./node", "./node/nodetest", "./ownership", "./pairing", "./store", "./store/ledger", "./store/nuts", "./store/pebble"} {
		if !slices.Contains(dirs, dir) {
			t.Errorf("the package %s is not repeated", dir)
		}
	}
	for name, want := range map[string]bool{
		"TestTaskAndResultCrossTheMesh": true, "TestInterruptedRestore": true, "TestPost": true, "TestKill": true, "Example": true,
		"TestVirtualHours": false, "TestSimulator": false,
	} {
		if slices.Contains(names, name) != want {
			t.Errorf("%s: repeated is %v, want %v", name, !want, want)
		}
	}
}

func TestRemainingTimeOfRepeat(t *testing.T) {
	for _, tt := range []struct {
		name        string
		took        [2]time.Duration
		next, times int
		want        time.Duration
	}{
		{"one round ran", [2]time.Duration{time.Minute, 0}, 1, 4, 3 * time.Minute},
		{"one of each kind", [2]time.Duration{time.Minute, 3 * time.Minute}, 2, 5, 5 * time.Minute},
		{"the last one", [2]time.Duration{time.Minute, 3 * time.Minute}, 5, 5, 0},
	} {
		if got := remaining(tt.took, tt.next, tt.times); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

// TestStepsReadWhatTheirTestsRead checks that the long form of each test of real processes
// runs again when a file of the repository that it names was changed.
func TestStepsReadWhatTheirTestsRead(t *testing.T) {
	all, err := parseTests("../../e2e", "e2e")
	must(t, err)
	for _, s := range soakSteps {
		for _, path := range s.reads {
			if _, err := os.Stat(filepath.Join("../..", path)); err != nil {
				t.Errorf("%s: %v", s.name, err)
			}
		}
		all.walk(s.name, func(n ast.Node) {
			if path := repositoryFile(n); path != "" && !slices.ContainsFunc(s.reads, func(r string) bool { return path == r || strings.HasPrefix(path, r+"/") }) {
				t.Errorf("%s reads %s: add it to reads", s.name, path)
			}
		})
	}
}

// TestEveryLongFormIsInSoak checks that each test which reads a variable for its long form,
// itself or through a helper in its folder, is in a step of soak that sets one.
// TestEveryProcessTestIsInSoak checks those of real processes.
func TestEveryLongFormIsInSoak(t *testing.T) {
	found := 0
	must(t, filepath.WalkDir("../..", func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.IsDir() {
			return err
		}
		dir := strings.TrimPrefix(path, "../../")
		if slices.Contains([]string{".git", "bench", "dist", "e2e", "third_party", "tools"}, dir) {
			return fs.SkipDir
		}
		all, err := parseTests(path)
		if err != nil {
			return err
		}
		for _, test := range all.tests() {
			reads := map[string]bool{}
			all.walk(test, func(n ast.Node) {
				if name := longVariable(n); name != "" {
					reads[name] = true
				}
			})
			if len(reads) == 0 {
				continue
			}
			found++
			if !slices.ContainsFunc(soakSteps, func(s step) bool {
				return slices.Contains(s.covers, "./"+dir) && slices.Contains(s.tests, test) && slices.ContainsFunc(s.env, func(set string) bool {
					name, _, _ := strings.Cut(set, "=")
					return reads[name]
				})
			}) {
				t.Errorf("%s: %s reads one of %v, and no step of soak sets it", dir, test, slices.Sorted(maps.Keys(reads)))
			}
		}
		return nil
	}))
	if found == 0 {
		t.Error("no test has a long form")
	}
}

// TestEveryFuzzTargetOfMailIsInSoak checks that each fuzz target of the packages of mail has time
// in soak, and that each target there is one: go test passes without a word if it finds none.
func TestEveryFuzzTargetOfMailIsInSoak(t *testing.T) {
	i := slices.IndexFunc(soakSteps, func(s step) bool { return s.name == "fuzz" })
	runs := map[string]bool{}
	for _, m := range regexp.MustCompile(`-fuzz '\^(\w+)\$' -fuzztime \S+ \./(\S+)`).FindAllStringSubmatch(soakSteps[i].argv[2], -1) {
		runs[m[2]+" "+m[1]] = true
	}
	exists := map[string]bool{}
	for _, dir := range soakSteps[i].covers {
		all, err := parseTests(filepath.Join("../..", dir))
		must(t, err)
		dir = strings.TrimPrefix(dir, "./")
		for name := range all {
			if target := dir + " " + name; strings.HasPrefix(name, "Fuzz") {
				exists[target] = true
				if !runs[target] && slices.Contains([]string{"store/ledger", "mail", "mail/box", "mail/chain", "mailbox"}, dir) {
					t.Errorf("%s is no target of soak", target)
				}
			}
		}
	}
	for target := range runs {
		if !exists[target] {
			t.Errorf("soak runs %s, which does not exist", target)
		}
	}
	if len(runs) == 0 {
		t.Error("soak runs no target")
	}
}

// otherVariable is what a program of a handler gets, and what has no long form.
var otherVariable = regexp.MustCompile(`^BALEFIRE_(BODY_FILE|IDEMPOTENCY_KEY|WALK|TEST_.*)$`)

// longVariable returns the variable for a long form that n reads, "" if n reads none.
func longVariable(n ast.Node) string {
	call, ok := n.(*ast.CallExpr)
	if !ok || len(call.Args) != 1 {
		return ""
	}
	f, _ := call.Fun.(*ast.SelectorExpr)
	lit, _ := call.Args[0].(*ast.BasicLit)
	if f == nil || lit == nil || f.Sel.Name != "Getenv" && f.Sel.Name != "LookupEnv" {
		return ""
	}
	name, err := strconv.Unquote(lit.Value)
	if err != nil || !strings.HasPrefix(name, "BALEFIRE_") || otherVariable.MatchString(name) {
		return ""
	}
	return name
}

// repositoryFile returns the path of a file that a test of e2e names, "" if n is no such name.
func repositoryFile(n ast.Node) string {
	lit, ok := n.(*ast.BasicLit)
	if !ok || lit.Kind != token.STRING {
		return ""
	}
	name, err := strconv.Unquote(lit.Value)
	path, above := strings.CutPrefix(name, "../")
	if err != nil || strings.HasPrefix(path, "cmd/") || !above && !strings.HasPrefix(path, "scripts/") {
		return "" // the program is covered
	}
	if _, err := os.Stat(filepath.Join("../..", path)); err != nil {
		return ""
	}
	return path
}
