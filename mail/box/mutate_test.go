package box

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// A mutant is the package with one rule left out. One binary has all of them, made from
// the source with an overlay: the product itself has no trace of them.
type mutant struct {
	name  string
	seeds uint64 // how many may be needed until it is noticed; default 100
	edits []edit
}

// An edit replaces text that occurs exactly once in a function. In the new text, MUTANT is
// true while the mutant runs.
type edit struct{ file, function, old, new string }

// everyTime are the mutants of an ordinary run: each breaks another part.
var everyTime = []string{
	"lapse spends nothing", "nack of an old delivery", "lane opened early", "class not inherited", "end without bounce", "clock read in Apply",
}

// mutantVariable makes the test binary search for the seed that notices the mutant with
// this number, from 1.
const mutantVariable = "BALEFIRE_MUTANT"

func TestMain(m *testing.M) {
	if n := os.Getenv(mutantVariable); n != "" {
		os.Exit(search(n))
	}
	os.Exit(m.Run())
}

// search returns 0 if the model notices the mutant, and 3 if it does not.
func search(n string) int {
	debug.SetGCPercent(800)
	number, err := strconv.Atoi(n)
	if err != nil {
		panic(err)
	}
	limit := uint64(100)
	if number > 0 && mutants[number-1].seeds > 0 {
		limit = mutants[number-1].seeds
	}
	if os.Getenv("BALEFIRE_LONG") != "" && number > 0 {
		limit *= 10
	}
	for seed := range limit {
		if err := history(1_000_000 + seed); err != nil {
			fmt.Printf("noticed at seed %d: %.160s\n", seed, err)
			return 0
		}
	}
	fmt.Printf("%d seeds, and nothing was noticed\n", limit)
	return 3
}

// TestEveryRuleIsMissed leaves out one rule at a time: the model must notice it. An ordinary
// run tries six of them.
func TestEveryRuleIsMissed(t *testing.T) {
	binary := buildMutants(t)
	run := func(t *testing.T, number int) (string, int) {
		t.Parallel()
		c := exec.CommandContext(t.Context(), binary)
		c.Env = append(os.Environ(), mutantVariable+"="+strconv.Itoa(number))
		out, err := c.CombinedOutput()
		if c.ProcessState == nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(out)), c.ProcessState.ExitCode()
	}
	t.Run("none", func(t *testing.T) {
		if out, code := run(t, 0); code != 3 {
			t.Errorf("exit code %d without a mutant: %s", code, out)
		}
	})
	for i, m := range mutants {
		if os.Getenv("BALEFIRE_LONG") == "" && !slices.Contains(everyTime, m.name) {
			continue
		}
		t.Run(m.name, func(t *testing.T) {
			if out, code := run(t, i+1); code != 0 {
				t.Errorf("exit code %d: %s", code, out)
			} else {
				t.Log(out)
			}
		})
	}
}

// buildMutants builds the test binary with every mutant, and returns its path.
func buildMutants(t *testing.T) string {
	t.Helper()
	dir, files := t.TempDir(), map[string][]byte{}
	for i, m := range mutants {
		for _, e := range m.edits {
			e.new = strings.ReplaceAll(e.new, "MUTANT", fmt.Sprintf("(activeMutant == %d)", i+1))
			if files[e.file] == nil {
				b, err := os.ReadFile(e.file)
				if err != nil {
					t.Fatal(err)
				}
				files[e.file] = b
			}
			b, err := e.apply(files[e.file])
			if err != nil {
				t.Fatalf("%s: %v", m.name, err)
			}
			files[e.file] = b
		}
	}
	files["activemutant.go"] = []byte(`package box

import (
	"os"
	"strconv"
)

var activeMutant, _ = strconv.Atoi(os.Getenv("` + mutantVariable + `"))
`)
	overlay := struct{ Replace map[string]string }{map[string]string{}}
	for name, b := range files {
		at, err := filepath.Abs(name)
		if err != nil {
			t.Fatal(err)
		}
		overlay.Replace[at] = filepath.Join(dir, name)
		if err := os.WriteFile(overlay.Replace[at], b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	b, err := json.Marshal(overlay)
	if err != nil {
		t.Fatal(err)
	}
	list, binary := filepath.Join(dir, "overlay.json"), filepath.Join(dir, "mutants.test")
	if err := os.WriteFile(list, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "go", "test", "-c", "-vet=off", "-overlay", list, "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("build the mutants: %v\n%s", err, out)
	}
	return binary
}

// apply returns the source with the edit.
func (e edit) apply(src []byte) ([]byte, error) {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, e.file, src, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	var found *ast.FuncDecl
	for _, d := range f.Decls {
		if d, ok := d.(*ast.FuncDecl); ok && d.Name.Name == e.function {
			if found != nil {
				return nil, fmt.Errorf("%s has two functions %s", e.file, e.function)
			}
			found = d
		}
	}
	if found == nil {
		return nil, fmt.Errorf("%s has no function %s", e.file, e.function)
	}
	from, to := fset.Position(found.Pos()).Offset, fset.Position(found.End()).Offset
	body := src[from:to]
	if n := bytes.Count(body, []byte(e.old)); n != 1 {
		return nil, fmt.Errorf("%s: %s has %q %d times, want once", e.file, e.function, e.old, n)
	}
	return slices.Concat(src[:from], bytes.Replace(body, []byte(e.old), []byte(e.new), 1), src[to:]), nil
}
