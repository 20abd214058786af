// Command sizes counts how large the product is and how much of it is tied to the node:
// run it in the root of the module, before and after a change of the structure.
//
//	go run ./internal/sizes
//	go run ./internal/sizes -walk    also the files that a task of a queue walks through
package main

import (
	"bytes"
	"cmp"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"log"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// counts are what is counted.
type counts struct {
	lines       int // of product code, without tests and generated files
	testLines   int
	nodeMethods int // methods on node.Node
	backrefs    int // structs that hold the node
	types       map[string]*size
}

// A size is that of a type, named package.Type.
type size struct{ fields, methods int }

func main() {
	log.SetFlags(0)
	walk := flag.Bool("walk", false, "count the files that a task of a queue walks through; takes minutes")
	flag.Parse()
	c, err := count(".")
	if err != nil {
		log.Fatal(err)
	}
	deps, err := clientDeps()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%-52s %6d\n", "lines of product code", c.lines)
	fmt.Printf("%-52s %6d\n", "lines of tests", c.testLines)
	fmt.Printf("%-52s %6d\n", "methods on Node", c.nodeMethods)
	fmt.Printf("%-52s %6d\n", "structs that hold the node", c.backrefs)
	fmt.Printf("%-52s %6d\n", "packages that api/client needs outside the standard library", deps)
	c.printLargest("fields", func(s *size) int { return s.fields })
	c.printLargest("methods", func(s *size) int { return s.methods })
	if *walk {
		files, err := walkFiles()
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%-52s %6d\n", "files that a task of a queue walks through", len(files))
		fmt.Println(strings.Join(files, "\n"))
	}
}

// printLargest prints the types that have the most of something.
func (c *counts) printLargest(what string, of func(*size) int) {
	names := slices.SortedFunc(maps.Keys(c.types), func(a, b string) int {
		return cmp.Or(of(c.types[b])-of(c.types[a]), strings.Compare(a, b))
	})
	for _, name := range names[:min(8, len(names))] {
		fmt.Printf("%-52s %6d\n", what+" of "+name, of(c.types[name]))
	}
}

// typ returns the size of a type of package dir.
func (c *counts) typ(dir, name string) *size {
	key := filepath.ToSlash(dir) + "." + name
	if c.types[key] == nil {
		c.types[key] = new(size)
	}
	return c.types[key]
}

// count counts the Go files below root that belong to the module.
func count(root string) (c counts, err error) {
	fset := token.NewFileSet()
	c.types = map[string]*size{}
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if _, err := os.Stat(filepath.Join(path, "go.mod")); err == nil && path != root {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, ".pb.go") {
			return nil
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		lines := bytes.Count(b, []byte("\n"))
		if strings.HasSuffix(path, "_test.go") || strings.HasPrefix(path, "internal"+string(filepath.Separator)) {
			c.testLines += lines
			return nil
		}
		c.lines += lines
		f, err := parser.ParseFile(fset, path, b, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		c.look(filepath.Dir(path), f)
		return nil
	})
	return c, err
}

// look counts the fields and methods of the types of f, a file in dir, and what belongs
// to the node.
func (c *counts) look(dir string, f *ast.File) {
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			if n.Recv == nil {
				break
			}
			recv := n.Recv.List[0].Type
			if p, ok := recv.(*ast.StarExpr); ok {
				recv = p.X
			}
			if id, ok := recv.(*ast.Ident); ok {
				c.typ(dir, id.Name).methods++
			}
			if f.Name.Name == "node" && isNode(f, n.Recv.List[0].Type) {
				c.nodeMethods++
			}
		case *ast.TypeSpec:
			if s, ok := n.Type.(*ast.StructType); ok {
				c.typ(dir, n.Name.Name).fields = s.Fields.NumFields()
			}
		case *ast.StructType:
			for _, field := range n.Fields.List {
				if isNode(f, field.Type) {
					c.backrefs++
				}
			}
		}
		return true
	})
}

// isNode reports whether e is *Node in package node, or *node.Node elsewhere.
func isNode(f *ast.File, e ast.Expr) bool {
	p, ok := e.(*ast.StarExpr)
	if !ok {
		return false
	}
	switch x := p.X.(type) {
	case *ast.Ident:
		return f.Name.Name == "node" && x.Name == "Node"
	case *ast.SelectorExpr:
		pkg, ok := x.X.(*ast.Ident)
		return ok && pkg.Name == "node" && x.Sel.Name == "Node"
	}
	return false
}

// clientDeps counts the packages outside the standard library that a program with
// api/client alone links.
func clientDeps() (n int, err error) {
	out, err := exec.Command("go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", "./api/client").Output()
	if err != nil {
		return 0, fmt.Errorf("list the packages of api/client: %w", err)
	}
	return len(strings.Fields(string(out))), nil
}
