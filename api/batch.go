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
	parts, err := readBatch(w, r)
	if err != nil {
		writeProblem(w, err)
		return
	}
	out := wire.Batch{Items: make([]wire.BatchItem, len(parts))}
	reqs, at := make([]wire.Request, 0, len(parts)), make([]int, 0, len(parts))
	for i, b := range parts {
		req, err := decodeSubmit(b)
		if err != nil {
			out.Items[i] = failedItem(err)
			continue
		}
		reqs, at = append(reqs, req), append(at, i)
	}
	done, errs := s.node.SubmitMany(r.Context(), reqs)
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

// readBatch splits a batch into the raw JSON of its tasks.
func readBatch(w http.ResponseWriter, r *http.Request) (parts [][]byte, err error) {
	if r.Header.Get("Idempotency-Key") != "" {
		return nil, problem(wire.CodeInvalid, "a batch cannot have an Idempotency-Key header: give each task its own key")
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
		return nil, explainTooLarge(err)
	}
	parts, err = split(b, wire.MaxBatch)
	switch {
	case errors.Is(err, errTooMany):
		return nil, explainTooLarge(problem(wire.CodeTooLarge, "more than %d tasks in a batch", wire.MaxBatch))
	case err != nil:
		return nil, malformed("read the batch: %v", err)
	case len(parts) == 0:
		return nil, problem(wire.CodeInvalid, "the batch is empty")
	}
	return parts, nil
}

// explainTooLarge adds a hint to the error of a batch that is too large.
func explainTooLarge(err error) *wire.Problem {
	p := ProblemOf(err)
	if p.Code == wire.CodeTooLarge {
		p.Fix = "send several batches; send a large body alone, as a stream"
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
