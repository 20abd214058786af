package node

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"github.com/balefire/balefire/datadir"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// leased leases all mails of a mailbox and returns their bodies, with the leases.
func (l *testNode) leased(t *testing.T, name string) (bodies, leases []string) {
	t.Helper()
	got, err := l.Mail.Lease(t.Context(), name, "", wire.LeaseMail{Max: 100})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range got {
		bodies, leases = append(bodies, string(m.Mail.Body)), append(leases, m.Lease)
	}
	return bodies, leases
}

func (l *testNode) mail(t *testing.T, bodies ...string) error {
	t.Helper()
	for _, body := range bodies {
		if _, errs := l.Mail.Send(t.Context(), []wire.Mail{{To: "agent:ceo", Body: []byte(body)}}); errs[0] != nil {
			return errs[0]
		}
	}
	return nil
}

// A node that is restored has the mail of the snapshot, whatever became of it since, and its
// start is newer than any before. Somebody may have read that mail: it says so.
func TestRestoreHasTheMail(t *testing.T) {
	t.Parallel()
	a := startAlone(t)
	if _, err := a.Mail.SetMailbox(t.Context(), "ceo", wire.MailboxSettings{}); err != nil {
		t.Fatal(err)
	}
	if err := a.mail(t, "one", "two"); err != nil {
		t.Fatal(err)
	}
	snap := filepath.Join(t.TempDir(), "snap")
	if err := a.Snapshot(t.Context(), snap, ""); err != nil {
		t.Fatal(err)
	}
	if err := a.mail(t, "three"); err != nil {
		t.Fatal(err)
	}
	bodies, leases := a.leased(t, "ceo")
	if len(bodies) != 3 {
		t.Fatalf("%q", bodies)
	}
	if _, err := a.Mail.Settle(t.Context(), "ceo", "", wire.SettleMail{Ack: leases}); err != nil {
		t.Fatal(err)
	}
	if b := a.Views.StoreStats().LedgerBytes; b == 0 {
		t.Error("the ledger has no size")
	}
	boot := a.outbox.Boot()
	a.halt()
	if r, err := datadir.Check(a.cfg.Dir); err != nil || r.MailRecords < 5 {
		t.Errorf("%+v, %v", r, err)
	}
	r, err := RestoreStore(a.cfg, snap, "")
	if err != nil || r.Mail < 3 {
		t.Fatalf("%+v, %v", r, err)
	}
	n := start(t, a.cfg)
	if n.outbox.Boot() <= boot {
		t.Errorf("start %d, before %d", n.outbox.Boot(), boot)
	}
	if err := n.mail(t, "new"); err != nil {
		t.Fatal(err)
	}
	all, _, err := n.Mail.Mails(t.Context(), "ceo", "", wire.MailQuery{})
	if err != nil {
		t.Fatal(err)
	}
	told := func(b wire.Blocker, _ proto.PeerID, err error) bool {
		if err != nil {
			t.Error(err)
		}
		return slices.ContainsFunc(b.Steps, func(n wire.Note) bool { return n.Code == wire.StepBoxRestored })
	}
	if !told(n.Mail.WhyBox(t.Context(), "agent:ceo")) || !told(n.Mail.WhyMail(t.Context(), all[0].ID)) || told(n.Mail.WhyMail(t.Context(), all[2].ID)) {
		t.Error("why does not tell which mail may have been read before")
	}
	given, err := n.Mail.Lease(t.Context(), "ceo", "", wire.LeaseMail{Max: 100})
	if err != nil {
		t.Fatal(err)
	}
	got := ""
	for i, d := range given {
		got += fmt.Sprintf("%s %t %t, ", d.Mail.Body, d.Redelivered, all[i].Restored)
	}
	if want := "one true true, two true true, new false false, "; got != want {
		t.Errorf("the mailbox has %q, want %q", got, want)
	}
}

// I13: below the reserve mail is refused like any new work, with the same event and the same
// warning; reading goes on.
func TestMailBelowTheReserve(t *testing.T) {
	t.Parallel()
	a := startAlone(t)
	if _, err := a.Mail.SetMailbox(t.Context(), "ceo", wire.MailboxSettings{}); err != nil {
		t.Fatal(err)
	}
	if err := a.mail(t, "one"); err != nil {
		t.Fatal(err)
	}
	a.halt()
	cfg := a.cfg
	cfg.Store.Reserve = 1 << 60
	n := start(t, cfg)
	if err := n.mail(t, "two"); !errors.Is(err, wire.ErrFull) {
		t.Errorf("send: %v", err)
	}
	bodies, leases := n.leased(t, "ceo")
	if !slices.Equal(bodies, []string{"one"}) {
		t.Fatalf("%q", bodies)
	}
	if r, err := n.Mail.Settle(t.Context(), "ceo", "", wire.SettleMail{Ack: leases}); err != nil || r[0].Code != "OK" {
		t.Errorf("%+v, %v", r, err)
	}
	eventually(t, func() bool {
		p := n.Events.Read(t.Context(), 0, 100, 0)
		return slices.ContainsFunc(p.Items, func(e wire.NodeEvent) bool { return e.Kind == wire.EventStoreFull })
	}, func() string { return fmt.Sprintf("no %s event", wire.EventStoreFull) })
	s := n.Views.Status(t.Context())
	if !slices.ContainsFunc(s.Warnings, func(w wire.Note) bool { return w.Code == wire.NoteDiskFull }) {
		t.Errorf("warnings %+v", s.Warnings)
	}
}
