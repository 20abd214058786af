package node

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/balefire/balefire/datadir"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// If several nodes join at once under one name, one gets it.
func TestNameIsAssignedOnce(t *testing.T) {
	t.Parallel()
	a, _ := pair(t, nil)
	var wg sync.WaitGroup
	var mu sync.Mutex
	admitted, begin := 0, make(chan struct{})
	for range 8 {
		keys, err := identity.CreateKeys(t.TempDir()+"/id", time.Now())
		if err != nil {
			t.Fatal(err)
		}
		inv, err := a.Pairing.Invite(t.Context(), wire.InviteOptions{})
		if err != nil {
			t.Fatal(err)
		}
		ticket, err := identity.ParseTicket(inv.Ticket)
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			<-begin
			r := a.Pairing.Join(t.Context(), keys.Peer(), &proto.JoinRequest{
				TicketId: ticket.ID[:], Proof: identity.JoinProof(ticket.Secret, keys.Peer(), ticket.Inviter),
				Name: "laptop", KeyRecord: keys.KeyRecord(),
			})
			if r.GetRefusal() == "" {
				mu.Lock()
				admitted++
				mu.Unlock()
			}
		})
	}
	close(begin)
	wg.Wait()
	if admitted != 1 {
		t.Errorf("%d nodes were admitted as laptop, want 1", admitted)
	}
}

// A ticket is valid until its node is admitted: a node whose keys are refused, or
// whose admission cannot be written, can show it again; then it is used up.
func TestOnlyAdmissionUsesUpTicket(t *testing.T) {
	a, _ := pair(t, nil)
	keys, err := identity.CreateKeys(t.TempDir()+"/id", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	inv, err := a.Pairing.Invite(t.Context(), wire.InviteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ticket, err := identity.ParseTicket(inv.Ticket)
	if err != nil {
		t.Fatal(err)
	}
	show := func(ctx context.Context, key *proto.Signed) string {
		return a.Pairing.Join(ctx, keys.Peer(), &proto.JoinRequest{
			TicketId: ticket.ID[:], Proof: identity.JoinProof(ticket.Secret, keys.Peer(), ticket.Inviter),
			Name: "laptop", KeyRecord: key,
		}).GetRefusal()
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	tries := []struct {
		name string
		ctx  context.Context
		key  *proto.Signed
		want string // in the refusal
	}{
		{"keys of another node", t.Context(), a.keys.KeyRecord(), "introduction"},
		{"no keys", t.Context(), nil, "introduction"},
		{"not written", gone, keys.KeyRecord(), "canceled"},
		{"admitted", t.Context(), keys.KeyRecord(), ""},
		{"again", t.Context(), keys.KeyRecord(), "not valid"},
	}
	for _, try := range tries {
		got := show(try.ctx, try.key)
		if (got == "") != (try.want == "") || !strings.Contains(got, try.want) {
			t.Errorf("%s: refused with %q, want %q", try.name, got, try.want)
		}
	}
	if p, err := a.book.Find("laptop"); err != nil || p.Peer != keys.Peer() {
		t.Errorf("laptop is %v, %v", p.Peer, err)
	}
}

// A rule that names a peer does not apply if two peers claim that name.
func TestAmbiguousNameGrantsNothing(t *testing.T) {
	a, b := pair(t, nil)
	s := allow("sum", wire.TypeSHA256)
	s.Allow = []string{"peer:b"}
	if err := a.Handlers.Add(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	b.waitEnd(t, b.submit(t, wire.Request{Target: "a", Kind: "sum"}), "SUCCESS")
	keys, err := identity.CreateKeys(t.TempDir()+"/id", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	cert, err := rootIn(t, a.cfg.Dir).IssueMember(identity.Member{Peer: keys.Peer(), Name: "b"}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if err := a.book.Learn(t.Context(), &proto.KnownPeer{Certificate: cert, KeyRecord: keys.KeyRecord()}); err != nil {
		t.Fatal(err)
	}
	for _, p := range []proto.PeerID{b.keys.Peer(), keys.Peer()} {
		if name, _, ok := (inboxMembers{a.book}).Member(p); !ok || name == "b" {
			t.Errorf("with two of the name: %q, %v", name, ok)
		}
	}
	b.waitEnd(t, b.submit(t, wire.Request{Target: "a", Kind: "sum"}), "DEAD_LETTER")
}

// What runs left behind when the process died is removed at the next start.
func TestRunFoldersAreSwept(t *testing.T) {
	_, b := pair(t, nil)
	b.halt()
	left := filepath.Join(b.cfg.Dir, datadir.Run, "0198c0de-x", "body")
	if err := errors.Join(os.MkdirAll(filepath.Dir(left), 0o700), os.WriteFile(left, []byte("secret"), 0o600)); err != nil {
		t.Fatal(err)
	}
	start(t, b.cfg)
	if _, err := os.Stat(left); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a run of an earlier start left %s: %v", left, err)
	}
}

// A ticket for a name that is taken states whom it admits.
func TestInviteWarnsOfTakenName(t *testing.T) {
	t.Parallel()
	a, _ := pair(t, nil)
	for name, warned := range map[string]bool{"": false, "new": false, "b": true} {
		inv, err := a.Pairing.Invite(t.Context(), wire.InviteOptions{Name: name})
		if err != nil || (len(inv.Warnings) > 0) != warned {
			t.Errorf("%q: it warns %+v, %v", name, inv.Warnings, err)
		}
	}
	for role, warned := range map[string]bool{"work": false, "admin": false, "wrk": true} {
		inv, err := a.Pairing.Invite(t.Context(), wire.InviteOptions{Roles: []string{role}})
		if err != nil || warned != (len(inv.Warnings) == 1 && inv.Warnings[0].Code == wire.NoteRoleUnused && inv.Warnings[0].Detail == role) {
			t.Errorf("role %s: it warns %+v, %v", role, inv.Warnings, err)
		}
	}
	if _, err := a.Pairing.Invite(t.Context(), wire.InviteOptions{Name: "a"}); !errors.Is(err, wire.ErrInvalid) {
		t.Errorf("its own name: %v", err)
	}
}

// A handler that allows a peer that is not a member is kept, because the peer may
// join, and reported.
func TestHandlerForUnknownPeerWarns(t *testing.T) {
	a, _ := pair(t, nil)
	for allow, want := range map[string][]wire.Note{
		"b": nil, "peer:b": nil, "peer:a": nil, "role:work": nil, "role:admin": nil,
		"laptpo": {{Code: wire.NoteMemberAbsent, NoteArgs: wire.NoteArgs{Peer: "laptpo"}}}, "role:wrk": {{Code: wire.NoteRoleUnused, NoteArgs: wire.NoteArgs{Detail: "wrk"}}},
	} {
		if err := a.Handlers.Add(t.Context(), wire.HandlerSpec{Kind: "k", Type: wire.TypeEcho, Allow: []string{allow}}); err != nil {
			t.Errorf("%s: %v", allow, err)
		}
		if h := a.Handlers.List(); len(h) != 1 || !reflect.DeepEqual(h[0].Warnings, want) {
			t.Errorf("%s: %+v, want the warnings %+v", allow, h, want)
		}
		if !strings.Contains(allow, ":") {
			allow = "peer:" + allow
		}
		if b, err := a.Mail.SetMailbox(t.Context(), "desk", wire.MailboxSettings{BoxSettings: wire.BoxSettings{Allow: &[]string{allow}}}); err != nil || !reflect.DeepEqual(b.Warnings, want) {
			t.Errorf("a mailbox for %s: %+v, %v, want the warnings %+v", allow, b.Warnings, err, want)
		}
	}
}

// A handler that passes the arguments of its senders to a program that executes them is kept
// and reported. That does not hide what is reported of its peers.
func TestHandlerThatRunsItsArgumentsWarns(t *testing.T) {
	a := startAlone(t)
	risk := func(code wire.NoteCode, program string) wire.Note {
		return wire.Note{Code: code, NoteArgs: wire.NoteArgs{Detail: program}}
	}
	for _, tt := range []struct {
		name  string
		spec  wire.HandlerSpec
		allow string
		want  []wire.Note
	}{
		{"an interpreter", wire.HandlerSpec{Exec: []string{"/bin/sh"}, Args: true}, "a", []wire.Note{risk(wire.NoteRunsCode, "sh")}},
		{"a launcher", wire.HandlerSpec{Exec: []string{"env"}, Args: true}, "a", []wire.Note{risk(wire.NoteRunsPrograms, "env")}},
		{"risky flags", wire.HandlerSpec{Exec: []string{"find", "/srv"}, Args: true, AllowFlags: true}, "a", []wire.Note{risk(wire.NoteRiskyFlags, "find")}},
		{"an interpreter, for a peer that is not a member", wire.HandlerSpec{Exec: []string{"/bin/sh"}, Args: true}, "laptpo", []wire.Note{risk(wire.NoteRunsCode, "sh"), {Code: wire.NoteMemberAbsent, NoteArgs: wire.NoteArgs{Peer: "laptpo"}}}},
		{"an interpreter that gets no arguments", wire.HandlerSpec{Exec: []string{"/bin/sh"}}, "a", nil},
		{"an interpreter with its script", wire.HandlerSpec{Exec: []string{"/bin/sh", "/srv/script"}, Args: true}, "a", nil},
		{"no flags", wire.HandlerSpec{Exec: []string{"find", "/srv"}, Args: true}, "a", nil},
	} {
		tt.spec.Kind, tt.spec.Allow = "k", []string{tt.allow}
		if err := a.Handlers.Add(t.Context(), tt.spec); err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
		if h := a.Handlers.List(); len(h) != 1 || !reflect.DeepEqual(h[0].Warnings, tt.want) {
			t.Errorf("%s: %+v, want the warnings %+v", tt.name, h, tt.want)
		}
	}
}

// A handler whose program is missing is kept, because the program may be installed,
// and reported.
func TestHandlerWithoutProgramWarns(t *testing.T) {
	a, _ := pair(t, nil)
	program := filepath.Join(t.TempDir(), "tool")
	if err := a.Handlers.Add(t.Context(), wire.HandlerSpec{Kind: "late", Allow: []string{"peer:b"}, Exec: []string{program}}); err != nil {
		t.Fatal(err)
	}
	reported := func() (problem *wire.Note, warning string) {
		for _, h := range a.Handlers.List() {
			if h.Kind == "late" {
				problem = h.Problem
			}
		}
		for _, w := range a.Views.Status(t.Context()).Warnings {
			if w.Code == wire.NoteHandlerProblem && w.Kind == "late" {
				warning = w.Cause + ": " + w.Detail
			}
		}
		return problem, warning
	}
	if problem, warning := reported(); problem == nil || problem.Code != wire.ProblemProgram || !strings.Contains(problem.Detail, program) || warning != "no_program: "+problem.Detail {
		t.Errorf("the problem is %+v, the warning %q", problem, warning)
	}
	if err := os.WriteFile(program, []byte("#!/bin/sh\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	if problem, warning := reported(); problem != nil || warning != "" {
		t.Errorf("with its program there: %+v, %q", problem, warning)
	}
}
