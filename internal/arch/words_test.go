package arch

import (
	"go/ast"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// A retired word is one that the code used for a concept and that must not come back: it
// has a term of the field.
type retired struct {
	word string // lower case
	use  string // the term that replaces it
}

// retiredNames must not be a part of an identifier: hearsay, isHearsay, hearsayLimit.
var retiredNames = []retired{
	{"porch", "preHelloFilter"},
	{"hearsay", "gossiped addresses"},
	{"crew", "taskGroup"},
	{"parting", "fastClose"},
	{"tacit", "fastClose"},
	{"abrupt", "fastClose"},
	{"sightings", "replayWindow"},
	{"nudge", "wake"},
	{"hurry", "wake"},
	{"mend", "repair"},
	{"mends", "repairs"},
	{"house", "node, or the name of the thing"},
	{"houses", "nodes"},
	{"hall", "node"},
	{"halls", "nodes"},
	{"porter", "bodyTransfer"},
	{"porters", "bodyTransfers"},
	{"errand", "transfer"},
	{"errands", "transfers"},
	{"lend", "send"},
	{"lends", "sends"},
	{"woe", "ScheduleError"},
	{"woes", "ScheduleErrors"},
	{"ears", "verifier"},
	{"voice", "signer"},
	{"voices", "signers"},
	{"chore", "indirectProbe"},
	{"chores", "indirectProbes"},
	{"grave", "tombstone"},
	{"graves", "tombstones"},
	{"saying", "self record, broadcast"},
	{"sayings", "self records, broadcasts"},
	{"condemn", "declareDead"},
	{"lacking", "needsSync"},
	{"convey", "proof of a deed"},
	{"conveys", "proves a deed"},
	{"shy", "backoff"},
	{"shun", "backoff"},
	{"ripen", "promoteDue"},
	{"desk", "slots"},
	{"desks", "slots"},
	{"seat", "slot"},
	{"seats", "slots"},
	{"prospect", "startInput"},
	{"prospects", "startInputs"},
	{"imposter", "conflict"},
	{"barred", "cancelTombstone"},
	{"stood", "wasHome"},
	{"spill", "offload"},
	{"flying", "inflight"},
	{"unland", "requeue"},
	{"diary", "events"},
	{"upkeep", "maintenance"},
	{"paper", "printer"},
	{"hopeless", "permanent"},
	{"world", "app"},
	{"villain", "attacker"},
	{"neighbour", "peer"},
	{"neighbours", "peers"},
	{"rooms", "subsystems"},
	{"floors", "layers"},
	{"wish", "request"},
	{"wishes", "requests"},
	{"unheeded", "ignored"},
	{"offence", "violation"},
	{"offences", "violations"},
	{"shelf", "archive"},
	{"voucher", "delegate"},
	{"vouchers", "delegates"},
}

// retiredIdentifiers must not be a part of an identifier either; texts may use them, because they
// are words of everyday English too.
var retiredIdentifiers = []retired{
	{"ground", "storage"},
	{"circle", "memberHost"},
	{"aim", "dialTarget"},
	{"widen", "extraConns"},
	{"door", "listener"},
	{"knock", "dial, or wake"},
	{"knocks", "dials"},
	{"ear", "verifier"},
	{"recall", "proof of a deed"},
	{"recalls", "proofs of a deed"},
	{"flaw", "mutation"},
	{"flaws", "mutations"},
	{"speak", "resend"},
	{"lift", "end of a block"},
	{"sight", "acceptInput"},
	{"land", "commitGroup"},
	{"depart", "commitGroup"},
	{"shed", "tombstone"},
	{"barrier", "blocked"},
	{"tend", "maintenance"},
	{"shield", "faultFS"},
	{"vital", "bypassLimits"},
	{"holding", "state"},
	{"mended", "repaired"},
}

// retiredWhole must not be identifiers; their parts may be.
var retiredWhole = []retired{
	{"turnedaway", "refusedPeers, or the name of the limit"},
	{"leaseseals", "receiptSigner"},
	{"asone", "collector"},
}

// retiredTexts must not be in a text of several words, which people read: the code may use
// them.
var retiredTexts = []retired{
	{"deed", "statement of the home of a queue"},
	{"deeds", "statements of the home of a queue"},
}

// exampleNames are retired names that texts use as names of mailboxes.
var exampleNames = []string{"desk"}

// retiredProse must not occur in comments, nor in the pages.
var retiredProse = []retired{
	{"porch", "pre-hello filter"},
	{"hearsay", "gossip"},
	{"house", "node, module, or the name of the thing"},
	{"hall", "node"},
	{"rooms", "subsystems"},
	{"errand", "transfer"},
	{"mend", "repair"},
	{"mends", "repairs"},
	{"mended", "repaired"},
	{"door", "listener"},
	{"desk", "slots"},
	{"neighbour", "peer"},
	{"neighbours", "peers"},
	{"colour", "color"},
	{"behaviour", "behavior"},
	{"recognise", "recognize"},
	{"of late", "recently"},
	{"offence", "violation"},
	{"unheeded", "ignored"},
	{"lends a hand", "helps"},
	{"anew", "again"},
	{"beside", "next to, in addition to, during, or with"},
	{"in its time", "before it is too late, or in time"},
	{"towards", "toward, or for"},
	{"for ever", "forever"},
	{"in vain", "without success"},
}

// exampleProse are the words of retiredProse that pages use as names of mailboxes.
var exampleProse = []string{"desk"}

// isRetired reports whether a text has a retired word, and which.
func isRetired(text string, spare ...string) (r retired, found bool) {
	for i, r := range retiredProse {
		if retiredForms[i].MatchString(text) && !slices.Contains(spare, r.word) {
			return r, true
		}
	}
	return retired{}, false
}

// retiredForms match the words of retiredProse.
var retiredForms = func() (all []*regexp.Regexp) {
	for _, r := range retiredProse {
		all = append(all, regexp.MustCompile(`(?i)\b`+regexp.QuoteMeta(r.word)+`\b`))
	}
	return all
}()

// The pages have none of the words either, except the one about what broke, which is history.
func TestRetiredWordsStayAwayFromPages(t *testing.T) {
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(pages) < 10 {
		t.Fatalf("%d pages, %v", len(pages), err)
	}
	for _, page := range append(pages, "../../README.md", "../../CONTRIBUTING.md", "../../SECURITY.md") {
		b, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.ToSlash(strings.TrimPrefix(page, "../../"))
		for i, line := range strings.Split(string(b), "\n") {
			if r, found := isRetired(line, exampleProse...); found && path != "docs/track-record.md" {
				t.Errorf("%s:%d: the word %q is retired: use %s", path, i+1, r.word, r.use)
			}
		}
	}
}

// TestRetiredWordsStayAway looks at the identifiers that Go files declare, at their comments,
// and at the texts of the product: routes, metrics, fields of JSON and what people read.
func TestRetiredWordsStayAway(t *testing.T) {
	names := map[string]string{}
	for _, r := range retiredNames {
		names[r.word] = r.use
	}
	for path, f := range sources(t, true) {
		if path == "internal/arch/words_test.go" {
			continue
		}
		for _, id := range declared(f) {
			if r, found := retiredIn(id.Name); found {
				t.Errorf("%s: %s: the word %q is retired: use %s", positions.Position(id.Pos()), id.Name, r.word, r.use)
			}
		}
		ast.Inspect(f, func(n ast.Node) bool {
			lit, ok := n.(*ast.BasicLit)
			if !ok || lit.Kind != token.STRING || strings.HasSuffix(path, "_test.go") {
				return true
			}
			for _, word := range strings.FieldsFunc(strings.ToLower(lit.Value), func(r rune) bool { return !unicode.IsLetter(r) }) {
				i := slices.IndexFunc(retiredTexts, func(r retired) bool { return r.word == word })
				if i >= 0 && strings.Contains(lit.Value, " ") && !strings.HasSuffix(path, ".pb.go") {
					t.Errorf("%s: a person reads the word %q: use %s", positions.Position(lit.Pos()), word, retiredTexts[i].use)
				}
				if use, ok := names[word]; ok && !slices.Contains(exampleNames, word) {
					t.Errorf("%s: the text has the retired word %q: use %s", positions.Position(lit.Pos()), word, use)
				}
			}
			return true
		})
		for _, group := range f.Comments {
			if r, found := isRetired(group.Text()); found {
				t.Errorf("%s: the comment has the retired word %q: use %s", positions.Position(group.Pos()), r.word, r.use)
			}
		}
	}
}

// retiredIn reports whether an identifier is, or has a part that is, retired.
func retiredIn(name string) (r retired, found bool) {
	for _, part := range nameParts(name) {
		for _, list := range [][]retired{retiredNames, retiredIdentifiers} {
			if i := slices.IndexFunc(list, func(r retired) bool { return r.word == part }); i >= 0 {
				return list[i], true
			}
		}
	}
	i := slices.IndexFunc(retiredWhole, func(r retired) bool { return r.word == strings.ToLower(name) })
	if i < 0 {
		return retired{}, false
	}
	return retiredWhole[i], true
}

// protoName matches the names in a line of a .proto file, which has its comment cut off.
var protoName = regexp.MustCompile(`[A-Za-z_][A-Za-z_0-9]*`)

// TestRetiredWordsStayAwayFromProtocolsAndScripts looks at the names and the comments of .proto
// files, and at the comments of the scripts of tests (.txtar).
func TestRetiredWordsStayAwayFromProtocolsAndScripts(t *testing.T) {
	found := map[string]int{}
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "third_party" || d.Name() == "dist" || d.Name() == ".git") {
			return filepath.SkipDir
		}
		ext := filepath.Ext(path)
		if ext != ".proto" && ext != ".txtar" {
			return nil
		}
		found[ext]++
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		mark := map[string]string{".proto": "//", ".txtar": "#"}[ext]
		for i, line := range strings.Split(string(b), "\n") {
			code, comment, _ := strings.Cut(line, mark)
			if ext == ".txtar" && strings.TrimSpace(code) != "" {
				continue // a command, whose arguments may have a #
			}
			if r, bad := isRetired(comment); bad {
				t.Errorf("%s:%d: the word %q is retired: use %s", path, i+1, r.word, r.use)
			}
			for _, name := range protoName.FindAllString(code, -1) {
				if r, bad := retiredIn(name); bad {
					t.Errorf("%s:%d: %s: the word %q is retired: use %s", path, i+1, name, r.word, r.use)
				}
			}
		}
		return nil
	})
	if err != nil || found[".proto"] < 5 || found[".txtar"] < 5 {
		t.Errorf("%v files, %v", found, err)
	}
}

// TestNameParts covers the forms of Go identifiers.
func TestNameParts(t *testing.T) {
	for name, want := range map[string]string{
		"hearsay": "hearsay", "isHearsay": "is hearsay", "HTTPPorch": "http porch",
		"porchOf2": "porch of2", "test_ears": "test ears", "ID": "id", "x": "x",
	} {
		if got := strings.Join(nameParts(name), " "); got != want {
			t.Errorf("parts of %s: %q, want %q", name, got, want)
		}
	}
}

// declared returns the identifiers that a file declares.
func declared(f *ast.File) (ids []*ast.Ident) {
	add := func(exprs ...ast.Expr) {
		for _, e := range exprs {
			if id, ok := e.(*ast.Ident); ok {
				ids = append(ids, id)
			}
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			ids = append(ids, n.Name)
		case *ast.TypeSpec:
			ids = append(ids, n.Name)
		case *ast.ValueSpec:
			ids = append(ids, n.Names...)
		case *ast.Field:
			ids = append(ids, n.Names...)
		case *ast.AssignStmt:
			if n.Tok == token.DEFINE {
				add(n.Lhs...)
			}
		case *ast.RangeStmt:
			if n.Tok == token.DEFINE {
				add(n.Key, n.Value)
			}
		case *ast.LabeledStmt:
			ids = append(ids, n.Label)
		}
		return true
	})
	return slices.DeleteFunc(ids, func(id *ast.Ident) bool { return id.Name == "_" })
}

// nameParts splits an identifier at underscores and changes of case, in lower case.
func nameParts(name string) (parts []string) {
	runes := []rune(name)
	start := 0
	for i := 1; i <= len(runes); i++ {
		end := i == len(runes) || runes[i] == '_'
		upper := !end && unicode.IsUpper(runes[i])
		word := upper && !unicode.IsUpper(runes[i-1]) ||
			upper && i+1 < len(runes) && unicode.IsLower(runes[i+1]) // the last capital of HTTPServer
		if end || word {
			if part := strings.Trim(string(runes[start:i]), "_"); part != "" {
				parts = append(parts, strings.ToLower(part))
			}
			start = i
		}
	}
	return parts
}
