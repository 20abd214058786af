package mailbox

import (
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// What a box has is counted by state, as are the mails that have ended, over a restart; its bytes
// and the age of its oldest mail are those of what waits.
func TestBoxesAreMeasured(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", nil)
		f.mail("agent:ceo", "expired", func(m *wire.Mail) { m.TTL = wire.Duration(time.Second) })
		time.Sleep(2 * time.Second)
		f.mail("agent:ceo", "done", nil)
		f.ack("ceo", "", f.one("ceo", "", "done"))
		f.mail("agent:ceo", "dead", nil)
		f.kill("ceo", "", "dead")
		f.mail("agent:ceo", "purged", nil)
		_, err := f.Purge(t.Context(), "ceo", wire.PurgeMail{})
		f.must(err)
		for _, body := range []string{"leased", "retrying", "waits", "waits, too"} {
			f.mail("agent:ceo", body, nil)
		}
		d, _ := f.lease("ceo", "", 2, time.Second)
		f.settle("ceo", "", wire.SettleMail{
			Extend: []wire.ExtendMail{{Lease: d[0].Lease, For: wire.Duration(time.Hour)}},
			Defer:  []wire.DeferMail{{Lease: d[1].Lease, Delay: wire.Duration(time.Hour)}},
		})
		time.Sleep(7 * time.Second)
		size := float64(len("leased") + len("retrying") + len("waits") + len("waits, too") + 4*tracedSize)
		for name, want := range map[string]map[string]float64{
			"balefire_mail_boxed":          {"waiting": 2, "leased": 1, "retrying": 1, "dead": 1},
			"balefire_mail_ended_total":    {"DONE": 1, "DEAD": 1, "EXPIRED": 1, "CANCELLED": 1, "DROPPED": 0},
			"balefire_mail_bytes":          {"": size},
			"balefire_mail_oldest_seconds": {"": 7},
		} {
			f.measured(name, "agent:ceo@alpha", want)
		}
		f.restart()
		f.measured("balefire_mail_boxed", "agent:ceo@alpha", map[string]float64{"waiting": 3, "leased": 0, "retrying": 1, "dead": 1})
		f.measured("balefire_mail_ended_total", "agent:ceo@alpha", map[string]float64{"DONE": 1, "DEAD": 1, "EXPIRED": 1, "CANCELLED": 1, "DROPPED": 0})
	})
}

// tracedSize is the size of a letter that has nothing but a trace context.
const tracedSize = proto.LetterFixed + 3 + len("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")

// measured checks a metric of a box, by its other label.
func (f *fixture) measured(metric, box string, want map[string]float64) {
	f.t.Helper()
	got := map[string]float64{}
	for labels, n := range f.figures(metric) {
		if rest, ok := strings.CutPrefix(labels, box); ok {
			got[strings.TrimSpace(rest)] = n
		}
	}
	if !maps.Equal(got, want) {
		f.t.Errorf("%s of %s is %v, want %v", metric, box, got, want)
	}
}

// Of a topic, the mails of all subscriptions are counted together, and what is dropped is.
func TestTopicsAreMeasured(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.topic("orders", "one", "two")
		f.mail("topic:orders", "a", nil)
		f.kill("topic:orders", "one", "a")
		f.mail("topic:orders", "b", nil)
		f.mail("topic:orders", "c", nil)
		f.lease("topic:orders", "two", 2, time.Second)
		f.measured("balefire_mail_boxed", "topic:orders", map[string]float64{"waiting": 3, "leased": 2, "retrying": 0, "dead": 1})
		f.measured("balefire_mail_bytes", "topic:orders", map[string]float64{"": 3 * float64(tracedSize+1)})
		_, err := f.SetTopic(t.Context(), "orders", wire.BoxSettings{Age: ptr(wire.Duration(time.Minute))})
		f.must(err)
		time.Sleep(2 * time.Minute)
		if got := f.figures("balefire_mail_ended_total")["topic:orders DROPPED"]; got != 3 {
			t.Errorf("%v mails are dropped, want 3", got)
		}
		f.measured("balefire_mail_oldest_seconds", "topic:orders", map[string]float64{"": 0})
	})
}

// A checkpoint measures what the ledger needs, and what is moved out of segments of which little is
// needed is counted.
func TestSpaceOfTheLedgerIsMeasured(t *testing.T) {
	const size, kept = 100 << 10, 4
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", nil)
		body := strings.Repeat("x", size)
		for i := range 20 * kept { // 20 are a segment
			f.mail("agent:ceo", body, func(m *wire.Mail) {
				if i%20 > 0 {
					m.TTL = wire.Duration(time.Minute)
				}
			})
		}
		for range 4 { // checkpoints, for which there must be news
			f.mail("agent:ceo", "x", func(m *wire.Mail) { m.TTL = wire.Duration(time.Minute) })
			time.Sleep(6 * time.Minute)
		}
		const overhead = 1 << 10 // of a mail
		needed, moved := f.figures("balefire_ledger_needed_bytes")[""], f.figures("balefire_ledger_moved_bytes_total")[""]
		if needed < kept*size || needed > kept*(size+overhead) {
			t.Errorf("%v bytes are needed, want %d mails of %d bytes", needed, kept, size)
		}
		if moved < size || moved > kept*(size+overhead) {
			t.Errorf("%v bytes were moved, want up to %d mails of %d bytes", moved, kept, size)
		}
	})
}
