package arch

import (
	"go/ast"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// A page is a document of the tree, by its path below the root.
type page struct {
	path string
	text string
}

// pages reads the documents: those at the root and those in docs.
func pages(t *testing.T) []page {
	t.Helper()
	root := filepath.Join("..", "..")
	var out []page
	for _, pattern := range []string{"*.md", "docs/*.md"} {
		paths, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range paths {
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			rel, err := filepath.Rel(root, path)
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, page{filepath.ToSlash(rel), string(b)})
		}
	}
	if len(out) < 5 {
		t.Fatalf("found only %d documents: the walk is broken", len(out))
	}
	return out
}

var (
	linkRE    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	fileRE    = regexp.MustCompile("`([\\w./-]+\\.(?:go|proto|binpb))`")
	testRE    = regexp.MustCompile("`(?:([\\w/]+)\\.)?((?:Test|Fuzz|Benchmark|Example)[A-Z]\\w*)`")
	placeRE   = regexp.MustCompile(testRE.String() + "|`([\\w/]+_test\\.go)`|\\n\\n|\\n\\|")
	metricRE  = regexp.MustCompile("`(balefire_[a-z_]+)`")
	commandRE = regexp.MustCompile(`\bbalefire-node ([a-z]+)\b`)
	fenceRE   = regexp.MustCompile("(?ms)^```.*?^```$")
	headingRE = regexp.MustCompile(`(?m)^(#+) `)
	titleRE   = regexp.MustCompile(`(?m)^#+ (.*)$`)
)

// TestDocumentLinksResolve checks that the file of each link exists, and the heading if it
// names one.
func TestDocumentLinksResolve(t *testing.T) {
	all := pages(t)
	anchors := map[string]map[string]bool{}
	for _, p := range all {
		anchors[p.path] = map[string]bool{}
		for _, m := range titleRE.FindAllStringSubmatch(fenceRE.ReplaceAllString(p.text, ""), -1) {
			word := regexp.MustCompile(`[^\pL\pN _-]`).ReplaceAllString(strings.ToLower(m[1]), "")
			anchors[p.path][strings.ReplaceAll(word, " ", "-")] = true
		}
	}
	for _, p := range all {
		for _, m := range linkRE.FindAllStringSubmatch(p.text, -1) {
			target, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(target, "://") {
				continue
			}
			path := filepath.ToSlash(filepath.Join(filepath.Dir(p.path), target))
			if target == "" {
				path = p.path
			}
			if _, err := os.Stat(filepath.Join("..", "..", path)); err != nil {
				t.Errorf("%s links to %s: %v", p.path, m[1], err)
			}
			if in, ok := anchors[path]; ok && anchor != "" && !in[anchor] {
				t.Errorf("%s links to %s: there is no such heading", p.path, m[1])
			}
		}
	}
}

// TestDocumentedFilesExist checks that a path with a slash exists below the root, and
// that any other name is the name of some file.
func TestDocumentedFilesExist(t *testing.T) {
	bases := map[string]bool{}
	for path := range sources(t, true) {
		bases[filepath.Base(path)] = true
	}
	for _, p := range pages(t) {
		for _, m := range fileRE.FindAllStringSubmatch(p.text, -1) {
			if !strings.Contains(m[1], "/") && bases[m[1]] {
				continue
			}
			if _, err := os.Stat(filepath.Join("..", "..", m[1])); err != nil {
				t.Errorf("%s names %s: %v", p.path, m[1], err)
			}
		}
	}
}

// TestDocumentedTestsExist checks that named tests exist: one that was renamed, moved or
// removed checks nothing. A test is named alone, or with its package, by the last element
// of its path or the whole path.
func TestDocumentedTestsExist(t *testing.T) {
	names := testNames(t)
	for _, p := range pages(t) {
		for _, m := range testRE.FindAllStringSubmatch(p.text, -1) {
			if name := strings.TrimPrefix(m[1]+"."+m[2], "."); !names[name] {
				t.Errorf("%s names %s: there is no such test", p.path, name)
			}
		}
	}
}

// TestDocumentedTestsAreInTheirFiles checks that the tests before the name of a test file,
// in one paragraph or row, are in that file.
func TestDocumentedTestsAreInTheirFiles(t *testing.T) {
	names := testNames(t)
	for _, p := range pages(t) {
		var before []string // the tests named since the last file
		told := false       // a file was named after them
		for _, m := range placeRE.FindAllStringSubmatch(p.text, -1) {
			switch {
			case m[1] != "": // its package tells where it is
			case m[2] != "" && told:
				before, told = []string{m[2]}, false
			case m[2] != "":
				before = append(before, m[2])
			case m[3] == "":
				before = nil
			default:
				told = true
				for _, name := range before {
					if strings.Contains(m[3], "/") && !names[m[3]+" "+name] {
						t.Errorf("%s states that %s is in %s", p.path, name, m[3])
					}
				}
			}
		}
	}
}

// testNames returns each test by its name, by package or folder and name, and by file and
// name.
func testNames(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	for path, f := range sources(t, true) {
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || !strings.HasSuffix(path, "_test.go") {
				continue
			}
			name := fn.Name.Name
			names[name], names[path+" "+name] = true, true
			for _, pkg := range []string{strings.TrimSuffix(f.Name.Name, "_test"), filepath.Base(filepath.Dir(path)), filepath.ToSlash(filepath.Dir(path))} {
				names[pkg+"."+name] = true
			}
		}
	}
	return names
}

// TestDocumentedMetricsAndCommandsExist checks metrics and commands against the string
// literals in the code: a metric by its name or the end of it, a command by its Use.
func TestDocumentedMetricsAndCommandsExist(t *testing.T) {
	words, commands := map[string]bool{}, map[string]bool{"help": true, "completion": true}
	for path, f := range sources(t, false) {
		ast.Inspect(f, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				word, _ := strconv.Unquote(lit.Value)
				words[word] = true
				if verb, _, _ := strings.Cut(word, " "); strings.HasPrefix(path, "cmd/") {
					commands[verb] = true
				}
			}
			return true
		})
	}
	for _, p := range pages(t) {
		for _, m := range metricRE.FindAllStringSubmatch(p.text, -1) {
			if !ends(words, m[1]) {
				t.Errorf("%s names the metric %s: it is not in the code", p.path, m[1])
			}
		}
		for _, m := range commandRE.FindAllStringSubmatch(strings.Join(code(p.text), "\n"), -1) {
			if !commands[m[1]] {
				t.Errorf("%s names the command %s: it does not exist", p.path, m[1])
			}
		}
	}
}

// ends reports whether a word is present whole, or the part after one of its underscores.
func ends(words map[string]bool, name string) bool {
	for ; name != ""; _, name, _ = strings.Cut(name, "_") {
		if words[name] {
			return true
		}
	}
	return false
}

// code returns the code in a document: fenced blocks and text in back quotes.
func code(text string) []string {
	rest := fenceRE.ReplaceAllString(text, "")
	return append(fenceRE.FindAllString(text, -1), regexp.MustCompile("`[^`]+`").FindAllString(rest, -1)...)
}

// TestEveryPromiseIsDocumented checks that the document has each of the promises,
// and that each test file named in its row has the promise's number.
func TestEveryPromiseIsDocumented(t *testing.T) {
	all := pages(t)
	i := slices.IndexFunc(all, func(p page) bool { return p.path == "docs/promises.md" })
	if i < 0 {
		t.Fatal("docs/promises.md is missing")
	}
	rows := strings.Split(all[i].text, "\n")
	for n := 1; n <= 23; n++ {
		name := "I" + strconv.Itoa(n)
		at := slices.IndexFunc(rows, func(row string) bool { return strings.HasPrefix(row, "| "+name+" |") })
		if at < 0 {
			t.Errorf("docs/promises.md has no row for %s", name)
			continue
		}
		for _, m := range fileRE.FindAllStringSubmatch(rows[at], -1) {
			b, err := os.ReadFile(filepath.Join("..", "..", m[1]))
			if err != nil || !regexp.MustCompile(`\b`+name+`\b`).Match(b) {
				t.Errorf("docs/promises.md states that %s tests %s, but the file does not name it (%v)", m[1], name, err)
			}
		}
	}
}

// TestEveryTestNamesItsPromise checks that the comment of each test in the row of a promise
// has the promise's number, so that a search for the number finds the test.
func TestEveryTestNamesItsPromise(t *testing.T) {
	comments, checked := testComments(t), 0
	for _, p := range pages(t) {
		for row := range strings.Lines(p.text) {
			number := promiseRE.FindStringSubmatch(row)
			if p.path != "docs/promises.md" || number == nil {
				continue
			}
			named := regexp.MustCompile(`\b` + number[1] + `\b`)
			for _, test := range testsIn(row) {
				if len(comments[test]) == 0 {
					t.Errorf("docs/promises.md names %s in the row of %s: there is no such test", test, number[1])
				}
				for _, comment := range comments[test] {
					if checked++; !named.MatchString(comment) {
						t.Errorf("docs/promises.md states that %s tests %s, but the comment of the test does not name it", test, number[1])
					}
				}
			}
		}
	}
	if checked < 100 {
		t.Errorf("only %d comments were checked", checked)
	}
}

var promiseRE = regexp.MustCompile(`^\| (I\d+) \|`)

// testsIn returns the tests that a row names, each as a key of [testComments]: with its package,
// or with the files that are named after it; without both by its name alone.
func testsIn(row string) (all []string) {
	var before []string // the tests named since the last file
	told := false       // a file was named after them
	for _, m := range append(placeRE.FindAllStringSubmatch(row, -1), make([]string, 4)) {
		switch {
		case m[1] != "":
			all = append(all, m[1]+"."+m[2])
		case m[3] != "":
			told = true
			for _, name := range before {
				all = append(all, m[3]+" "+name)
			}
		default: // a test, or the end of the row
			if told {
				before, told = nil, false
			}
			if m[2] == "" {
				all = append(all, before...)
			}
			before = append(before, m[2])
		}
	}
	return all
}

// testComments returns the comments of each test, by the keys of [testNames].
func testComments(t *testing.T) map[string][]string {
	t.Helper()
	comments := map[string][]string{}
	for path, f := range sources(t, true) {
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Recv != nil || !strings.HasSuffix(path, "_test.go") {
				continue
			}
			keys := map[string]bool{fn.Name.Name: true, path + " " + fn.Name.Name: true}
			for _, pkg := range []string{strings.TrimSuffix(f.Name.Name, "_test"), filepath.Base(filepath.Dir(path)), filepath.ToSlash(filepath.Dir(path))} {
				keys[pkg+"."+fn.Name.Name] = true
			}
			for key := range keys {
				comments[key] = append(comments[key], fn.Doc.Text())
			}
		}
	}
	return comments
}

// TestLaterIsExplained checks that a row of the differences which puts something off links
// to its design, and that no other row does.
func TestLaterIsExplained(t *testing.T) {
	all := pages(t)
	i := slices.IndexFunc(all, func(p page) bool { return p.path == "docs/differences.md" })
	if i < 0 {
		t.Fatal("docs/differences.md is missing")
	}
	for n, row := range strings.Split(all[i].text, "\n") {
		if later, linked := strings.Contains(row, "*later*"), strings.Contains(row, "](later.md"); later != linked {
			t.Errorf("docs/differences.md:%d says later: %t, links to docs/later.md: %t", n+1, later, linked)
		}
	}
}

// TestReadmesMatch checks what can be compared without knowing Chinese: the levels of
// headings, code, links, and the number of table rows and list items.
func TestReadmesMatch(t *testing.T) {
	byPath := map[string]string{}
	for _, p := range pages(t) {
		byPath[p.path] = p.text
	}
	en, zh := byPath["README.md"], byPath["README.zh.md"]
	if en == "" || zh == "" {
		t.Fatal("a README is missing")
	}
	same := func(what string, of func(text string) []string) {
		if a, b := of(en), of(zh); !slices.Equal(a, b) {
			t.Errorf("%s differ:\n%q\n%q", what, a, b)
		}
	}
	prose := func(text string) string { return fenceRE.ReplaceAllString(text, "") }
	same("headings", func(text string) []string { return headingRE.FindAllString(prose(text), -1) })
	same("code blocks", func(text string) []string { return fenceRE.FindAllString(text, -1) })
	same("links", func(text string) []string {
		links := map[string]bool{}
		for _, m := range linkRE.FindAllStringSubmatch(text, -1) {
			links[strings.Replace(m[1], "README.zh.md", "README.md", 1)] = true
		}
		return slices.Sorted(maps.Keys(links))
	})
	same("tables and lists", func(text string) []string { return regexp.MustCompile(`(?m)^[|-]`).FindAllString(text, -1) })
}
