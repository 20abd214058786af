package mailbox

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// A lateNames is names of which one has its home here again when the next one who asks has heard that
// another node is its home.
type lateNames struct {
	Names
	once sync.Once
	back func()
	away proto.PeerID
}

func (n *lateNames) HomeOf(name string) (proto.PeerID, uint64, error) {
	home, generation, err := n.Names.HomeOf(name)
	if home == n.away {
		n.once.Do(n.back)
	}
	return home, generation, err
}

// A box whose name was seized here while the box waited to be moved to another home stays, with what
// was set of it.
func TestBoxIsNotMovedAfterItsNameWasSeized(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", func(s *wire.MailboxSettings) { s.Named, s.Paused = true, ptr(true) })
		f.mail("agent:ceo", "x", nil)
		synctest.Wait()
		f.homes.names = &lateNames{Names: f.names, away: f.beta, back: func() { f.names.move("agent:ceo", f.self) }}
		f.names.move("agent:ceo", f.beta)
		time.Sleep(time.Minute)
		if !f.ledger.broker().Has("agent:ceo") {
			t.Fatal("the box is gone from its home")
		}
		if i := f.box("agent:ceo"); !*i.Subscriptions[0].Settings.Paused || i.Waiting != 1 {
			t.Errorf("%+v", i)
		}
	})
}

// I21: of a box that was made again all goes to its new home, however much of an earlier one with its
// name went there before.
func TestBoxMadeAnewIsMovedWhole(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.stop()
		f.ledgers = fullDisk{f} // the archive has no room: a box with dead letters stays
		f.start()
		named := func(s *wire.MailboxSettings) { s.Named = true }
		f.mailbox("ceo", named)
		f.mail("agent:ceo", "dead", nil)
		f.kill("ceo", "", "dead")
		for range 5 {
			f.mail("agent:ceo", "x", nil)
		}
		f.names.move("agent:ceo", f.beta)
		time.Sleep(time.Minute)
		if n := f.waitingFor("beta"); n != 5 {
			t.Fatalf("%d mails wait for the other home", n)
		}
		f.names.move("agent:ceo", f.self)
		time.Sleep(time.Minute)
		f.must(f.Remove(t.Context(), "agent:ceo"))
		f.mailbox("ceo", named)
		f.mail("agent:ceo", "a", nil)
		f.mail("agent:ceo", "b", nil)
		f.names.move("agent:ceo", f.beta)
		time.Sleep(time.Minute)
		if n := f.waitingFor("beta"); n != 2 {
			t.Errorf("%d mails wait for the other home, want 2", n)
		}
	})
}
