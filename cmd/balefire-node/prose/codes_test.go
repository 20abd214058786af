package prose

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strconv"
	"strings"
	"testing"
)

// TestCodesAreDocumented compares docs/codes.md with the codes of package wire and their
// comments; -update writes it.
func TestCodesAreDocumented(t *testing.T) {
	const path = "../../../docs/codes.md"
	want := codesPage(t)
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != want {
		t.Errorf("docs/codes.md does not list the codes of wire/note.go: go test ./cmd/balefire-node/prose -update (%v)", err)
	}
}

// codesPage returns the page with all codes.
func codesPage(t *testing.T) string {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), "../../../wire/note.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	b.WriteString(`# Codes of causes, warnings and risks

` + "`why`, `status`, `mesh summary` and `netcheck`" + ` state facts as a code with arguments: with ` + "`-o json`" + `, and in the API.
The codes are stable; the command line makes its sentences from them. After the colon are the arguments of each; the
OpenAPI document describes them.
`)
	for _, d := range f.Decls {
		group, ok := d.(*ast.GenDecl)
		if !ok || group.Tok != token.CONST {
			continue
		}
		fmt.Fprintf(&b, "\n## %s\n\n| code | meaning |\n|---|---|\n", strings.TrimSuffix(strings.TrimSpace(group.Doc.Text()), "."))
		for _, s := range group.Specs {
			v := s.(*ast.ValueSpec)
			code, err := strconv.Unquote(v.Values[0].(*ast.BasicLit).Value)
			comment := v.Comment.Text() + v.Doc.Text()
			if err != nil || comment == "" {
				t.Fatalf("%s has no comment, or is no text: %v", v.Names[0], err)
			}
			fmt.Fprintf(&b, "| `%s` | %s |\n", code, strings.ReplaceAll(strings.Join(strings.Fields(comment), " "), "|", `\|`))
		}
	}
	return b.String()
}
