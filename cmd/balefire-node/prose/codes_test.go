package prose

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"iter"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// TestCodesAreDocumented compares docs/codes.md with the codes and the kinds of events of
// package wire and their comments; -update writes it.
func TestCodesAreDocumented(t *testing.T) {
	const path = "../../../docs/codes.md"
	want := codesPage(t)
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != want {
		t.Errorf("docs/codes.md does not list the codes of package wire: go test ./cmd/balefire-node/prose -update (%v)", err)
	}
}

// codesPage returns the page with all codes.
func codesPage(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	b.WriteString(`# Codes of causes, warnings, risks and events

` + "`why`, `status`, `path`, `mesh summary` and `netcheck`" + ` state facts as a code with arguments, and so do the field ` + "`problem`" + ` of handlers,
mailboxes, subscriptions, schedules and receipts, and the causes of leases: with ` + "`-o json`" + `, and in the API.
The codes are stable; the command line makes its sentences from them. After the colon are the arguments of each; the
OpenAPI document describes them. Events are a kind with fields, of which one that is empty is absent.
`)
	for _, d := range slices.Concat(declarations(t, "wire/note.go"), declarations(t, "wire/events.go"), declarations(t, "wire/lease.go"), declarations(t, "wire/bounce.go")) {
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
	b.WriteString("\n## Why an owner gave a lease back\n\nThe cause of the event `released`.\n\n| code | meaning |\n|---|---|\n")
	for _, d := range declarations(t, "proto/ownership.pb.go") {
		group, ok := d.(*ast.GenDecl)
		if !ok || group.Tok != token.CONST {
			continue
		}
		for _, s := range group.Specs {
			v := s.(*ast.ValueSpec)
			if code, ok := strings.CutPrefix(v.Names[0].Name, "ReleaseCause_RELEASE_CAUSE_"); ok && code != "UNSPECIFIED" {
				fmt.Fprintf(&b, "| `%s` | %s |\n", code, strings.Join(strings.Fields(v.Comment.Text()+v.Doc.Text()), " "))
			}
		}
	}
	b.WriteString("\n## Why a task ended, failed or changed\n\nThe cause in the API; the text of the end is its reason, that of an event its detail.\n\n| code | meaning |\n|---|---|\n")
	for c, comment := range causeComments(t) {
		fmt.Fprintf(&b, "| `%s` | %s |\n", c.Name(), comment)
	}
	return b.String()
}

// causeComments returns the causes in order, with their comments.
func causeComments(t *testing.T) iter.Seq2[proto.TaskCause, string] {
	comments := map[string]string{}
	for _, d := range declarations(t, "proto/state.pb.go") {
		if group, ok := d.(*ast.GenDecl); ok && group.Tok == token.CONST {
			for _, s := range group.Specs {
				v := s.(*ast.ValueSpec)
				comments[v.Names[0].Name] = strings.TrimSpace(v.Comment.Text() + v.Doc.Text())
			}
		}
	}
	return func(yield func(proto.TaskCause, string) bool) {
		for _, number := range slices.Sorted(maps.Keys(proto.TaskCause_name))[1:] {
			c := proto.TaskCause(number)
			if !yield(c, comments["TaskCause_"+c.String()]) {
				return
			}
		}
	}
}

// Every cause has a text, with and without a detail, and none changes unnoticed.
func TestCauses(t *testing.T) {
	var b strings.Builder
	for c := range causeComments(t) {
		if _, ok := causes[c]; !ok {
			t.Errorf("%s has no text", c.Name())
		}
		said := map[string]bool{}
		for _, refusal := range []string{"", "FULL"} {
			for _, detail := range []string{"", "a detail"} {
				if text := Cause(c.Name(), refusal, detail); !said[text] {
					fmt.Fprintf(&b, "%s: %s\n", c.Name(), text)
					said[text] = true
				}
			}
		}
	}
	for _, code := range constants(t, "wire/lease.go") {
		fmt.Fprintf(&b, "%s: %s\n", code, leaseCauses[wire.LeaseCause(code)])
		if leaseCauses[wire.LeaseCause(code)] == "" || causeNames[code] != 0 {
			t.Errorf("%s has no text, or is the cause of a task too", code)
		}
	}
	for _, code := range constants(t, "wire/bounce.go") {
		e := wire.NodeEvent{Kind: wire.EventMailBounced, Fields: map[string]string{"cause": code}}
		fmt.Fprintf(&b, "%s: %s\n", code, why(e))
		if why(e) != bounceCauses[wire.BounceCause(code)] {
			t.Errorf("%s has no text", code)
		}
	}
	golden(t, "testdata/causes.golden", b.String())
	for want, got := range map[string]string{
		"": Cause("", "", ""), "of a peer: {refusal}": Cause("", "", "of a peer: {refusal}"), "of_a_newer_node: so": Cause("of_a_newer_node", "", "so"),
		"cancelled between two starts; it may have run before an unclean stop": Ending(wire.Ending{Cause: "cancelled_between", MayHaveRun: true}),
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// constants returns the values of the constants of a file.
func constants(t *testing.T, file string) (values []string) {
	for _, d := range declarations(t, file) {
		group, ok := d.(*ast.GenDecl)
		if !ok || group.Tok != token.CONST {
			continue
		}
		for _, s := range group.Specs {
			value, err := strconv.Unquote(s.(*ast.ValueSpec).Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			values = append(values, value)
		}
	}
	return values
}

// declarations returns what a file declares.
func declarations(t *testing.T, file string) []ast.Decl {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), "../../../"+file, nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	return f.Decls
}

// Every kind of event has a sentence, also without the fields that it may lack, and no
// sentence changes unnoticed.
func TestEvents(t *testing.T) {
	full := map[string]string{
		"path": "quic direct", "detail": "a reason", "task": "01a1f84f", "what": "body", "direction": "out", "bytes": "1048576", "size": "4194304", "from": "ALIVE", "to": "DEAD",
		"by": "c", "count": "1024", "queues": "build,test", "state": "DEAD", "queue": "build", "schedule": "daily", "cause": "disk", "off": "-1h0m0s", "id": "12D3KooW", "code": "K7QM",
		"name": "n", "box": "agent:ceo@b", "subscription": "s", "number": "7", "mail": "01a1f850", "attempt": "2", "text": "reader", "file": "dead.jsonl",
	}
	causes := map[string]string{
		wire.EventMailUnproven: string(wire.ReceiptNone), wire.EventMailBounced: string(wire.BounceRefused), wire.EventMailUntold: string(wire.BounceNoBox),
	}
	var b strings.Builder
	for _, kind := range constants(t, "wire/events.go") {
		if len(events[kind]) == 0 && !strings.HasPrefix(kind, "mail.") {
			t.Errorf("%s has no sentence", kind)
		}
		fields := maps.Clone(full)
		if cause := causes[kind]; cause != "" {
			fields["cause"] = cause
		}
		for _, without := range []string{"", "detail", "by", "queue", "code", "attempt", "text", "subscription", "to"} {
			delete(fields, without)
			text := Event(wire.NodeEvent{Kind: kind, Peer: "b", Fields: fields})
			if !strings.HasSuffix(b.String(), text+"\n") {
				fmt.Fprintf(&b, "%s: %s\n", kind, text)
			}
		}
		if kind == wire.EventCompared {
			fmt.Fprintf(&b, "%s: %s\n", kind, Event(wire.NodeEvent{Kind: kind}))
		}
	}
	golden(t, "testdata/events.golden", b.String())
}
