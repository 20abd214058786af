package mailbox

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/balefire/balefire/wire"
)

func TestForgottenPrefixIsNamed(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		_, errs := f.Send(t.Context(), []wire.Mail{{To: "desk@beta"}})
		if !errors.Is(errs[0], wire.ErrInvalid) || !strings.Contains(errs[0].Error(), "agent: before its name") {
			t.Errorf("%v", errs[0])
		}
	})
}

func TestNamesOfTheMesh(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		named := wire.MailboxSettings{Named: true}
		v, err := f.SetMailbox(t.Context(), "desk", named)
		if err != nil || v.Name != "agent:desk" || f.names.homes["agent:desk"] != f.self {
			t.Fatalf("%+v, %v, homes %v", v, err, f.names.homes)
		}
		if sent, errs := f.Send(t.Context(), []wire.Mail{{To: "agent:desk", Body: []byte("x")}}); errs[0] != nil || sent[0].Box != "agent:desk" || sent[0].State != "WAITING" {
			t.Errorf("%+v, %v", sent, errs)
		}
		if got, err := f.Lease(t.Context(), "desk", "", wire.LeaseMail{}); err != nil || len(got) != 1 {
			t.Errorf("%+v, %v", got, err)
		}
		if _, err := f.SetMailbox(t.Context(), "desk@beta", named); !errors.Is(err, wire.ErrInvalid) {
			t.Errorf("a name of the mesh with a node: %v", err)
		}
		if _, err := f.SetMailbox(t.Context(), "own", wire.MailboxSettings{}); err != nil {
			t.Fatal(err)
		}
		if _, err := f.SetMailbox(t.Context(), "own", named); !errors.Is(err, wire.ErrRefused) {
			t.Errorf("the name of a mailbox of this node: %v", err)
		}
		if _, err := f.SetMailbox(t.Context(), "office", named); err != nil {
			t.Fatal(err)
		}
		if _, err := f.SetMailbox(t.Context(), "office@alpha", wire.MailboxSettings{}); err != nil {
			t.Fatal(err)
		}
		var listed []string
		all, err := f.List(t.Context(), "")
		for _, v := range all {
			listed = append(listed, v.Name)
		}
		if want := []string{"agent:desk", "agent:office", "agent:office@alpha", "agent:own@alpha"}; err != nil || !slices.Equal(listed, want) {
			t.Errorf("%q, %v", listed, err)
		}
		delete(f.names.homes, "agent:office")
		if err := f.Remove(t.Context(), "desk"); err != nil || len(f.names.homes) != 0 {
			t.Errorf("%v, homes %v", err, f.names.homes)
		}

		// Names whose home is another node.
		f.names.move("agent:far", f.beta)
		f.names.move("topic:orders", f.beta)
		sent, errs := f.Send(t.Context(), []wire.Mail{{To: "agent:far"}, {To: "topic:orders", Subject: "eu.created"}, {To: "topic:nobody"}})
		if errs[0] != nil || errs[1] != nil || sent[0].State != "PENDING" || sent[1].State != "PENDING" || !errors.Is(errs[2], wire.ErrNotFound) {
			t.Errorf("%+v, %v", sent, errs)
		}
		for what, do := range map[string]func() error{
			"set":     func() error { _, err := f.SetMailbox(t.Context(), "far", wire.MailboxSettings{}); return err },
			"topic":   func() error { _, err := f.SetTopic(t.Context(), "orders", wire.BoxSettings{}); return err },
			"remove":  func() error { return f.Remove(t.Context(), "topic:orders") },
			"another": func() error { _, err := f.SetMailbox(t.Context(), "far", named); return err },
		} {
			if err := do(); !errors.Is(err, wire.ErrRefused) || !strings.Contains(err.Error(), "on another node, beta") {
				t.Errorf("%s of a name of another node: %v", what, err)
			}
		}
	})
}

// A box of the mesh whose name could not be given up when it was removed is removed by the
// same command again.
func TestRemoveAfterItsNameWasKept(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		if _, err := f.SetMailbox(t.Context(), "desk", wire.MailboxSettings{Named: true}); err != nil {
			t.Fatal(err)
		}
		f.names.fail = errors.New("the store is full")
		if err := f.Remove(t.Context(), "desk"); !errors.Is(err, f.names.fail) {
			t.Errorf("without space: %v", err)
		}
		f.names.fail = nil
		if err := f.Remove(t.Context(), "desk"); err != nil || len(f.names.homes) != 0 {
			t.Errorf("again: %v, homes %v", err, f.names.homes)
		}
		if err := f.Remove(t.Context(), "desk"); !errors.Is(err, wire.ErrNotFound) {
			t.Errorf("a third time: %v", err)
		}
	})
}
