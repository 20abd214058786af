package mailbox

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

const (
	maxWaitBoxes = 64      // boxes whose waits have a label of their own
	otherBoxes   = "other" // the label of the others, and of the boxes for replies
)

// waits are how long mail waited, and how often it was given back, by box: those that were read
// first since the start have a label of their own, until they are removed.
type waits struct {
	until   *prometheus.HistogramVec // from the acceptance to the first delivery, by box and class
	handled *prometheus.HistogramVec // from a delivery to its acknowledgment, by box
	retries *prometheus.CounterVec   // deliveries that are repeated, by box and cause
	sent    [4]prometheus.Counter    // mails of this node, by class from critical
	text    func(name string) string // of a box, for people
	other   *boxWaits

	mu    sync.RWMutex
	boxes map[string]*boxWaits // by name in the ledger
}

// boxWaits are those of one label.
type boxWaits struct {
	label   string
	classes [4]prometheus.Observer // from critical
	handled prometheus.Observer
}

// newWaits returns the histograms of waits, registered.
func newWaits(r prometheus.Registerer, text func(name string) string) *waits {
	buckets := prometheus.ExponentialBuckets(0.001, 4, 12) // 1 ms to 70 min
	w := &waits{
		until: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "balefire_mail_wait_seconds", Help: "From the time that a box accepted a mail to its first delivery, by box and class.", Buckets: buckets,
		}, []string{"box", "class"}),
		handled: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "balefire_mail_handling_seconds", Help: "From the delivery of a mail to a reader to its acknowledgment, by box.", Buckets: buckets,
		}, []string{"box"}),
		retries: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "balefire_mail_retries_total", Help: "Deliveries that failed or were given back and that are repeated, by box and cause.",
		}, []string{"box", "cause"}),
		text: text, boxes: map[string]*boxWaits{},
	}
	w.other = w.labeled(otherBoxes)
	sent := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "balefire_mail_sent_total", Help: "Mails that this node sent: they were stored in a box of it, or for that of another node.",
	}, []string{"class"})
	for i := range w.sent {
		w.sent[i] = sent.WithLabelValues((proto.Critical + proto.Class(i)).Name())
	}
	r.MustRegister(w.until, w.handled, w.retries, sent)
	return w
}

func (w *waits) labeled(label string) *boxWaits {
	x := &boxWaits{label: label, handled: w.handled.WithLabelValues(label)}
	for i := range x.classes {
		x.classes[i] = w.until.WithLabelValues(label, (proto.Critical + proto.Class(i)).Name())
	}
	return x
}

// of returns the waits of a box.
func (w *waits) of(name string) *boxWaits {
	w.mu.RLock()
	x, full := w.boxes[name], len(w.boxes) >= maxWaitBoxes
	w.mu.RUnlock()
	switch {
	case x != nil:
		return x
	case full || wire.IsReplyBox(name):
		return w.other
	}
	label := w.text(name)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.boxes[name] == nil {
		w.boxes[name] = w.labeled(label)
	}
	return w.boxes[name]
}

// forget removes the label of a box that was removed.
func (w *waits) forget(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if x := w.boxes[name]; x != nil {
		delete(w.boxes, name)
		w.until.DeletePartialMatch(prometheus.Labels{"box": x.label})
		w.handled.DeleteLabelValues(x.label)
		w.retries.DeletePartialMatch(prometheus.Labels{"box": x.label})
	}
}

// Waited implements [mail.Observer].
func (w *waits) Waited(name string, c proto.Class, d time.Duration) {
	if x, i := w.of(name), c.Index(); i >= 0 && i < len(x.classes) {
		x.classes[i].Observe(d.Seconds())
	}
}

// Handled implements [mail.Observer].
func (w *waits) Handled(name string, d time.Duration) { w.of(name).handled.Observe(d.Seconds()) }

// Retried implements [mail.Observer].
func (w *waits) Retried(name string, why box.Cause) {
	w.retries.WithLabelValues(w.of(name).label, why.String()).Inc()
}

// Sent implements [mail.Observer].
func (w *waits) Sent(c proto.Class) { w.sent[c.Index()].Inc() }
