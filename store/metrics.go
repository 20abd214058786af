package store

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Counters count what a store has done since Open, so that tests can check its
// write budget.
type Counters struct {
	Groups    int64 // commits, that is fsyncs
	Batches   int64 // batches on disk
	Ops       int64 // puts and deletes on disk
	Bytes     int64 // keys and values of them, with their overhead
	Reads     int64 // reads of the engine for requirements
	Conflicts int64 // batches not written: a requirement did not hold
	Refused   int64 // batches not written: too large, full, bad key, damaged
	Swept     int64 // expired records deleted
}

// A meter counts.
type meter struct {
	groups, batches, ops, bytes  atomic.Int64
	reads, conflicts, refusals   atomic.Int64
	swept                        atomic.Int64
	expiring                     atomic.Int64 // batches on disk that put a record with an expiry
	compactions, compactFailures atomic.Int64
	duration                     prometheus.Histogram
}

func newMeter() *meter {
	return &meter{duration: prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "balefire_store_commit_duration_seconds",
		Help:    "Time of one group commit, with its fsync.",
		Buckets: prometheus.ExponentialBuckets(0.0001, 2, 16),
	})}
}

func (m *meter) committed(ops, size int, took time.Duration) {
	m.groups.Add(1)
	m.ops.Add(int64(ops))
	m.bytes.Add(int64(size))
	m.duration.Observe(took.Seconds())
}

// refused counts a batch that was answered with err.
func (m *meter) refused(err error) {
	if errors.Is(err, ErrConflict) {
		m.conflicts.Add(1)
	} else {
		m.refusals.Add(1)
	}
}

func (m *meter) counters() Counters {
	return Counters{
		Groups: m.groups.Load(), Batches: m.batches.Load(), Ops: m.ops.Load(), Bytes: m.bytes.Load(),
		Reads: m.reads.Load(), Conflicts: m.conflicts.Load(), Refused: m.refusals.Load(), Swept: m.swept.Load(),
	}
}

// A collector exports the metrics of a store.
type collector struct{ s *Store }

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("balefire_store_"+name, help, labels, nil)
}

var (
	descCommits = desc("commits_total", "Group commits, one fsync each.")
	descBatches = desc("batches_total", "Batches by how they ended.", "result")
	descOps     = desc("operations_total", "Puts and deletes on disk.")
	descBytes   = desc("written_bytes_total", "Keys and values committed, with their overhead.")
	descReads   = desc("requirement_reads_total", "Reads of the engine for requirements of batches.")
	descSwept   = desc("swept_total", "Expired records deleted.")
	descCompact = desc("compactions_total", "Compactions by how they ended.", "result")
	descQueued  = desc("queued", "Callers that wait for the committer.")
	descDisk    = desc("disk_bytes", "Size of the files.")
	descLive    = desc("live_bytes", "Size of the keys and values alive, an estimate.")
	descFull    = desc("full", "1 while new work is refused: the disk is below its reserve, or memory is short.")
	descFailed  = desc("failed", "1 after a commit error: the store must be opened again.")
	allDescs    = []*prometheus.Desc{descCommits, descBatches, descOps, descBytes, descReads, descSwept, descCompact, descQueued, descDisk, descLive, descFull, descFailed}
)

// Describe implements [prometheus.Collector].
func (c collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range allDescs {
		ch <- d
	}
	c.s.meter.duration.Describe(ch)
}

// Collect implements [prometheus.Collector].
func (c collector) Collect(ch chan<- prometheus.Metric) {
	m, stats := c.s.meter, c.s.Stats()
	counter := func(d *prometheus.Desc, v int64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	gauge := func(d *prometheus.Desc, v int64) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v))
	}
	n := m.counters()
	counter(descCommits, n.Groups)
	counter(descBatches, n.Batches, "ok")
	counter(descBatches, n.Conflicts, "conflict")
	counter(descBatches, n.Refused, "refused")
	counter(descOps, n.Ops)
	counter(descBytes, n.Bytes)
	counter(descReads, n.Reads)
	counter(descSwept, n.Swept)
	counter(descCompact, m.compactions.Load(), "ok")
	counter(descCompact, m.compactFailures.Load(), "error")
	gauge(descQueued, int64(c.s.queue.size()))
	gauge(descDisk, stats.DiskBytes)
	gauge(descLive, stats.LiveBytes)
	gauge(descFull, oneIf(c.s.Full()))
	gauge(descFailed, oneIf(c.s.Err() != nil))
	m.duration.Collect(ch)
}

func oneIf(b bool) int64 {
	if b {
		return 1
	}
	return 0
}
