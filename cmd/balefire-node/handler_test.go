package main

import (
	"net"
	"net/http"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/balefire/balefire/wire"
)

// What is most likely a mistake is said when a handler is added or a node invited.
func TestWarningsAreShown(t *testing.T) {
	n, absent := newCannedNode(), []wire.Note{{Code: wire.NoteMemberAbsent, NoteArgs: wire.NoteArgs{Peer: "laptpo"}}}
	n.Answer("POST /v1/handlers", nil)
	n.Answer("GET /v1/handlers", page(wire.Handler{Kind: "shell", Warnings: absent}))
	n.Answer("POST /v1/invitations", wire.Invitation{Ticket: "bf1", Expires: testStart, Warnings: absent})
	for _, args := range [][]string{{"handler", "add", "shell", "--allow", "laptpo", "--", "true"}, {"invite", "--name", "laptpo"}} {
		if code, _, errs := command(t, n, args...); code != exitOK || !strings.Contains(errs, "\n! ") || !strings.Contains(errs, "laptpo") {
			t.Errorf("%s: %d, %q", args, code, errs)
		}
	}
}

// --args and --allow-flags each set their own field of the handler that is added.
func TestHandlerAddSendsWhichArgumentsItAllows(t *testing.T) {
	n, got := newCannedNode(), wire.HandlerSpec{}
	n.Answer("POST /v1/handlers", func(r *http.Request) any {
		got = document[wire.HandlerSpec](r)
		return nil
	})
	plain := wire.HandlerSpec{Kind: "grep", Exec: []string{"grep", "x"}, Allow: []string{"laptop"}, Args: true}
	flags := plain
	flags.AllowFlags = true
	for line, want := range map[string]wire.HandlerSpec{
		"handler add grep --allow laptop --args -- grep x":               plain,
		"handler add grep --allow laptop --args --allow-flags -- grep x": flags,
	} {
		got = wire.HandlerSpec{}
		if code, _, errs := command(t, n, strings.Fields(line)...); code != exitOK || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %d, %q, sent %+v", line, code, errs, got)
		}
	}
}

// handler add succeeds once the handler is added, even if a later request fails.
func TestHandlerAddEndsWellOnceItIsAdded(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "node.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			rw.WriteHeader(http.StatusNoContent)
			return
		}
		rw.WriteHeader(http.StatusInternalServerError)
	})}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	defer func() { s.Close(); <-served }()
	w, _, said := newTestApp()
	c := newRoot(w)
	c.SetArgs([]string{"handler", "add", "shell", "--socket", socket, "--dir", filepath.Dir(socket), "--allow", "role:work", "--", "true"})
	if err := c.ExecuteContext(t.Context()); err != nil {
		t.Errorf("add: %v", err)
	}
	if !strings.Contains(said.String(), "handler shell added") {
		t.Errorf("output %q", said)
	}
}

// The list says which tasks cannot be started, and why.
func TestHandlerListNamesProblems(t *testing.T) {
	n := newCannedNode()
	n.Answer("GET /v1/handlers", wire.Page[wire.Handler]{Items: []wire.Handler{
		{Kind: "count"},
		{Kind: "report", Problem: &wire.Note{Code: wire.ProblemHandler, NoteArgs: wire.NoteArgs{Detail: "no program /opt/report"}}},
	}})
	code, out, errs := command(t, n, "handler", "ls")
	if code != exitOK || !strings.Contains(out, "! the tasks of report cannot be started: ") || !strings.Contains(out, "no program /opt/report") || strings.Contains(out, "of count cannot") {
		t.Errorf("%d, %q, %q", code, out, errs)
	}
}
