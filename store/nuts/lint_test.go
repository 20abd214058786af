package nuts

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"slices"
	"strings"
	"testing"
)

// allowed is what raw.go may touch of NutsDB. Every other call of it is known
// to lose data, to hang, or was never tried.
var allowed = map[string][]string{
	"nutsdb": {
		"Open", "NewIterator", // the calls
		"DB", "Tx", "IteratorOptions", "DefaultOptions", "FileIO", "TimeHeap", "HintKeyValAndRAMIdxMode",
		"DataStructureBTree", "Persistent", "FLockName", "ErrDirLocked", "ErrKeyNotFound",
	},
	"db": {"Update", "View", "Close", "MaxFileID", "ActiveFile"},
	"tx": {"NewKVBucket", "ExistBucket", "Put", "Get", "Delete"},
	"it": {"Seek", "Valid", "Next", "Key", "Value", "Release"},
}

// NutsDB is imported by one file, which keeps to the calls that are allowed and
// never gives a record a TTL.
func TestOnlyAllowedCalls(t *testing.T) {
	files, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	used := make(map[string]bool)
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), ".go") || strings.HasSuffix(f.Name(), "_test.go") {
			continue
		}
		set := token.NewFileSet()
		tree, err := parser.ParseFile(set, f.Name(), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		imports := slices.ContainsFunc(tree.Imports, func(i *ast.ImportSpec) bool {
			return strings.Contains(i.Path.Value, "nutsdb")
		})
		if imports != (f.Name() == "raw.go") {
			t.Errorf("%s: NutsDB is imported by raw.go alone", f.Name())
		}
		if imports {
			ast.Inspect(tree, func(n ast.Node) bool { return inspectCall(t, set, used, n) })
		}
	}
	for _, call := range []string{"nutsdb.Open", "db.Update", "tx.Put", "it.Next"} {
		if !used[call] {
			t.Errorf("%s was not seen: this test looks at the wrong names", call)
		}
	}
}

func inspectCall(t *testing.T, set *token.FileSet, used map[string]bool, n ast.Node) bool {
	if call, ok := n.(*ast.CallExpr); ok {
		checkTTL(t, set, call)
	}
	sel, ok := n.(*ast.SelectorExpr)
	if !ok {
		return true
	}
	of := ""
	switch x := sel.X.(type) {
	case *ast.Ident:
		of = x.Name
	case *ast.SelectorExpr: // r.db
		of = x.Sel.Name
	}
	names, watched := allowed[of]
	if watched && !slices.Contains(names, sel.Sel.Name) {
		t.Errorf("%v: %s.%s is not among the calls of NutsDB that can be trusted", set.Position(n.Pos()), of, sel.Sel.Name)
	}
	used[of+"."+sel.Sel.Name] = true
	return true
}

// checkTTL makes sure that each Put is persistent.
func checkTTL(t *testing.T, set *token.FileSet, call *ast.CallExpr) {
	if sel, ok := call.Fun.(*ast.SelectorExpr); !ok || sel.Sel.Name != "Put" {
		return
	}
	ttl, ok := call.Args[len(call.Args)-1].(*ast.SelectorExpr)
	if !ok || ttl.Sel.Name != "Persistent" {
		t.Errorf("%v: a Put with a TTL", set.Position(call.Pos()))
	}
}
