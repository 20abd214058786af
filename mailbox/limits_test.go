package mailbox

import (
	"fmt"
	"maps"
	"slices"
	"strings"
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
			if n, sum := f.histogram("agent:ceo@alpha", name); n != want.n || sum < want.seconds || sum > want.seconds+0.2 {
				t.Errorf("%s: %d mails in %v s, want %+v", name, n, sum, want)
			}
		}
	})
}

// What this node sends is counted by class, here and for another node, a duplicate once; and what
// is delivered again by box and cause.
func TestSentAndRetriedAreCounted(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", nil)
		for range 2 {
			f.mail("agent:ceo", "a", func(m *wire.Mail) { m.Class, m.Dedupe = "high", "once" })
		}
		f.mail("agent:desk@beta", "b", func(m *wire.Mail) { m.Class = "high" })
		_, err := f.trySend("agent:nobody", "c", nil)
		f.refused(err, wire.ErrNotFound, "there is no agent:nobody")
		nack := func(d wire.DeliveredMail) {
			f.settle("ceo", "", wire.SettleMail{Nack: []wire.NackMail{{Lease: d.Lease}}})
		}
		nack(f.one("ceo", "", "a"))
		time.Sleep(time.Minute)
		d := f.one("ceo", "", "a")
		f.settle("ceo", "", wire.SettleMail{Defer: []wire.DeferMail{{Lease: d.Lease, Delay: wire.Duration(time.Second)}}})
		time.Sleep(2 * time.Second)
		f.one("ceo", "", "a")
		time.Sleep(time.Minute) // its lease lapses
		f.mail("agent:ceo", "low", func(m *wire.Mail) { m.Class = "low" })
		nack(f.one("ceo", "", "a")) // the last attempt: a dead letter
		got := f.figures("balefire_mail_sent_total", "balefire_mail_retries_total")
		want := map[string]float64{
			"critical": 0, "high": 2, "normal": 0, "low": 1,
			"agent:ceo@alpha nacked": 1, "agent:ceo@alpha deferred": 1, "agent:ceo@alpha lapsed": 1,
		}
		if !maps.Equal(got, want) {
			t.Errorf("counted %v, want %v", got, want)
		}
		f.must(f.Remove(t.Context(), "ceo"))
		if left := f.figures("balefire_mail_retries_total"); len(left) > 0 {
			t.Errorf("of a box that is gone: %v", left)
		}
	})
}

// figures returns the values of counters and gauges by their labels.
func (f *fixture) figures(names ...string) map[string]float64 {
	f.t.Helper()
	all, err := f.registry.Gather()
	f.must(err)
	got := map[string]float64{}
	for _, m := range all {
		if !slices.Contains(names, m.GetName()) {
			continue
		}
		for _, x := range m.GetMetric() {
			var labels []string
			for _, l := range x.GetLabel() {
				labels = append(labels, l.GetValue())
			}
			got[strings.Join(labels, " ")] = x.GetCounter().GetValue() + x.GetGauge().GetValue()
		}
	}
	return got
}

// Boxes of which there are many, and those for replies, have one label; a box that is removed has
// none, and makes place for another one.
func TestBoxesWithWaitsOfTheirOwn(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		read := func(name string) {
			f.mail(name, "a", nil)
			f.ack(name, "", f.one(name, "", "a"))
		}
		counted := func(label string, handled, waited uint64) {
			t.Helper()
			h, _ := f.histogram(label, "handling")
			if w, _ := f.histogram(label, "normal"); h != handled || w != waited {
				t.Errorf("%s: %d handled, %d waited", label, h, w)
			}
		}
		time.Sleep(time.Second)
		reply, err := f.NewReplyBox(t.Context(), wire.NewReplyBox{})
		f.must(err)
		read(reply.Box)
		for i := range maxWaitBoxes {
			f.mailbox(fmt.Sprint("box-", i), nil)
			read(fmt.Sprint("agent:box-", i))
		}
		f.mailbox("late", nil)
		read("agent:late")
		counted("other", 2, 2)
		counted("agent:box-0@alpha", 1, 1)
		f.must(f.Remove(t.Context(), "box-0"))
		counted("agent:box-0@alpha", 0, 0)
		read("agent:late")
		counted("agent:late@alpha", 1, 1)
		counted("other", 2, 2)
		if n := len(f.settings.waits.boxes); n != maxWaitBoxes {
			t.Errorf("%d boxes have a label", n)
		}
	})
}

// histogram returns the count and the sum of a class of a box, or of handling.
func (f *fixture) histogram(box, name string) (n uint64, sum float64) {
	f.t.Helper()
	all, err := f.registry.Gather()
	f.must(err)
	for _, m := range all {
		for _, x := range m.GetMetric() {
			labels := map[string]string{}
			for _, l := range x.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			if labels["box"] != box {
				continue
			}
			if name == "handling" && m.GetName() == "balefire_mail_handling_seconds" || m.GetName() == "balefire_mail_wait_seconds" && labels["class"] == name {
				n, sum = x.GetHistogram().GetSampleCount(), x.GetHistogram().GetSampleSum()
			}
		}
	}
	return n, sum
}

// The mails that a box has accepted are counted by class, over restarts.
func TestAcceptedMailIsCountedByClass(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", nil)
		for _, class := range []string{"low", "critical", "low", ""} {
			f.mail("agent:ceo", "x", func(m *wire.Mail) { m.Class = class })
		}
		f.restart()
		want := map[string]float64{"agent:ceo@alpha critical": 1, "agent:ceo@alpha high": 0, "agent:ceo@alpha normal": 1, "agent:ceo@alpha low": 2}
		if got := f.figures("balefire_mail_accepted_total"); !maps.Equal(got, want) {
			t.Errorf("counted %v, want %v", got, want)
		}
	})
}
