package api

import (
	"bytes"
	"errors"
	"net/http"

	"github.com/balefire/balefire/wire"
)

// Limits of a batch.
const (
	MaxBatch      = 1000     // tasks
	MaxBatchBytes = 10 << 20 // of the document, in bytes
)

// A Batch is the answer to a batch of tasks, in their order.
type Batch struct {
	Accepted int         `json:"accepted" doc:"how many are on disk"`
	Failed   int         `json:"failed"`
	Items    []BatchItem `json:"items" doc:"one for each task, in the order they were given"`
}

// A BatchItem is the result of one task of a batch.
type BatchItem struct {
	Status  int             `json:"status" doc:"202, or the status of the problem"`
	Task    *wire.Submitted `json:"task,omitempty"`
	Problem *Problem        `json:"problem,omitempty"`
}

// batch accepts many tasks with as few commits as possible: a JSON array, or one task per
// line. An invalid task does not affect the others.
func (s *Server) batch(w http.ResponseWriter, r *http.Request) {
	parts, err := readBatch(w, r)
	if err != nil {
		writeProblem(w, err)
		return
	}
	out := Batch{Items: make([]BatchItem, len(parts))}
	reqs, at := make([]wire.Request, 0, len(parts)), make([]int, 0, len(parts))
	for i, b := range parts {
		req, err := decodeSubmit(b)
		if err != nil {
			out.Items[i].failed(err)
			continue
		}
		reqs, at = append(reqs, req), append(at, i)
	}
	done, errs := s.node.SubmitMany(r.Context(), reqs)
	for j, i := range at {
		if errs[j] != nil {
			out.Items[i].failed(errs[j])
			continue
		}
		out.Items[i] = BatchItem{Status: http.StatusAccepted, Task: &done[j]}
		out.Accepted++
	}
	out.Failed = len(parts) - out.Accepted
	writeJSON(w, http.StatusOK, out)
}

func (i *BatchItem) failed(err error) {
	p := ProblemOf(err)
	*i = BatchItem{Status: p.Status, Problem: p}
}

// readBatch splits a batch into the raw JSON of its tasks.
func readBatch(w http.ResponseWriter, r *http.Request) (parts [][]byte, err error) {
	if r.Header.Get("Idempotency-Key") != "" {
		return nil, problem(CodeInvalid, "a batch cannot have an Idempotency-Key header: give each task its own key")
	}
	split := elements
	switch mediaType(r) {
	case jsonType:
	case "application/x-ndjson", "application/ndjson", "application/jsonl":
		split = splitLines
	default:
		return nil, problem(CodeType, "content type %.80q: a batch must be application/json (an array) or application/x-ndjson", r.Header.Get("Content-Type"))
	}
	b, err := readBody(w, r, MaxBatchBytes)
	if err != nil {
		return nil, explainTooLarge(err)
	}
	parts, err = split(b, MaxBatch)
	switch {
	case errors.Is(err, errTooMany):
		return nil, explainTooLarge(problem(CodeTooLarge, "more than %d tasks in a batch", MaxBatch))
	case err != nil:
		return nil, malformed("read the batch: %v", err)
	case len(parts) == 0:
		return nil, problem(CodeInvalid, "the batch is empty")
	}
	return parts, nil
}

// explainTooLarge adds a hint to the error of a batch that is too large.
func explainTooLarge(err error) *Problem {
	p := ProblemOf(err)
	if p.Code == CodeTooLarge {
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
