// Package apitest is a fake node for tests of the API server and its client: it records
// the calls and returns plausible values or a given error.
package apitest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// Start is the time of everything that happens here.
var Start = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// ID is the id of the only task that exists at the start.
const ID = "01a1f84f-fb79-727b-b679-7a95fb475002"

// A Node is a fake node. Its fields may be set before it is used.
type Node struct {
	Err     error                    // returned by every method that can fail
	PerItem func(wire.Request) error // returned by SubmitMany and Submit for one task
	Output  []byte                   // the result of every task
	Cut     int                      // bytes missing at the end of the output that Result returns
	Ended   chan struct{}            // Wait returns when it is closed; nil: at once
	Waits   chan string              // receives the id when Wait starts to wait, if not nil
	Dead    []wire.Page[wire.Task]   // the pages of DeadLetters
	Known   []wire.Peer              // returned by Peers, if not nil
	Pongs   []wire.Pong              // returned by Ping in order; one without a peer is a timeout
	Mesh    *wire.MeshSummary        // returned by MeshSummary, if not nil
	Happens chan wire.EventPage      // the pages that Events waits for, if not nil

	mu       sync.Mutex
	calls    []string
	requests []wire.Request
	streams  []Streamed
	registry *prometheus.Registry
}

// Streamed is a body that arrived as a stream.
type Streamed struct {
	Size   int64
	Digest string // SHA-256, hex
}

// New returns a healthy node.
func New() *Node { return &Node{Output: []byte("Linux\n"), registry: prometheus.NewRegistry()} }

// Calls returns and clears the recorded calls.
func (n *Node) Calls() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	calls := n.calls
	n.calls = nil
	return calls
}

// Requests returns the tasks submitted so far.
func (n *Node) Requests() []wire.Request {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]wire.Request(nil), n.requests...)
}

// Streams returns the bodies that came as streams so far.
func (n *Node) Streams() []Streamed {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]Streamed(nil), n.streams...)
}

func (n *Node) called(format string, a ...any) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.calls = append(n.calls, fmt.Sprintf(format, a...))
	return n.Err
}

// A task looks like one that a real node returns.
func (n *Node) task(id string) wire.Task {
	sum := sha256.Sum256(n.Output)
	return wire.Task{
		ID: id, State: proto.Success.Name(), Role: wire.RoleHome, Kind: "shell", Class: "normal",
		Target: "laptop", Peer: "laptop", PeerID: "12D3KooW", Attempts: 1, Epoch: "7.1", BodySize: 3,
		Receipts: []string{"stored", "accepted", "started", "done"},
		Events:   []wire.Event{{Time: Start, Node: "here", State: "PENDING"}},
		Times:    wire.Times{Created: Start, NotAfter: Start.Add(proto.DefaultTTL)},
		Ending:   wire.Ending{ResultSize: uint64(len(n.Output)), ResultHash: "sha256:" + hex.EncodeToString(sum[:]), ResultType: "text/plain"},
	}
}

// Submit accepts a task and reads its stream.
func (n *Node) Submit(_ context.Context, r wire.Request) (wire.Submitted, error) {
	if r.Kind == "" {
		return wire.Submitted{}, fmt.Errorf("%w: no kind", wire.ErrInvalid)
	}
	if err := n.called("Submit %s %s", r.Target, r.Kind); err != nil {
		return wire.Submitted{}, err
	}
	if n.PerItem != nil {
		if err := n.PerItem(r); err != nil {
			return wire.Submitted{}, err
		}
	}
	if r.Stream != nil {
		h := sha256.New()
		size, err := io.Copy(h, r.Stream)
		if err != nil {
			return wire.Submitted{}, fmt.Errorf("submit: %w", err)
		}
		n.mu.Lock()
		n.streams = append(n.streams, Streamed{size, hex.EncodeToString(h.Sum(nil))})
		n.mu.Unlock()
	}
	return n.take(r), nil
}

func (n *Node) take(r wire.Request) wire.Submitted {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.requests = append(n.requests, r)
	return wire.Submitted{ID: fmt.Sprintf("01a1f84f-fb79-727b-b679-%012x", len(n.requests)), State: "PENDING", Target: r.Target, NotAfter: Start}
}

// SubmitMany accepts many tasks.
func (n *Node) SubmitMany(_ context.Context, rs []wire.Request) ([]wire.Submitted, []error) {
	out, errs := make([]wire.Submitted, len(rs)), make([]error, len(rs))
	failed := n.called("SubmitMany %d", len(rs))
	for i, r := range rs {
		if errs[i] = failed; failed == nil && n.PerItem != nil {
			errs[i] = n.PerItem(r)
		}
		if r.Kind == "" {
			errs[i] = fmt.Errorf("%w: no kind", wire.ErrInvalid)
		}
		if errs[i] == nil {
			out[i] = n.take(r)
		}
	}
	return out, errs
}

// Retry submits a task again.
func (n *Node) Retry(_ context.Context, id string) (wire.Submitted, error) {
	if err := n.called("Retry %s", id); err != nil {
		return wire.Submitted{}, err
	}
	if n.PerItem != nil {
		if err := n.PerItem(wire.Request{Key: id}); err != nil {
			return wire.Submitted{}, err
		}
	}
	return n.take(wire.Request{Target: "laptop", Kind: "shell"}), nil
}

// Task returns a task.
func (n *Node) Task(_ context.Context, id string) (wire.Task, error) {
	return n.task(id), n.called("Task %s", id)
}

// Tasks lists one task.
func (n *Node) Tasks(_ context.Context, q wire.Query) (wire.Page[wire.Task], error) {
	if err := checkQuery(q); err != nil {
		return wire.Page[wire.Task]{}, err
	}
	err := n.called("Tasks %s", formatQuery(q))
	return wire.Page[wire.Task]{Items: []wire.Task{n.task(ID)}, Next: "more"}, err
}

// checkQuery refuses what a real node refuses.
func checkQuery(q wire.Query) error {
	for _, s := range q.States {
		if _, err := proto.ParseTaskState(s); err != nil {
			return fmt.Errorf("%w: %w", wire.ErrInvalid, err)
		}
	}
	if q.Label != "" && !strings.Contains(q.Label, "=") {
		return fmt.Errorf("%w: label %q: must be name=value", wire.ErrInvalid, q.Label)
	}
	return nil
}

func formatQuery(q wire.Query) string {
	out := []string{}
	for _, f := range [][2]string{
		{"states", strings.Join(q.States, "+")}, {"role", q.Role}, {"peer", q.Peer}, {"kind", q.Kind}, {"label", q.Label},
		{"cursor", q.Cursor}, {"before", formatTime(q.Before)}, {"after", formatTime(q.After)},
	} {
		if f[1] != "" {
			out = append(out, f[0]+"="+f[1])
		}
	}
	if q.Oldest {
		out = append(out, "oldest")
	}
	return strings.Join(append(out, fmt.Sprintf("limit=%d", q.Limit)), " ")
}

func formatTime(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}

// Wait waits for Ended.
func (n *Node) Wait(ctx context.Context, id string) (wire.Task, error) {
	if err := n.called("Wait %s", id); err != nil {
		return wire.Task{}, err
	}
	t := n.task(id)
	if n.Ended == nil {
		return t, nil
	}
	if n.Waits != nil {
		select {
		case n.Waits <- id:
		case <-ctx.Done():
		}
	}
	select {
	case <-n.Ended:
		return t, nil
	case <-ctx.Done():
		t.State = "RUNNING"
		return t, ctx.Err()
	}
}

// Result returns Output.
func (n *Node) Result(_ context.Context, id string) (io.ReadCloser, wire.Task, error) {
	if err := n.called("Result %s", id); err != nil {
		return nil, wire.Task{}, err
	}
	return io.NopCloser(bytes.NewReader(n.Output[:len(n.Output)-n.Cut])), n.task(id), nil
}

// Receipts returns one receipt.
func (n *Node) Receipts(_ context.Context, id string) ([]wire.Receipt, error) {
	return []wire.Receipt{{Fact: "stored", Node: "here", Time: Start, Proof: "AA==", Verified: true}}, n.called("Receipts %s", id)
}

// Why returns a fixed cause.
func (n *Node) Why(_ context.Context, subject string) (wire.Blocker, error) {
	return wire.Blocker{Subject: subject, State: "PENDING", Cause: wire.Note{Code: wire.NoteNoAddress, NoteArgs: wire.NoteArgs{Peer: "laptop"}}, Steps: []wire.Note{{Code: wire.StepOutbox, NoteArgs: wire.NoteArgs{Count: 1}}}}, n.called("Why %s", subject)
}

// Cancel stops a task.
func (n *Node) Cancel(_ context.Context, id string, hard bool, reason string) (wire.Task, error) {
	t := n.task(id)
	t.State = "CANCELLED"
	return t, n.called("Cancel %s hard=%v %q", id, hard, reason)
}

// Purge removes two tasks.
func (n *Node) Purge(_ context.Context, q wire.Query, dryRun bool) (wire.Purged, error) {
	if err := checkQuery(q); err != nil {
		return wire.Purged{}, err
	}
	return wire.Purged{Tasks: 2, Bytes: 10, DryRun: dryRun}, n.called("Purge %s dry=%v", formatQuery(q), dryRun)
}

// DeadLetters returns the page of Dead that the cursor names.
func (n *Node) DeadLetters(_ context.Context, q wire.Query) (wire.Page[wire.Task], error) {
	if err := n.called("DeadLetters %s", formatQuery(q)); err != nil || len(n.Dead) == 0 {
		return wire.Page[wire.Task]{}, err
	}
	at := 0
	if q.Cursor != "" {
		if _, err := fmt.Sscanf(q.Cursor, "%d", &at); err != nil || at >= len(n.Dead) {
			return wire.Page[wire.Task]{}, fmt.Errorf("%w: cursor %.40q", wire.ErrInvalid, q.Cursor)
		}
	}
	return n.Dead[at], nil
}
