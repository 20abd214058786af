package mailbox

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/wire"
)

// The limits of the configuration hold for all boxes, from one start to the next.
func TestLimitsOfTheConfiguration(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", nil)
		keyed := func(key string) error {
			_, err := f.trySend("agent:ceo", "x", func(m *wire.Mail) { m.Dedupe = key })
			return err
		}
		f.must(keyed("1"))
		f.must(keyed("2"))
		limit := func(l box.Limits) {
			f.limits = l
			f.restart()
			synctest.Wait() // until they are set
		}
		limit(box.Limits{Keys: 2})
		f.refused(keyed("3"), wire.ErrFull, "too many dedupe keys")
		f.must(keyed("2")) // it is known
		limit(box.Limits{Bytes: 1000})
		f.must(keyed("3"))
		_, err := f.trySend("agent:ceo", string(make([]byte, 1000)), nil)
		f.refused(err, wire.ErrFull, "the node has too much mail")
		limit(box.Limits{})
		f.mail("agent:ceo", string(make([]byte, 1000)), nil)
		last := f.log.Stats().Last
		f.restart()
		time.Sleep(time.Second)
		if now := f.log.Stats().Last; now > last+1 { // the record of the start
			t.Errorf("a start with the same limits writes %d batches", now-last)
		}
	})
}

// The waits of mail are counted: until the first delivery, and until the acknowledgment.
func TestWaitsAreMeasured(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", nil)
		f.mail("agent:ceo", "a", func(m *wire.Mail) { m.Class = "high" })
		time.Sleep(5 * time.Second)
		d := f.one("ceo", "", "a")
		time.Sleep(3 * time.Second)
		f.ack("ceo", "", d)
		f.mail("agent:ceo", "b", nil)
		d = f.one("ceo", "", "b")
		f.settle("ceo", "", wire.SettleMail{Nack: []wire.NackMail{{Lease: d.Lease}}})
		time.Sleep(time.Minute)
		f.ack("ceo", "", f.one("ceo", "", "b")) // its wait was counted
		for name, want := range map[string]struct {
			n       uint64
			seconds float64
		}{"high": {1, 5}, "normal": {1, 0}, "critical": {}, "handling": {2, 3}} {
			if n, sum := f.histogram(name); n != want.n || sum < want.seconds || sum > want.seconds+0.2 {
				t.Errorf("%s: %d mails in %v s, want %+v", name, n, sum, want)
			}
		}
	})
}

// histogram returns the count and the sum of a class, or of handling.
func (f *fixture) histogram(name string) (n uint64, sum float64) {
	f.t.Helper()
	all, err := f.registry.Gather()
	f.must(err)
	for _, m := range all {
		for _, x := range m.GetMetric() {
			is := name == "handling" && m.GetName() == "balefire_mail_handling_seconds"
			for _, l := range x.GetLabel() {
				is = is || m.GetName() == "balefire_mail_wait_seconds" && l.GetValue() == name
			}
			if is {
				n, sum = x.GetHistogram().GetSampleCount(), x.GetHistogram().GetSampleSum()
			}
		}
	}
	return n, sum
}
