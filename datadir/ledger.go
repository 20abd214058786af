package datadir

import (
	"os"
	"path/filepath"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/balefire/balefire/disk"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/ledger"
)

// ownLedger is the ledger of the boxes of this node alone, in [Ledger].
const ownLedger = "own"

// simulatedSegment is the size of a segment of a node whose store is in memory.
const simulatedSegment = 2 << 20

// HasLedger reports whether the node has a ledger of its mail.
func (d *Dir) HasLedger() bool {
	_, err := os.Stat(filepath.Join(d.path, Ledger, ownLedger))
	return err == nil
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
	cfg := ledger.Config{Clock: d.cfg.Clock, Logger: d.cfg.Logger, Reserve: d.cfg.Reserve, Space: store.DiskSpace(d.path)}
	if d.cfg.Simulated != nil {
		cfg.Segment, cfg.Space = simulatedSegment, nil
	}
	l, err := ledger.Open(filepath.Join(dir, ownLedger), cfg)
	if err != nil {
		return nil, err
	}
	d.ledger = l
	if r := d.cfg.Registerer; r != nil {
		r.MustRegister(ledgerMetrics{l})
	}
	return l, nil
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
