package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

const module = "github.com/balefire/balefire"

// joins are the packages of layer 2 that hold two subsystems together: they may import
// subsystems, but neither each other nor the node, and no subsystem imports them.
var joins = map[string]bool{
	"queue": true, "schedule": true, "pairing": true, "view": true, "executor": true, "transfer": true, "submit": true, "receive": true, "notice": true, "mailbox": true,
}

// layers has the layer of each package by its first path element. A package imports only
// lower layers, and subsystems of one layer never import each other.
var layers = map[string]int{
	"proto": 0, "clock": 0, "fair": 0, "memory": 0, "disk": 0, "wire": 0, "merkle": 0,
	"store": 1, "identity": 1, "handler": 1, "bodies": 1, "audit": 1, "event": 1, "settings": 1,
	"transport": 2, "addressbook": 2, "outbox": 2, "inbox": 2, "gossip": 2, "ownership": 2, "agent": 2, "mail": 2, "workflow": 2, "datadir": 2,
	"queue": 2, "schedule": 2, "pairing": 2, "view": 2, "executor": 2, "transfer": 2, "submit": 2, "receive": 2, "notice": 2, "mailbox": 2,
	"node": 3,
	"api":  4,
	"cmd":  5,
}

// owners has the only packages that may import a library (by path prefix).
var owners = map[string][]string{
	"google.golang.org/protobuf":                              {"proto", "transport"}, // transport: for RPCs of gossipsub
	"filippo.io/age":                                          {"datadir"},
	"github.com/libp2p":                                       {"transport"},
	"github.com/multiformats":                                 {"transport"},
	"github.com/quic-go":                                      {"transport"},
	"github.com/nutsdb":                                       {"store/nuts"},
	"github.com/cockroachdb":                                  {"store/pebble"},
	"github.com/coder/websocket":                              {"api"},
	"github.com/danielgtaylor/huma":                           {"api"},
	"github.com/spf13/cobra":                                  {"cmd"},
	"github.com/skip2/go-qrcode":                              {"identity"},
	"github.com/robfig/cron":                                  {"schedule"},
	"github.com/klauspost/compress":                           {"proto", "store/ledger"},
	"go.yaml.in/yaml":                                         {"node/config", "cmd"},
	"github.com/prometheus/client_golang/prometheus/promhttp": {"cmd", "api"},
}

// A pkg is one parsed package of the module.
type pkg struct {
	path    string // below the module: store/nuts
	files   map[string]*ast.File
	imports map[string][]string // import path → files; without the tests of the package
}

func TestLayers(t *testing.T) {
	for _, p := range load(t) {
		sub, layer, known := subsystemOf(p.path)
		if !known {
			t.Errorf("%s has no layer: add it in internal/arch", p.path)
			continue
		}
		for imp, files := range p.imports {
			rel, ours := strings.CutPrefix(imp, module+"/")
			if !ours || strings.HasPrefix(rel, "internal/") {
				continue
			}
			other, level, _ := subsystemOf(rel)
			switch {
			case other == sub && !related(p.path, rel):
				t.Errorf("%s imports its sibling %s (%v)", p.path, rel, files)
			case other != sub && level >= layer && (level > layer || joins[other] || !joins[sub]):
				t.Errorf("%s (layer %d) imports %s (layer %d) in %v", p.path, layer, rel, level, files)
			}
		}
	}
}

func TestLibraryOwners(t *testing.T) {
	for _, p := range load(t) {
		for imp, files := range p.imports {
			for lib, allowed := range owners {
				if strings.HasPrefix(imp, lib) && !slices.ContainsFunc(allowed, func(r string) bool { return p.path == r || strings.HasPrefix(p.path, r+"/") }) {
					t.Errorf("%s imports %s in %v: only %v may", p.path, imp, files, allowed)
				}
			}
		}
	}
}

// Messages from peers are decoded without unknown fields: there is no limit for those.
func TestMessagesFromPeersAreDecodedWithoutUnknownFields(t *testing.T) {
	for _, p := range load(t) {
		for path, f := range p.files {
			ast.Inspect(f, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok || len(call.Args) != 2 {
					return true
				}
				fun, ok := call.Fun.(*ast.SelectorExpr)
				if !ok || fun.Sel.Name != "Decode" {
					return true
				}
				arg, ok := call.Args[0].(*ast.CallExpr)
				if !ok {
					return true
				}
				if from, ok := arg.Fun.(*ast.SelectorExpr); ok && (from.Sel.Name == "GetPayload" || from.Sel.Name == "GetDetails") {
					t.Errorf("%s decodes %s with proto.Decode: use proto.DecodeKnown for messages from peers", path, from.Sel.Name)
				}
				return true
			})
		}
	}
}

func TestPackagesHaveComments(t *testing.T) {
	banned := []string{"util", "utils", "common", "helper", "helpers", "types", "models", "misc"}
	for _, p := range load(t) {
		found := false
		for _, f := range p.files {
			found = found || f.Doc != nil && len(f.Doc.Text()) > 40
		}
		if !found {
			t.Errorf("%s has no package comment that states its guarantee", p.path)
		}
		if slices.Contains(banned, filepath.Base(p.path)) {
			t.Errorf("%s: name the package for what it is", p.path)
		}
	}
}

// TestSizes checks the size limits: a function fits a screen, a file is one idea.
func TestSizes(t *testing.T) {
	for path, f := range sources(t, true) {
		test := strings.HasSuffix(path, "_test.go")
		if n := positions.Position(f.End()).Line; n > 700 {
			t.Errorf("%s has %d lines, the limit is 700", path, n)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			switch d := n.(type) {
			case *ast.FuncDecl:
				if lines := positions.Position(d.End()).Line - positions.Position(d.Pos()).Line + 1; lines > 80 && !test {
					t.Errorf("%s: %s has %d lines, the limit is 80", path, d.Name.Name, lines)
				}
			case *ast.TypeSpec:
				checkType(t, path, d)
			}
			return true
		})
	}
}

func checkType(t *testing.T, path string, d *ast.TypeSpec) {
	t.Helper()
	switch v := d.Type.(type) {
	case *ast.StructType:
		n := 0
		for _, f := range v.Fields.List {
			n += max(len(f.Names), 1)
		}
		limit := 27
		if path == "node/node.go" && d.Name.Name == "Node" {
			limit = 33
		}
		if path == "transport/config.go" && d.Name.Name == "Config" {
			limit = 34 // the node sets each of them, and parts of a config would be made for this limit alone
		}
		if n > limit && !strings.HasSuffix(path, "_test.go") {
			t.Errorf("%s: %s has %d fields, the limit is %d", path, d.Name.Name, n, limit)
		}
	}
}

// largeInterfaces are the interfaces with more methods than the limit, and why each is one.
var largeInterfaces = map[string]string{
	"mail.Ledger":       "a ledger is the log, what is kept of it, and its failure",
	"mail.Observer":     "what becomes of a mail, in the order of its life",
	"mail/box.Chains":   "all that a box needs of its chains",
	"mailbox.Names":     "all that the boxes need of the names of the mesh",
	"pairing.Network":   "all that membership needs of the transport",
	"queue.Bodies":      "all that custody and leases need of large bodies",
	"queue.GrantBodies": "the life of the body of a granted task",
	"transfer.Queues":   "all that bodies need of the queues",
}

// TestInterfacesAreSmall checks the methods of each interface, with those that it embeds: one
// belongs to its consumer and states what that needs.
func TestInterfacesAreSmall(t *testing.T) {
	all := map[string]*ast.InterfaceType{} // by package.Name
	for path, f := range sources(t, true) {
		ast.Inspect(f, func(n ast.Node) bool {
			if d, ok := n.(*ast.TypeSpec); ok {
				if v, ok := d.Type.(*ast.InterfaceType); ok {
					all[filepath.ToSlash(filepath.Dir(path))+"."+d.Name.Name] = v
				}
			}
			return true
		})
	}
	for name := range largeInterfaces {
		if all[name] == nil {
			t.Errorf("%s is an exception and no interface: remove the exception", name)
		}
	}
	for name, v := range all {
		limit := 3
		if strings.HasPrefix(name, "store") {
			limit = 8
		}
		pkg, _, _ := strings.Cut(name, ".")
		switch n := methodsOf(v, pkg, all); {
		case n > limit && largeInterfaces[name] == "":
			t.Errorf("%s has %d methods with those that it embeds, the limit is %d", name, n, limit)
		case n <= limit && largeInterfaces[name] != "":
			t.Errorf("%s has %d methods: remove the exception", name, n)
		}
	}
}

// methodsOf returns how many methods an interface of pkg has, with those of the interfaces of
// that package that it embeds. One of another package counts as one.
func methodsOf(v *ast.InterfaceType, pkg string, all map[string]*ast.InterfaceType) (n int) {
	for _, m := range v.Methods.List {
		if id, ok := m.Type.(*ast.Ident); ok && all[pkg+"."+id.Name] != nil {
			n += methodsOf(all[pkg+"."+id.Name], pkg, all)
			continue
		}
		n += max(len(m.Names), 1)
	}
	return n
}

// related reports whether one path is the parent of the other.
func related(a, b string) bool {
	return strings.HasPrefix(a, b+"/") || strings.HasPrefix(b, a+"/")
}

func subsystemOf(path string) (sub string, layer int, known bool) {
	sub, _, _ = strings.Cut(path, "/")
	layer, known = layers[sub]
	return sub, layer, known
}

// load parses every package of the module except internal ones.
func load(t *testing.T) []*pkg {
	t.Helper()
	byPath := map[string]*pkg{}
	for path, f := range sources(t, false) {
		dir := filepath.ToSlash(filepath.Dir(path))
		if strings.HasPrefix(dir, "internal/") || dir == "." {
			continue
		}
		p := byPath[dir]
		if p == nil {
			p = &pkg{path: dir, files: map[string]*ast.File{}, imports: map[string][]string{}}
			byPath[dir] = p
		}
		p.files[path] = f
		for _, spec := range f.Imports {
			imp, _ := strconv.Unquote(spec.Path.Value)
			p.imports[imp] = append(p.imports[imp], filepath.Base(path))
		}
	}
	if len(byPath) < 5 {
		t.Fatalf("found only %d packages: the walk is broken", len(byPath))
	}
	return slices.SortedFunc(maps.Values(byPath), func(a, b *pkg) int { return strings.Compare(a.path, b.path) })
}

// positions has the positions of what sources returns.
var positions = token.NewFileSet()

// sources returns the hand-written Go files of the module, by path below its root.
func sources(t *testing.T, tests bool) map[string]*ast.File {
	t.Helper()
	all, err := parsed()
	if err != nil {
		t.Fatal(err)
	}
	out := maps.Clone(all)
	maps.DeleteFunc(out, func(path string, _ *ast.File) bool { return !tests && strings.HasSuffix(path, "_test.go") })
	return out
}

// parsed parses the files once for all tests.
var parsed = sync.OnceValues(func() (map[string]*ast.File, error) {
	root := filepath.Join("..", "..")
	out := map[string]*ast.File{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			_, nested := os.Stat(filepath.Join(path, "go.mod"))
			if path != root && (nested == nil || d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".")) {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, ".pb.go") {
			return nil
		}
		f, err := parser.ParseFile(positions, path, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		out[filepath.ToSlash(rel)] = f
		return err
	})
	return out, err
})
