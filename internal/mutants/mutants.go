// Package mutants leaves rules of a package out, one at a time, so that its tests can show
// that they notice. One binary has all mutants, made from the source with an overlay: the
// product itself has no trace of them.
package mutants

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
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Variable has the number of the mutant that a test binary runs, from 1; 0 is the package as
// it is. Unset, the binary is an ordinary one.
const Variable = "BALEFIRE_MUTANT"

// A Mutant is the package with one rule left out.
type Mutant struct {
	Name  string
	Rare  bool // it takes long to notice: only with BALEFIRE_LONG
	Edits []Edit
}

// An Edit replaces text that occurs exactly once in a function. In the new text, MUTANT is
// true while the mutant runs.
type Edit struct{ File, Function, Old, New string }

// Replace returns an edit.
func Replace(file, function, old, replacement string) Edit {
	return Edit{file, function, old, replacement}
}

// Noticed and Unnoticed are the exit codes of a binary that runs a mutant.
const (
	Noticed   = 0
	Unnoticed = 3
)

// Main is for TestMain. In a binary that runs a mutant, search returns what was noticed of it,
// "" for nothing; a panic is noticed too.
func Main(m *testing.M, search func(number int) string) {
	n := os.Getenv(Variable)
	if n == "" {
		os.Exit(m.Run())
	}
	number, err := strconv.Atoi(n)
	if err != nil {
		panic(err)
	}
	defer func() {
		if p := recover(); p != nil {
			fmt.Printf("noticed: panic: %.160v\n", p)
			os.Exit(Noticed)
		}
	}()
	if what := search(number); what != "" {
		fmt.Printf("noticed: %.160s\n", what)
		os.Exit(Noticed)
	}
	os.Exit(Unnoticed)
}

// Test fails unless the tests notice each of the mutants of the package in the working
// directory, and nothing without a mutant.
func Test(t *testing.T, pkg string, mutants []Mutant) {
	t.Helper()
	binary := build(t, pkg, mutants)
	run := func(t *testing.T, number, want int) {
		t.Parallel()
		c := exec.CommandContext(t.Context(), binary)
		c.Env = append(os.Environ(), Variable+"="+strconv.Itoa(number))
		out, err := c.CombinedOutput()
		if c.ProcessState == nil {
			t.Fatal(err)
		}
		if code := c.ProcessState.ExitCode(); code != want {
			t.Errorf("exit code %d, want %d: %s", code, want, out)
		} else {
			t.Logf("%s", bytes.TrimSpace(out))
		}
	}
	t.Run("none", func(t *testing.T) { run(t, 0, Unnoticed) })
	for i, m := range mutants {
		if m.Rare && os.Getenv("BALEFIRE_LONG") == "" {
			continue
		}
		t.Run(m.Name, func(t *testing.T) { run(t, i+1, Noticed) })
	}
}

// build builds the test binary with every mutant, and returns its path.
func build(t *testing.T, pkg string, mutants []Mutant) string {
	t.Helper()
	dir, files := t.TempDir(), map[string][]byte{}
	for i, m := range mutants {
		for _, e := range m.Edits {
			e.New = strings.ReplaceAll(e.New, "MUTANT", fmt.Sprintf("(activeMutant == %d)", i+1))
			if files[e.File] == nil {
				b, err := os.ReadFile(e.File)
				if err != nil {
					t.Fatal(err)
				}
				files[e.File] = b
			}
			b, err := e.apply(files[e.File])
			if err != nil {
				t.Fatalf("%s: %v", m.Name, err)
			}
			files[e.File] = b
		}
	}
	files["activemutant.go"] = fmt.Appendf(nil, `package %s

import (
	"os"
	"strconv"
)

var activeMutant, _ = strconv.Atoi(os.Getenv(%q))
`, pkg, Variable)
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
func (e Edit) apply(src []byte) ([]byte, error) {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, e.File, src, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	var found *ast.FuncDecl
	for _, d := range f.Decls {
		if d, ok := d.(*ast.FuncDecl); ok && d.Name.Name == e.Function {
			if found != nil {
				return nil, fmt.Errorf("%s has two functions %s", e.File, e.Function)
			}
			found = d
		}
	}
	if found == nil {
		return nil, fmt.Errorf("%s has no function %s", e.File, e.Function)
	}
	from, to := fset.Position(found.Pos()).Offset, fset.Position(found.End()).Offset
	body := src[from:to]
	if n := bytes.Count(body, []byte(e.Old)); n != 1 {
		return nil, fmt.Errorf("%s: %s has %q %d times, want once", e.File, e.Function, e.Old, n)
	}
	return slices.Concat(src[:from], bytes.Replace(body, []byte(e.Old), []byte(e.New), 1), src[to:]), nil
}
