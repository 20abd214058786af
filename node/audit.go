package node

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/balefire/balefire/store/journal"
	"github.com/balefire/balefire/wire"
)

// An AuditReport is the outcome of a check of the audit log's hash chain.
type AuditReport struct {
	Sound    bool          `json:"sound"`
	Files    int           `json:"files"`
	Lines    uint64        `json:"lines"`
	Bytes    int64         `json:"bytes"`
	Head     string        `json:"head,omitempty"` // the newest line, SEQ:HASH: keep it elsewhere, see VerifyAudit
	Torn     int64         `json:"torn_bytes,omitempty"`
	Breaches []AuditBreach `json:"breaches,omitempty"` // at most 100, in order
}

// An AuditBreach is a place where the audit log differs from what was written.
type AuditBreach struct {
	File   string `json:"file"`
	Line   int    `json:"line,omitempty"` // from 1; 0: the file itself
	Reason string `json:"reason"`
}

// VerifyAudit follows the hash chain through the audit log of the node in dir, which
// may be running: it changes nothing (I19). Each of known is a head that somebody
// kept, as AuditReport.Head shows it; it must be in the chain too, unless it is older
// than what is kept. A broken audit log is reported, not returned as an error.
func VerifyAudit(dir string, known ...string) (AuditReport, error) {
	heads := make([]journal.Head, len(known))
	for i, k := range known {
		var err error
		if heads[i], err = parseHead(k); err != nil {
			return AuditReport{}, err
		}
	}
	path, err := auditOf(dir)
	if err != nil {
		return AuditReport{}, err
	}
	r, err := journal.Verify(path, heads...)
	if err != nil && !errors.Is(err, journal.ErrBroken) {
		return AuditReport{}, err
	}
	out := AuditReport{Sound: err == nil, Files: r.Files, Lines: r.Lines, Bytes: r.Bytes, Torn: r.Torn}
	if r.Last.Seq > 0 {
		out.Head = fmt.Sprintf("%d:%s", r.Last.Seq, r.Last.Hash)
	}
	for _, b := range r.Breaches {
		out.Breaches = append(out.Breaches, AuditBreach{File: filepath.Join(path, b.File), Line: b.Line, Reason: b.Reason})
	}
	return out, nil
}

// parseHead reads SEQ:HASH.
func parseHead(s string) (journal.Head, error) {
	var h journal.Head
	seq, hash, _ := strings.Cut(s, ":")
	n, err := strconv.ParseUint(seq, 10, 64)
	if err == nil {
		err = h.Hash.UnmarshalText([]byte(hash))
	}
	if err != nil || n == 0 {
		return h, fmt.Errorf("%w: head %.90q: use SEQ:HASH, as audit verify shows it", wire.ErrInvalid, s)
	}
	h.Seq = n
	return h, nil
}

// auditOf returns the folder of the audit log of the node in dir.
func auditOf(dir string) (string, error) {
	path := filepath.Join(dir, auditDir)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("%w: %s has no audit log: is it a node's folder, and did the node ever run?", wire.ErrNotFound, dir)
	}
	return path, nil
}

// An AuditQuery selects lines of the audit log. A zero field matches all.
type AuditQuery struct {
	Since  time.Time
	Task   string // id
	Action string // such as command.start, or the part before the dot
	Limit  int    // of the newest lines; 0: all
}

// An AuditLine is one line of the audit log.
type AuditLine = journal.Record

// ReadAudit returns the lines that q selects, oldest first. Lines that cannot be read
// are skipped; that is reported as an error after all others were returned.
func ReadAudit(dir string, q AuditQuery) ([]AuditLine, error) {
	path, err := auditOf(dir)
	if err != nil {
		return nil, err
	}
	out := []AuditLine{}
	err = journal.Scan(path, func(r journal.Record) error {
		area, _, _ := strings.Cut(r.Action, ".")
		switch {
		case r.Time.Before(q.Since),
			q.Task != "" && r.Task != q.Task,
			q.Action != "" && q.Action != r.Action && q.Action != area:
			return nil
		}
		if out = append(out, r); q.Limit > 0 && len(out) > q.Limit {
			out = out[1:]
		}
		return nil
	})
	return out, err
}
