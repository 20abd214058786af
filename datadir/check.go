package datadir

import (
	"fmt"
	"path/filepath"

	"github.com/balefire/balefire/store/nuts"
	"github.com/balefire/balefire/store/pebble"
)

// nutsReport turns the engine's report into a Report.
func nutsReport(r nuts.Report) Report {
	out := Report{Engine: EngineNuts, Records: r.Entries, Clean: r.Clean()}
	note := func(format string, a ...any) { out.Notes = append(out.Notes, fmt.Sprintf(format, a...)) }
	note("%s: %d files, %d bytes, %d transactions", r.Generation, r.Segments, r.Bytes, r.Transactions)
	if r.TornBytes > 0 {
		note("%d bytes after the last commit: the next start sets them aside", r.TornBytes)
	}
	if r.Orphans > 0 {
		note("%d transactions were never committed and are ignored", r.Orphans)
	}
	if r.Imported > 0 {
		note("%d entries were imported, %d transactions only in part", r.Imported, r.Partial)
	}
	for _, l := range r.Lost {
		note("lost: %s, bytes %d to %d", l.File, l.From, l.To)
	}
	return out
}

// checkPebble reads every record, those in the log too; Pebble verifies its checksums on
// the way.
func checkPebble(dir string) (Report, error) {
	db, err := pebble.Open(filepath.Join(dir, Store, EnginePebble), pebble.Config{ReadOnly: true})
	if err != nil {
		return Report{}, err
	}
	defer db.Close()
	out := Report{Engine: EnginePebble, Clean: true}
	if out.Records, err = countRecords(db); err != nil {
		return out, fmt.Errorf("check its records: %w", err)
	}
	return out, nil
}
