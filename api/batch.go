package api

import (
	"bytes"
	"errors"
	"net/http"

	"github.com/balefire/balefire/wire"
)

// batch accepts many tasks with as few commits as possible: a JSON array, or one task per
// line. An invalid task does not affect the others.
func (s *Server) batch(w http.ResponseWriter, r *http.Request) {
	parts, err := readBatch(w, r, "task", "key", wire.MaxBatch)
	if err != nil {
		writeProblem(w, err)
		return
	}
	out := wire.Batch{Items: make([]wire.BatchItem, len(parts))}
	reqs, at := decodeParts(parts, decodeSubmit, func(i int, err error) { out.Items[i] = failedItem(err) })
	done, errs := s.submitter.SubmitMany(r.Context(), reqs)
	for j, i := range at {
		if errs[j] != nil {
			out.Items[i] = failedItem(errs[j])
			continue
		}
		out.Items[i] = wire.BatchItem{Status: http.StatusAccepted, Task: &done[j]}
		out.Accepted++
	}
	out.Failed = len(parts) - out.Accepted
	writeJSON(w, http.StatusOK, out)
}

func failedItem(err error) wire.BatchItem {
	p := ProblemOf(err)
	return wire.BatchItem{Status: p.Status, Problem: p}
}

// decodeParts decodes the parts of a batch that can be decoded, which are those at, and
// reports the others.
func decodeParts[T any](parts [][]byte, decode func([]byte) (T, error), failed func(i int, err error)) (out []T, at []int) {
	out, at = make([]T, 0, len(parts)), make([]int, 0, len(parts))
	for i, b := range parts {
		v, err := decode(b)
		if err != nil {
			failed(i, err)
			continue
		}
		out, at = append(out, v), append(at, i)
	}
	return out, at
}

// readBatch splits a batch of tasks or mails, whose idempotency key is a field key of each,
// into the raw JSON of its parts.
func readBatch(w http.ResponseWriter, r *http.Request, what, key string, limit int) (parts [][]byte, err error) {
	if r.Header.Get("Idempotency-Key") != "" {
		return nil, problem(wire.CodeInvalid, "a batch cannot have an Idempotency-Key header: give each %s its own %s", what, key)
	}
	split := elements
	switch mediaType(r) {
	case jsonType:
	case "application/x-ndjson", "application/ndjson", "application/jsonl":
		split = splitLines
	default:
		return nil, problem(wire.CodeType, "content type %.80q: a batch must be application/json (an array) or application/x-ndjson", r.Header.Get("Content-Type"))
	}
	b, err := readBody(w, r, wire.MaxBatchBytes)
	if err != nil {
		return nil, explainTooLarge(what, err)
	}
	parts, err = split(b, limit)
	switch {
	case errors.Is(err, errTooMany):
		return nil, explainTooLarge(what, problem(wire.CodeTooLarge, "more than %d %ss in a batch", limit, what))
	case err != nil:
		return nil, malformed("read the batch: %v", err)
	case len(parts) == 0:
		return nil, problem(wire.CodeInvalid, "the batch is empty")
	}
	return parts, nil
}

// explainTooLarge adds a hint to the error of a batch that is too large.
func explainTooLarge(what string, err error) *wire.Problem {
	p := ProblemOf(err)
	if p.Code == wire.CodeTooLarge {
		p.Fix = "send several batches"
		if what == "task" {
			p.Fix += "; send a large body alone, as a stream"
		}
	}
	return p
}

// splitLines splits at line ends and drops empty lines.
func splitLines(b []byte, max int) (out [][]byte, err error) {
	for line := range bytes.Lines(b) {
		line = bytes.TrimSpace(line)
		if len(line) == 0 {
			continue
		}
		if len(out) == max {
			return nil, errTooMany
		}
		out = append(out, line)
	}
	return out, nil
}
