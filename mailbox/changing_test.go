package mailbox

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/balefire/balefire/mail"
	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// Nothing is removed between the reading of settings and their change: the change would bring it
// back as it was.
func TestNothingIsRemovedDuringAChange(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		var removals atomic.Int32
		f.hook(func(rec []byte) error {
			typ, _ := box.TypeOf(rec)
			if typ == box.TypeBox && len(rec) == len(box.EncodeRemoveBox(1)) || typ == box.TypeSub && len(rec) == len(box.EncodeRemoveSub(1, 1)) {
				if removals.Add(1); f.rules.changing.TryLock() {
					f.rules.changing.Unlock()
					t.Errorf("settings may change while %v is removed", typ)
				}
			}
			return nil
		})
		f.mailbox("raw", nil)
		f.topic("orders", "shop")
		f.must(f.Remove(t.Context(), "raw"))
		f.must(f.RemoveSubscription(t.Context(), "orders", "shop"))
		if n := removals.Load(); n != 2 {
			t.Errorf("%d removals", n)
		}
	})
}

// A change of a mailbox of the mesh that is removed meanwhile does not bring it back.
func TestChangeOfANameThatIsRemoved(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		named := wire.MailboxSettings{Named: true, BoxSettings: wire.BoxSettings{Allow: &[]string{"*"}}}
		_, err := f.SetMailbox(t.Context(), "desk", named)
		f.must(err)
		f.names.titled = func() { f.must(f.Remove(t.Context(), "agent:desk")) }
		_, err = f.SetMailbox(t.Context(), "desk", named)
		f.refused(err, wire.ErrNotFound, "")
		if f.ledger.broker().Has("agent:desk") {
			t.Error("it is back")
		}
	})
}

// An allow list counts as soon as it is on disk, also if its caller has left meanwhile.
func TestAllowListOfACallerThatLeft(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		var leaves atomic.Bool
		f.hook(func(rec []byte) error {
			if typ, _ := box.TypeOf(rec); typ == box.TypeBox && leaves.Load() {
				leave()
			}
			return nil
		})
		f.mailbox("raw", func(s *wire.MailboxSettings) { s.Allow = &[]string{"*"} })
		leaves.Store(true)
		if _, err := f.SetMailbox(ctx, "raw", wire.MailboxSettings{BoxSettings: wire.BoxSettings{Allow: &[]string{}}}); err == nil && ctx.Err() == nil {
			t.Error("nobody left")
		}
		for _, typ := range []string{"", mail.TypeBounce} {
			if code := f.arriveFrom(f.beta, "agent:raw@"+f.self.String(), typ, 4); (code == proto.CodeOK) != (typ == mail.TypeBounce) {
				t.Errorf("a mail of type %q: %s", typ, code.Name())
			}
		}
	})
}
