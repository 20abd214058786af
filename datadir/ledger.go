package datadir

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/balefire/balefire/disk"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/ledger"
)

// ownLedger is the ledger of the boxes of this node alone, in [Ledger].
const ownLedger = "own"

// simulatedSegment is the size of a segment, and of what is kept in memory, if the store of the
// node is in memory.
const simulatedSegment = 2 << 20

// HasLedger reports whether the node has a ledger of its mail.
func (d *Dir) HasLedger() bool {
	_, ok := ledgerOf(d.path)
	return ok
}

// ledgerOf returns the folder of the ledger in the folder of a node, or in a snapshot; ok is
// false if there is none.
func ledgerOf(dir string) (path string, ok bool) {
	path = filepath.Join(dir, Ledger, ownLedger)
	return path, ledger.Exists(path)
}

// LedgerBytes returns the size of the ledger, 0 if there is none.
func (d *Dir) LedgerBytes() int64 {
	if l := d.ledger.Load(); l != nil {
		return l.Stats().Bytes
	}
	return 0
}

// OpenLedger opens the ledger of the node's mail, or makes it. It may be called once; Close
// closes it.
func (d *Dir) OpenLedger() (*ledger.Ledger, error) {
	dir := filepath.Join(d.path, Ledger)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if err := disk.SyncDir(d.path); err != nil {
		return nil, err
	}
	took := prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "balefire_ledger_commit_seconds", Help: "Time of one commit of the ledger, with its fsync unless all of it is relaxed.",
		Buckets: prometheus.ExponentialBuckets(0.0001, 2, 16),
	})
	cfg := ledger.Config{
		Committed: func(d time.Duration) { took.Observe(d.Seconds()) },
		Segment:   d.cfg.LedgerSegment, Ring: int(d.cfg.LedgerTail), Pace: d.cfg.LedgerPace, Clock: d.cfg.Clock, Logger: d.cfg.Logger,
		Reserve: d.cfg.Reserve, Space: store.DiskSpace(d.path), Fail: d.cfg.Fail,
	}
	if d.cfg.Simulated != nil {
		cfg.Segment, cfg.Ring, cfg.Space = simulatedSegment, simulatedSegment, nil
	}
	l, err := ledger.Open(filepath.Join(dir, ownLedger), cfg)
	if err != nil {
		return nil, err
	}
	d.ledger.Store(l)
	if r := d.cfg.Registerer; r != nil {
		r.MustRegister(ledgerMetrics{l}, took)
	}
	return l, nil
}

// ArchiveMail appends lines to the archive of dead letters, and returns the name of its file
// in the folder when they are durable. One caller at a time.
func (d *Dir) ArchiveMail(lines []byte) (file string, err error) {
	return deadMail, disk.AppendLines(filepath.Join(d.path, deadMail), lines, d.cfg.Clock.Now())
}

// ledgerMetrics exports the figures of a ledger.
type ledgerMetrics struct{ ledger *ledger.Ledger }

var (
	descLedgerBytes   = prometheus.NewDesc("balefire_ledger_bytes", "Size of the segments of the ledger, in which mail is kept.", nil, nil)
	descLedgerBatches = prometheus.NewDesc("balefire_ledger_batches_total", "Batches that were written to the ledger since the start.", nil, nil)
	descLedgerEntries = prometheus.NewDesc("balefire_ledger_entries_total", "Records that were written to the ledger since the start.", nil, nil)
	descLedgerSyncs   = prometheus.NewDesc("balefire_ledger_syncs_total", "Syncs of the ledger since the start.", nil, nil)
)

// Describe implements [prometheus.Collector].
func (m ledgerMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descLedgerBytes, descLedgerBatches, descLedgerEntries, descLedgerSyncs} {
		ch <- d
	}
}

// Collect reads the figures.
func (m ledgerMetrics) Collect(ch chan<- prometheus.Metric) {
	s := m.ledger.Stats()
	ch <- prometheus.MustNewConstMetric(descLedgerBytes, prometheus.GaugeValue, float64(s.Bytes))
	ch <- prometheus.MustNewConstMetric(descLedgerBatches, prometheus.CounterValue, float64(s.Batches))
	ch <- prometheus.MustNewConstMetric(descLedgerEntries, prometheus.CounterValue, float64(s.Entries))
	ch <- prometheus.MustNewConstMetric(descLedgerSyncs, prometheus.CounterValue, float64(s.Syncs))
}

// addLedger adds what was found in a ledger.
func (r *Report) addLedger(l ledger.Report) {
	note := func(format string, a ...any) { r.Notes = append(r.Notes, fmt.Sprintf(format, a...)) }
	r.MailRecords, r.Clean = l.Entries, r.Clean && len(l.Damage) == 0
	note("%s/%s: %d files, %d bytes, %d batches, %d records", Ledger, ownLedger, l.Segments, l.Bytes, l.Batches, l.Entries)
	if l.Torn {
		note("something after the last complete batch of the ledger: the next start sets it aside")
	}
	for _, d := range l.Damage {
		note("damaged: %s, from byte %d: %s", d.File, d.Offset, d.What)
	}
}

// checkLedger reads the ledger of a node, if there is one.
func checkLedger(dir string, r *Report) error {
	path, ok := ledgerOf(dir)
	if !ok {
		return nil
	}
	l, err := ledger.Check(path)
	if err == nil {
		r.addLedger(l)
	}
	return err
}

// salvageLedger rebuilds the ledger of the node in dir, if there is one, in the new folder
// dst.
func salvageLedger(dir, dst string, r *Report) error {
	path, ok := ledgerOf(dir)
	if !ok {
		return nil
	}
	l, err := ledger.Rebuild(path, filepath.Join(dst, Ledger, ownLedger))
	if err == nil {
		r.addLedger(l)
	}
	return err
}
