package prose

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/balefire/balefire/wire"
)

var update = flag.Bool("update", false, "write testdata and docs/codes.md")

// full has every argument.
var full = wire.NoteArgs{
	Peer: "b", Other: "c", Self: "a", Queue: "build", Box: "agent:ceo@b", Task: "01a1f84f", Kind: "test", Key: "repo", State: "DEAD", Refusal: "FULL", Detail: "a reason",
	Path: "quic /ip4/192.0.2.1", Epoch: "7.40", Generation: 3, Names: []string{"r", "s"}, Count: 2, Of: 8, Held: 1, Attempts: 4, Abandons: 5, Seconds: 65,
	Time:     new(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)),
	Dial:     &wire.Dialed{Failed: 3, Error: "connection refused", Seconds: 7, Next: 2, Idle: 9},
	Clock:    &wire.ClockDoubt{Off: -3600, Stopped: true, Denied: true, Left: 60},
	Transfer: &wire.Transfer{What: "body", Direction: "out", Peer: "b", Bytes: 1 << 20, Size: 4 << 20},
}

// cases are the notes of the golden file: each code with all arguments, and the variants.
func cases(t *testing.T) (all []wire.Note) {
	for _, code := range codes(t) {
		all = append(all, wire.Note{Code: code, NoteArgs: full})
	}
	variant := func(code wire.NoteCode, change func(a *wire.NoteArgs)) {
		a := full
		change(&a)
		all = append(all, wire.Note{Code: code, NoteArgs: a})
	}
	variant(wire.NoteSelfRevoked, func(a *wire.NoteArgs) { a.Peer = "" })
	variant(wire.NoteClocksDiffer, func(a *wire.NoteArgs) { a.State = "theirs" })
	for _, code := range []wire.NoteCode{wire.NoteIsolated, wire.NoteSelfPaused} {
		variant(code, func(a *wire.NoteArgs) { a.Of = 0 })
		variant(code, func(a *wire.NoteArgs) { a.Of, a.Names = 0, nil })
	}
	variant(wire.NoteDialing, func(a *wire.NoteArgs) { a.Dial = &wire.Dialed{Next: 1} })
	variant(wire.NoteNoAnswer, func(a *wire.NoteArgs) { a.Count, a.Dial = 1, &wire.Dialed{Error: "no route"} })
	variant(wire.NoteEnded, func(a *wire.NoteArgs) { a.State, a.Detail = "SUCCESS", "" })
	variant(wire.NoteEnded, func(a *wire.NoteArgs) { a.State = "FAILED" })
	for _, code := range []wire.NoteCode{wire.NoteEnded, wire.NoteRetryWaits, wire.NoteResultRefused, wire.NoteResultExpired} {
		variant(code, func(a *wire.NoteArgs) { a.State, a.Cause = "FAILED", "refused" })
	}
	for _, code := range []string{"NO_HANDLER", "DRAINING", "BUSY"} {
		variant(wire.NoteRefused, func(a *wire.NoteArgs) { a.Refusal = code })
	}
	variant(wire.NoteBehind, func(a *wire.NoteArgs) { a.State = "" })
	variant(wire.NoteUnacknowledged, func(a *wire.NoteArgs) { a.Result = true })
	variant(wire.NoteRetryWaits, func(a *wire.NoteArgs) { a.Detail = "" })
	variant(wire.NoteQueueHomeLost, func(a *wire.NoteArgs) { a.Result = true })
	variant(wire.NoteQueueHomeLost, func(a *wire.NoteArgs) { a.State, a.Count, a.Held = "LEFT", 1, 0 })
	variant(wire.NoteQueueHomeLost, func(a *wire.NoteArgs) { a.State, a.Count, a.Held, a.Seconds = "REVOKED", 0, 0, 0 })
	variant(wire.NoteQueueHomeLost, func(a *wire.NoteArgs) { a.State = "UNKNOWN" })
	variant(wire.NoteQueuePaused, func(a *wire.NoteArgs) { a.Peer = "" })
	variant(wire.NoteMoveRefused, func(a *wire.NoteArgs) { a.Refusal, a.Detail = "DENIED", "" })
	variant(wire.NoteKindUnserved, func(a *wire.NoteArgs) { a.Names = nil })
	variant(wire.NoteMembersRefused, func(a *wire.NoteArgs) { a.Detail = "" })
	variant(wire.StepConnected, func(a *wire.NoteArgs) { a.Other = "" })
	variant(wire.StepQueueHome, func(a *wire.NoteArgs) { a.Generation, a.State = 0, "" })
	variant(wire.StepOutbox, func(a *wire.NoteArgs) { a.Count = 1 })
	variant(wire.NoteClockDoubted, func(a *wire.NoteArgs) { a.Clock = &wire.ClockDoubt{Off: 90, Left: 5} })
	variant(wire.NoteClockDoubted, func(a *wire.NoteArgs) { a.Clock = &wire.ClockDoubt{Outside: true} })
	for _, code := range []wire.NoteCode{wire.NotePeerClock, wire.NoteOwnClock} {
		variant(code, func(a *wire.NoteArgs) { a.Seconds = -86400 })
	}
	variant(wire.NoteLeaseRisk, func(a *wire.NoteArgs) { a.State, a.Count, a.Held = "SUSPECT", 1, 0 })
	variant(wire.NoteLeaseRisk, func(a *wire.NoteArgs) { a.Held = 2 })
	variant(wire.NoteRoleUnused, func(a *wire.NoteArgs) { a.Names = nil })
	variant(wire.NoteTasksWait, func(a *wire.NoteArgs) { a.Count, a.State = 1, "OFFLINE" })
	variant(wire.NoteResultsRefused, func(a *wire.NoteArgs) { a.Count = 1 })
	variant(wire.NoteDeadLetters, func(a *wire.NoteArgs) { a.Count = 1 })
	variant(wire.NoteDeadMail, func(a *wire.NoteArgs) { a.Count, a.Names = 1, []string{"agent:ceo@a"} })
	variant(wire.NoteMembersDead, func(a *wire.NoteArgs) { a.Count, a.Names = 1, []string{"n1"} })
	variant(wire.NoteMembersDead, func(a *wire.NoteArgs) { a.Count, a.Names = 7, strings.Split("tuvwxyz", "") })
	for _, code := range []wire.NoteCode{wire.NotePeerLeft, wire.NotePeerLost} {
		variant(code, func(a *wire.NoteArgs) { a.Box = "" })
	}
	for _, name := range []string{"topic:orders", "topic:orders/billing", "agent:ceo"} {
		variant(wire.NoteMailPaused, func(a *wire.NoteArgs) { a.Box = name })
	}
	for _, code := range []string{"NO_HANDLER", "DRAINING", "BUSY", "MOVED"} {
		variant(wire.NoteMailRefused, func(a *wire.NoteArgs) { a.Refusal = code })
	}
	variant(wire.NoteMailEnded, func(a *wire.NoteArgs) { a.State = "DONE" })
	variant(wire.NoteMailEnded, func(a *wire.NoteArgs) { a.State, a.Seconds = "DONE", 0 })
	variant(wire.NoteMailEnded, func(a *wire.NoteArgs) { a.State, a.Detail = "CANCELLED", "" })
	variant(wire.NoteMailDead, func(a *wire.NoteArgs) { a.State, a.Detail, a.Count = "final", "", 0 })
	variant(wire.NoteMailLeased, func(a *wire.NoteArgs) { a.Names = nil })
	variant(wire.NoteMailRetries, func(a *wire.NoteArgs) { a.Detail = "" })
	variant(wire.NoteHandlerProblem, func(a *wire.NoteArgs) { a.Cause = string(wire.ProblemProgram) })
	variant(wire.NoteHandlerStopped, func(a *wire.NoteArgs) { a.Cause, a.Other = string(wire.ProblemForwardMissing), "agent:desk@a" })
	variant(wire.NoteForwardStopped, func(a *wire.NoteArgs) { a.Cause = string(wire.ProblemForwardRefused) })
	variant(wire.ReceiptOtherTask, func(a *wire.NoteArgs) { a.Box = "" })
	variant(wire.NoteBoxFull, func(a *wire.NoteArgs) { a.Detail = string(wire.NoteNoReader) })
	variant(wire.NoteBoxFull, func(a *wire.NoteArgs) { a.Detail = string(wire.NoteMailPaused) })
	variant(wire.StepMail, func(a *wire.NoteArgs) { a.State, a.Key = "PENDING", "" })
	variant(wire.StepBoxMails, func(a *wire.NoteArgs) { a.Count = 0 })
	variant(wire.StepBoxClasses, func(a *wire.NoteArgs) { a.Names = nil })
	variant(wire.StepBoxReaders, func(a *wire.NoteArgs) { a.Count = 0 })
	return all
}

// Every code has its sentence, and no sentence changes unnoticed.
func TestSentences(t *testing.T) {
	var b strings.Builder
	for _, n := range cases(t) {
		if table[n.Code] == nil {
			t.Errorf("%s has no sentence", n.Code)
		}
		text, fix := Text(n), Fix(n)
		if strings.ContainsAny(text+fix, "{}\n") || text == "" {
			t.Errorf("%s: %q, %q", n.Code, text, fix)
		}
		fmt.Fprintf(&b, "%s: %s\n", n.Code, text)
		if fix != "" {
			fmt.Fprintf(&b, "    %s\n", fix)
		}
	}
	golden(t, "testdata/notes.golden", b.String())
}

// golden compares text with a file; -update writes it.
func golden(t *testing.T, file, text string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Split(text, "\n")
	for i, line := range strings.Split(string(want), "\n") {
		if i >= len(got) || got[i] != line {
			t.Fatalf("line %d is %q, want %q; if that is intended: go test ./cmd/balefire-node/prose -update", i+1, got[min(i, len(got)-1)], line)
		}
	}
}

// Text of a peer is never expanded, and a code of a newer node is shown as it is.
func TestTextOfPeers(t *testing.T) {
	n := wire.Note{Code: wire.NoteProgramMissing, NoteArgs: wire.NoteArgs{Detail: "{peer} {time}", Peer: "b"}}
	if got := Text(n); got != "its handler cannot be started: {peer} {time}" {
		t.Errorf("%q", got)
	}
	n.Detail = "x)\r\nto do    rm -r /\n"
	if got := Text(n); got != "its handler cannot be started: x) to do rm -r /" {
		t.Errorf("a forged line: %q", got)
	}
	if got := Line(wire.Note{Code: "of_a_newer_node"}); got != "of_a_newer_node" {
		t.Errorf("%q", got)
	}
	for _, code := range codes(t) { // a note without arguments must not stop the program
		Line(wire.Note{Code: code})
	}
}

// Errors are printed without package names.
func TestErrorsArePlain(t *testing.T) {
	for text, want := range map[string]string{
		"not found: addressbook: unknown peer \"laptp\": known are beta": "not found: unknown peer \"laptp\": known are beta",
		"join: invalid request: identity: not a ticket":                  "join: not a ticket",
		"open node: store: folder is in use: /x belongs to process 7":    "open node: folder is in use: /x belongs to process 7",
		"command: arguments refused: this handler takes none":            "arguments refused: this handler takes none",
		"refused by the target: DENIED: command: arguments refused":      "refused by the target: DENIED: arguments refused",
		"open the store: permission denied":                              "open the store: permission denied",
		"attempts used up: exit code 3, after 2 tries of restore: gone":  "attempts used up: exit code 3, after 2 tries of restore: gone",
	} {
		if got := Plain(text); got != want {
			t.Errorf("%q is printed as %q, want %q", text, got, want)
		}
	}
}

// The names are those with which packages begin their errors.
func TestPackagesThatBeginErrors(t *testing.T) {
	root := filepath.Join("..", "..", "..")
	found := map[string]bool{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		_, nested := os.Stat(filepath.Join(path, "go.mod"))
		switch name := d.Name(); {
		case d.IsDir() && path != root && (nested == nil || strings.HasPrefix(name, ".") || slices.Contains([]string{"bench", "cmd", "e2e", "internal", "third_party", "testdata", "tools"}, name)):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			return err
		}
		ast.Inspect(f, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) == 0 {
				return true
			}
			makes, text := types.ExprString(call.Fun), types.ExprString(call.Args[0])
			if (makes == "errors.New" || makes == "fmt.Errorf") && strings.HasPrefix(text, `"`+f.Name.Name+": ") {
				found[f.Name.Name] = true
			}
			return true
		})
		return nil
	})
	if want := slices.Sorted(maps.Keys(found)); err != nil || !slices.Equal(packages, want) {
		t.Errorf("%q, want %q, %v", packages, want, err)
	}
}

// So are notes.
func TestNotesArePlain(t *testing.T) {
	problem := "command: program cannot be run: nothing is installed at /z"
	refused := &wire.Dialed{Failed: 1, Error: "connect to its relay abc: transport: 12D3 refused this node: no", Seconds: 1}
	for _, tt := range []struct {
		note wire.Note
		want string
	}{
		{wire.Note{Code: wire.NoteHandlerProblem, NoteArgs: wire.NoteArgs{Kind: "z", Cause: string(wire.ProblemHandler), Detail: problem}}, "handler z: this node does not take it: program cannot be run: nothing is installed at /z"},
		{wire.Note{Code: wire.NoteProgramMissing, NoteArgs: wire.NoteArgs{Detail: problem}}, "its handler cannot be started: program cannot be run: nothing is installed at /z"},
		{wire.Note{Code: wire.StepConnFailed, NoteArgs: wire.NoteArgs{Dial: refused}}, "connection: it failed 1s ago: connect to its relay abc: 12D3 refused this node: no"},
		{wire.Note{Code: wire.NoteNoAnswer, NoteArgs: wire.NoteArgs{Peer: "b", Count: 1, Dial: refused}}, "b cannot be reached at any of its 1 addresses; the last attempt, 1s ago, failed: connect to its relay abc: 12D3 refused this node: no; it is being dialed now"},
	} {
		if got := Text(tt.note); got != tt.want {
			t.Errorf("%q, want %q", got, tt.want)
		}
	}
}

// The progress of a transfer has its bytes and share, and the rate and the remaining time as
// far as they are known.
func TestTransfer(t *testing.T) {
	for want, x := range map[string]wire.Transfer{
		"its body is being transferred to a: 50.0 MiB of 200.0 MiB (25 %), 10.0 MiB/s, 15s left": {What: "body", Direction: "out", Peer: "a", Bytes: 50 << 20, Size: 200 << 20, Rate: 10 << 20, Left: 15},
		"its result is being transferred from a: 0.0 KiB of 3.0 GiB (0 %)":                       {What: "result", Direction: "in", Peer: "a", Size: 3 << 30},
	} {
		if got := Transfer(&x); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// codes returns the codes that wire declares, in the order of its source.
func codes(t *testing.T) (all []wire.NoteCode) {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), filepath.Join("..", "..", "..", "wire", "note.go"), nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(f, func(n ast.Node) bool {
		v, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if id, typed := v.Type.(*ast.Ident); typed && id.Name == "NoteCode" {
			code, err := strconv.Unquote(v.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, wire.NoteCode(code))
		}
		return true
	})
	if len(all) < 50 {
		t.Fatalf("found %d codes", len(all))
	}
	return all
}

// The remedy for a missing handler has no placeholder but the program: where, for which kind and
// for whom are known.
func TestFixOfAMissingHandler(t *testing.T) {
	n := wire.Note{Code: wire.NoteRefused, NoteArgs: wire.NoteArgs{Peer: "beta", Self: "alpha", Kind: "brew", Refusal: "NO_HANDLER", Detail: "no handler"}}
	if got, want := Fix(n), "on beta: balefire-node handler add brew --allow alpha -- PROGRAM"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// A reader without a name is one, too: mail read without --reader is.
func TestReadersWithoutNames(t *testing.T) {
	n := wire.Note{Code: wire.StepBoxReaders, NoteArgs: wire.NoteArgs{Box: "agent:desk@harbor", Names: []string{""}, Count: 1, Held: 1}}
	if text := Text(n); strings.Contains(text, "read by ;") {
		t.Errorf("%q", text)
	}
}
