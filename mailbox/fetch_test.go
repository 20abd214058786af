package mailbox

import (
	"errors"
	"testing"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// TestABodyIsTakenFromAnotherNodeIfAProgramWaits offers the body of a mail of beta before, while
// and after a program waits for it.
func TestABodyIsTakenFromAnotherNodeIfAProgramWaits(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		l := letterWith(proto.LetterObject{Name: [32]byte{1}, Size: 1 << 20})
		m := proto.OfferedMail{Box: "agent:ceo@" + f.beta.String(), Seq: 7}
		wants := func(m proto.OfferedMail, from proto.PeerID, want proto.Code) {
			t.Helper()
			if code, detail := f.Wants(t.Context(), from, m, l); code != want {
				t.Errorf("%v: %s, want %v", code, detail, want)
			}
		}
		wants(m, f.beta, proto.CodeStale)
		x, end := f.fetches.begin(fetchKey{f.beta, m.Box, 7})
		y, endToo := f.fetches.begin(fetchKey{f.beta, m.Box, 7})
		wants(m, f.beta, proto.CodeNeedBody)
		wants(m, f.gamma, proto.CodeStale)
		wants(proto.OfferedMail{Box: m.Box, Seq: 8}, f.beta, proto.CodeStale)
		end()
		wants(m, f.beta, proto.CodeNeedBody)
		f.Received(f.beta, m, proto.CodeBusy, "the body is being received already")
		f.Received(f.gamma, m, proto.CodeFull, "not its business")
		select {
		case <-y.arrived:
			t.Error("it is here")
		default:
		}
		f.Received(f.beta, m, proto.CodeFull, "no space for the body")
		<-x.arrived
		if !errors.Is(x.err, wire.ErrFull) {
			t.Errorf("%v", x.err)
		}
		wants(m, f.beta, proto.CodeStale)
		endToo()
		_, end = f.fetches.begin(fetchKey{f.beta, m.Box, 7})
		defer end()
		l.Object.Size = 5 << 20
		wants(m, f.beta, proto.CodeTooLarge)
	})
}

// TestABodyOfAnUnreachableNode fails in bounded time.
func TestABodyOfAnUnreachableNode(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		began := time.Now()
		if _, _, err := f.DeliveredBody(t.Context(), "ceo@beta", "", "1.2.3"); err == nil || time.Since(began) > time.Minute {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		if len(f.fetches.all) > 0 {
			t.Error("a program waits")
		}
		_, _, err := f.DeliveredBody(t.Context(), "ceo@beta", "", "x")
		f.refused(err, wire.ErrInvalid, "lease")
	})
}
