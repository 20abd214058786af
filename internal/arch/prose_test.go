package arch

import (
	"go/ast"
	"go/token"
	"go/types"
	"slices"
	"strings"
	"testing"
)

// proseNames are names of fields that have sentences for people.
var proseNames = []string{"Advice", "Hint", "Message", "Problem", "Summary", "Text", "Warning", "Warnings", "Why"}

// Causes, warnings and events leave a node as codes with arguments; cmd makes the sentences.
// The only texts in package wire are errors, which a person reads as they are.
func TestTheNodeStatesCodes(t *testing.T) {
	eachStruct(t, func(name, file string, s *ast.StructType) {
		for _, f := range s.Fields.List {
			typ := types.ExprString(f.Type)
			if !strings.HasPrefix(name, "wire.") || typ != "string" && typ != "[]string" {
				continue
			}
			for _, id := range f.Names {
				if slices.Contains(proseNames, id.Name) {
					t.Errorf("%s: %s.%s is prose: make it a Note", file, name, id.Name)
				}
			}
		}
	})
	found := 0
	for _, p := range load(t) {
		if strings.HasPrefix(p.path, "cmd/") {
			continue
		}
		for path, f := range p.files {
			ast.Inspect(f, func(n ast.Node) bool {
				var made []ast.Expr // what is given to a note or an event
				switch n := n.(type) {
				case *ast.CompositeLit:
					if typ := types.ExprString(n.Type); typ == "wire.Note" || typ == "wire.NoteArgs" || typ == "wire.NodeEvent" {
						made = n.Elts
					}
				case *ast.CallExpr:
					if fun := types.ExprString(n.Fun); strings.HasSuffix(fun, ".Event") || strings.HasSuffix(fun, ".event") || strings.HasSuffix(fun, "Events.Add") {
						made = n.Args
					}
				}
				for _, e := range made {
					found++
					ast.Inspect(e, func(n ast.Node) bool {
						lit, ok := n.(*ast.BasicLit)
						if ok && lit.Kind == token.STRING && (strings.Count(lit.Value, " ") > 1 || lit.Value == `"why"`) {
							t.Errorf("%s: a note or an event has the text %s: make it a code with arguments, and the text in cmd/balefire-node/prose", path, lit.Value)
						}
						return true
					})
				}
				return true
			})
		}
	}
	if found < 100 {
		t.Errorf("found only %d arguments of notes and events: the test looks at the wrong ones", found)
	}
}
