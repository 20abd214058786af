package arch

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// These limit the methods of node.Node, which only wires, and the lines of its package
// without its configuration. Lower them when methods move to the subsystem that they are
// about.
const maxNodeMethods, maxNodeLines = 60, 1900

// nodeHolders are the structs outside of package node that may hold a *node.Node: the commands
// that run one.
var nodeHolders = []string{"cmd/balefire-node.localNode", "cmd/balefire-node.meter"}

// contextHolders are the structs that may have a context: a reader that is passed on as such
// within the call that the context belongs to.
var contextHolders = []string{"handler.contextReader"}

// unwaited are the functions that start a goroutine for which they do not wait, and why
// nothing is left running.
var unwaited = map[string]string{
	"transport.newPMP":                "Close waits for it",
	"cmd/balefire-node.interruptible": "a read of a terminal cannot be interrupted: it ends with the process",
}

// loneSubpackages are sub-packages that neither import their parent nor are imported by it:
// api/client is for programs that must not link the API server.
var loneSubpackages = []string{"api/client"}

// A sub-package is there for its parent: it imports it or is imported by it, never both.
func TestSubpackagesBelongToTheirParents(t *testing.T) {
	byPath, tested := map[string]*pkg{}, map[string]map[string]bool{}
	for _, p := range load(t) {
		byPath[p.path] = p
	}
	for path, f := range sources(t, true) {
		dir := filepath.ToSlash(filepath.Dir(path))
		if tested[dir] == nil {
			tested[dir] = map[string]bool{}
		}
		for _, spec := range f.Imports {
			tested[dir][strings.Trim(spec.Path.Value, `"`)] = true
		}
	}
	for _, path := range loneSubpackages {
		if byPath[path] == nil {
			t.Errorf("%s does not exist: drop it from loneSubpackages", path)
		}
	}
	for _, p := range byPath {
		if !strings.Contains(p.path, "/") {
			continue
		}
		var up, down, parents, inTests bool
		for parent := filepath.Dir(p.path); parent != "."; parent = filepath.Dir(parent) {
			if byPath[parent] == nil {
				continue
			}
			parents = true
			up = up || p.imports[module+"/"+parent] != nil
			down = down || byPath[parent].imports[module+"/"+p.path] != nil
			inTests = inTests || tested[parent][module+"/"+p.path]
		}
		lone := slices.Contains(loneSubpackages, p.path)
		switch {
		case lone && (up || down):
			t.Errorf("%s is no longer lone: drop it from loneSubpackages", p.path)
		case lone:
		case up && down:
			t.Errorf("%s imports its parent and is imported by it", p.path)
		case parents && !up && !down && !inTests:
			t.Errorf("%s has nothing to do with its parent: it is a package of its own", p.path)
		}
	}
}

// Outside of node nothing holds the node: a package states what it needs of others.
func TestNobodyHoldsTheNode(t *testing.T) {
	methods, lines := 0, 0
	eachStruct(t, func(name, file string, s *ast.StructType) {
		for _, f := range s.Fields.List {
			if typ := types.ExprString(f.Type); typ == "*node.Node" && !slices.Contains(nodeHolders, name) {
				t.Errorf("%s: %s holds a *node.Node: state what it needs as small interfaces", file, name)
			}
		}
	})
	for _, p := range load(t) {
		if p.path != "node" {
			continue
		}
		for path, f := range p.files {
			b, err := os.ReadFile(filepath.Join("..", "..", path))
			if err != nil {
				t.Fatal(err)
			}
			if filepath.Base(path) != "config.go" {
				lines += bytes.Count(b, []byte("\n"))
			}
			for _, d := range f.Decls {
				if d, ok := d.(*ast.FuncDecl); ok && d.Recv != nil && strings.TrimPrefix(types.ExprString(d.Recv.List[0].Type), "*") == "Node" {
					methods++
				}
			}
		}
	}
	if lines > maxNodeLines {
		t.Errorf("package node has %d lines, the limit is %d: put what is new where its subject is", lines, maxNodeLines)
	}
	if methods > maxNodeMethods {
		t.Errorf("node.Node has %d methods, the limit is %d: put the new ones where their subject is", methods, maxNodeMethods)
	}
}

// A context belongs to a call, not to a value that outlives it.
func TestNoContextInAStruct(t *testing.T) {
	eachStruct(t, func(name, file string, s *ast.StructType) {
		for _, f := range s.Fields.List {
			if types.ExprString(f.Type) == "context.Context" && !slices.Contains(contextHolders, name) {
				t.Errorf("%s: %s has a context: pass it to its methods", file, name)
			}
		}
	})
}

// Somebody waits for each goroutine: an errgroup or a WaitGroup, or the function that
// starts it, by a channel on which the goroutine sends or which it closes.
func TestGoroutinesAreWaitedFor(t *testing.T) {
	for _, p := range load(t) {
		for path, f := range p.files {
			for _, d := range f.Decls {
				fn, ok := d.(*ast.FuncDecl)
				if !ok || unwaited[p.path+"."+fn.Name.Name] != "" {
					continue
				}
				ast.Inspect(fn, func(n ast.Node) bool {
					if g, ok := n.(*ast.GoStmt); ok && !waitedFor(fn, g) {
						t.Errorf("%s: %s starts a goroutine that nobody waits for: use an errgroup, WaitGroup.Go, or a channel that it closes", path, fn.Name.Name)
					}
					return true
				})
			}
		}
	}
}

// waitedFor reports whether fn receives from, or returns, a channel on which the goroutine
// sends or which it closes.
func waitedFor(fn *ast.FuncDecl, g *ast.GoStmt) bool {
	ends := map[string]bool{}
	ast.Inspect(g.Call.Fun, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SendStmt:
			ends[types.ExprString(n.Chan)] = true
		case *ast.CallExpr:
			if id, ok := n.Fun.(*ast.Ident); ok && id.Name == "close" {
				ends[types.ExprString(n.Args[0])] = true
			}
		}
		return true
	})
	waits := false
	ast.Inspect(fn, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.UnaryExpr:
			waits = waits || n.Op == token.ARROW && ends[types.ExprString(n.X)]
		case *ast.ReturnStmt:
			waits = waits || slices.ContainsFunc(n.Results, func(e ast.Expr) bool { return ends[types.ExprString(e)] })
		}
		return n != g
	})
	return waits
}

// A line of the log names each peer and has its whole id, which is looked up when the line is
// written: it is given the [proto.PeerID].
func TestLogLinesGetWholePeers(t *testing.T) {
	for _, p := range load(t) {
		for path, f := range p.files {
			ast.Inspect(f, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok {
					return true
				}
				method, ok := call.Fun.(*ast.SelectorExpr)
				if !ok {
					return true
				}
				if to := strings.ToLower(types.ExprString(method.X)); !strings.HasSuffix(to, "log") && !strings.HasSuffix(to, "logger") {
					return true
				}
				for _, arg := range call.Args {
					if text := types.ExprString(arg); strings.Contains(text, ".Short()") {
						t.Errorf("%s: a line of the log gets %s: give it the PeerID", path, text)
					}
				}
				return true
			})
		}
	}
}

// eachStruct calls fn with every named struct of the product, as package.Name.
func eachStruct(t *testing.T, fn func(name, file string, s *ast.StructType)) {
	t.Helper()
	for _, p := range load(t) {
		for _, path := range slices.Sorted(maps.Keys(p.files)) {
			ast.Inspect(p.files[path], func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.TypeSpec:
					if s, ok := n.Type.(*ast.StructType); ok {
						fn(fmt.Sprintf("%s.%s", p.path, n.Name.Name), path, s)
						return false
					}
				case *ast.StructType: // one without a name
					fn(p.path+".", path, n)
				}
				return true
			})
		}
	}
}
