//go:build linux

package main

import (
	"fmt"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// whole are the packages whose tests are all repeated: most start processes or open sockets,
// many of them in the product.
var whole = []string{"./transport", "./api/...", "./cmd/...", "./agent/...", "./store/storetest/crash", "./internal/gate"}

// opener is what starts a process or opens a real socket in tests of the other packages. So
// does a node or a transport that is told where to listen.
var opener = regexp.MustCompile(`^(exec\.Command.*|net\.(Listen|Dial).*|httptest\.New.*Server|testscript\.Run|api\.Listen|nodetest\.Open|crash\.Run|mutants\.Test)$`)

// realTests returns the folders below root, without those of packages in whole, that have
// tests which start processes or open real sockets, and the names of these tests.
func realTests(root string) (dirs, names []string, err error) {
	err = filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.IsDir() || path == root {
			return err
		}
		dir, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		base := filepath.Base(dir)
		if base == "testdata" || base[0] == '.' || slices.Contains([]string{"bench", "dist", "e2e", "third_party", "tools"}, dir) {
			return fs.SkipDir
		}
		if slices.ContainsFunc(whole, func(w string) bool {
			w, below := strings.CutSuffix(w, "/...")
			return "./"+dir == w || below && strings.HasPrefix("./"+dir, w+"/")
		}) {
			return nil
		}
		all, err := parseTests(path)
		if err != nil {
			return err
		}
		found := slices.DeleteFunc(all.tests(), func(test string) bool { return !all.opens(test) })
		if len(found) > 0 {
			dirs, names = append(dirs, "./"+dir), append(names, found...)
		}
		return nil
	})
	slices.Sort(names)
	return dirs, slices.Compact(names), err
}

// repeated returns the step that repeats what the step of all tests has of processes and
// sockets.
func repeated(s step) (step, error) {
	dirs, names, err := realTests(".")
	s.tests = names
	s.argv = sh(fmt.Sprintf("go test -count=1 -timeout 120m %s && go test -count=1 -timeout 120m -v -run '^(%s)$' %s",
		strings.Join(whole, " "), strings.Join(names, "|"), strings.Join(dirs, " ")))
	return s, err
}

// A sources is the declarations in the test files of one folder by their names, those of
// methods with a dot before them; methods of different types may share one.
type sources map[string][]ast.Node

// parseTests reads the test files of a folder that are built with these tags.
func parseTests(dir string, tags ...string) (sources, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		return nil, err
	}
	built := build.Default
	built.BuildTags = tags
	all := sources{}
	for _, file := range files {
		if ok, err := built.MatchFile(dir, filepath.Base(file)); !ok || err != nil {
			if err != nil {
				return nil, err
			}
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		for _, d := range f.Decls {
			all.add(d)
		}
	}
	return all, nil
}

func (s sources) add(d ast.Decl) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		name := d.Name.Name
		if d.Recv != nil {
			name = "." + name
		}
		s[name] = append(s[name], d)
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			if v, ok := spec.(*ast.ValueSpec); ok {
				for _, name := range v.Names {
					s[name.Name] = append(s[name.Name], v)
				}
			}
		}
	}
}

// tests returns the names of the tests and examples.
func (s sources) tests() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(s)), func(name string) bool {
		return name == "TestMain" || !strings.HasPrefix(name, "Test") && !strings.HasPrefix(name, "Example")
	})
}

// opens reports whether a test starts a process or opens a real socket.
func (s sources) opens(test string) (found bool) {
	s.walk(test, func(n ast.Node) {
		switch n := n.(type) {
		case *ast.KeyValueExpr:
			key, ok := n.Key.(*ast.Ident)
			found = found || ok && key.Name == "Listen"
		case *ast.AssignStmt:
			for _, x := range n.Lhs {
				field, ok := x.(*ast.SelectorExpr)
				found = found || ok && field.Sel.Name == "Listen"
			}
		case *ast.SelectorExpr:
			pkg, ok := n.X.(*ast.Ident)
			found = found || ok && opener.MatchString(pkg.Name+"."+n.Sel.Name)
		}
	})
	return found
}

// walk calls visit for all that a declaration has, and for that of those which it uses.
func (s sources) walk(name string, visit func(ast.Node)) {
	seen := map[string]bool{}
	var enter func(string)
	var look func(ast.Node) bool
	look = func(n ast.Node) bool {
		visit(n)
		switch n := n.(type) {
		case *ast.SelectorExpr:
			enter("." + n.Sel.Name)
			ast.Inspect(n.X, look)
			return false
		case *ast.Ident:
			enter(n.Name)
		}
		return true
	}
	enter = func(name string) {
		if !seen[name] {
			seen[name] = true
			for _, d := range s[name] {
				ast.Inspect(d, look)
			}
		}
	}
	enter(name)
}
