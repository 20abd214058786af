package mailbox

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/wire"
)

// boxMetrics exports what the boxes have and what became of their mail.
type boxMetrics struct{ boxes *Boxes }

var (
	descBoxed    = prometheus.NewDesc("balefire_mail_boxed", "Mails in a box: waiting, leased to a reader, retrying later, or dead. Of a topic, those of all its subscriptions together.", []string{"box", "state"}, nil)
	descBytes    = prometheus.NewDesc("balefire_mail_bytes", "Bytes of the letters that wait in a box.", []string{"box"}, nil)
	descAccepted = prometheus.NewDesc("balefire_mail_accepted_total", "Mails that a box has accepted since it was made, by class.", []string{"box", "class"}, nil)
	descEnded    = prometheus.NewDesc("balefire_mail_ended_total", "Mails of a box that have ended since it was made, by their last state.", []string{"box", "state"}, nil)
	descArchived = prometheus.NewDesc("balefire_mail_archived_total", "Dead letters of mail that were archived since the start, because they were too many or too old.", nil, nil)
	descNeeded   = prometheus.NewDesc("balefire_ledger_needed_bytes", "Bytes of the records of the ledger that were needed at the last checkpoint, or at the start: of mail that waits, is kept, or is dead.", nil, nil)
	descMoved    = prometheus.NewDesc("balefire_ledger_moved_bytes_total", "Bytes that were written since the start to move mail out of segments of which little was needed.", nil, nil)
	descParts    = prometheus.NewDesc("balefire_mail_parts_refused_total", "Parts of boxes that were to be handed over to this node, and that no home sends, since the start.", nil, nil)
	descOldest   = prometheus.NewDesc("balefire_mail_oldest_seconds", "Age of the oldest mail in a box; 0: it is empty.", []string{"box"}, nil)
)

// Describe implements [prometheus.Collector].
func (m boxMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descBoxed, descBytes, descAccepted, descEnded, descOldest, descArchived, descNeeded, descMoved, descParts} {
		ch <- d
	}
}

// collectTime bounds how long a collection, or a status, waits for the broker.
const collectTime = time.Second

// Collect reads the counts of the boxes.
func (m boxMetrics) Collect(ch chan<- prometheus.Metric) {
	ch <- prometheus.MustNewConstMetric(descArchived, prometheus.CounterValue, float64(m.boxes.archiver.count.Load()))
	ch <- prometheus.MustNewConstMetric(descParts, prometheus.CounterValue, float64(m.boxes.copies.refused.Load()))
	if k := m.boxes.ledger.broker(); k != nil {
		needed, moved := k.Space()
		ch <- prometheus.MustNewConstMetric(descNeeded, prometheus.GaugeValue, float64(needed))
		ch <- prometheus.MustNewConstMetric(descMoved, prometheus.CounterValue, float64(moved))
	}
	ctx, cancel := context.WithTimeout(context.Background(), collectTime)
	defer cancel()
	all, err := m.boxes.views.list(ctx, "")
	if err != nil {
		return // the node stops
	}
	now := m.boxes.cfg.Clock.Now()
	for _, v := range all {
		if !wire.IsReplyBox(v.Name) { // one for each request
			m.collect(ch, now, &v)
		}
	}
}

func (m boxMetrics) collect(ch chan<- prometheus.Metric, now time.Time, v *wire.Box) {
	gauge := func(d *prometheus.Desc, n float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, n, labels...)
	}
	count := func(d *prometheus.Desc, n uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	}
	var leased, retrying, dead int
	for _, s := range v.Subscriptions {
		leased, retrying, dead = leased+s.Leased, retrying+s.Retrying, dead+s.Dead
	}
	waiting := v.Waiting
	if v.Kind == wire.BoxMailbox {
		waiting -= leased + retrying
	}
	gauge(descBoxed, float64(waiting), v.Name, "waiting")
	gauge(descBoxed, float64(leased), v.Name, "leased")
	gauge(descBoxed, float64(retrying), v.Name, "retrying")
	gauge(descBoxed, float64(dead), v.Name, "dead")
	gauge(descBytes, float64(v.Bytes), v.Name)
	age := time.Duration(0)
	if v.Oldest != nil {
		age = max(now.Sub(*v.Oldest), 0)
	}
	gauge(descOldest, age.Seconds(), v.Name)
	for class, n := range v.Accepted {
		count(descAccepted, n, v.Name, class)
	}
	for state, n := range map[box.MailState]uint64{
		box.Done: v.Ended.Done, box.Dead: v.Ended.Dead, box.Expired: v.Ended.Expired, box.Cancelled: v.Ended.Cancelled, box.Dropped: v.Ended.Dropped,
	} {
		count(descEnded, n, v.Name, state.String())
	}
}
