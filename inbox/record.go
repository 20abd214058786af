package inbox

import (
	"strings"
	"time"

	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/proto"
)

// startRecord records a start of the handler.
func startRecord(r *proto.Record, boot proto.BootID, now time.Time, cause proto.TaskCause) {
	n := starts(r) + 1
	r.BootId, r.DueMs = boot[:], 0
	r.History = trimHistory(append(r.History, &proto.Attempt{Number: n, StartedMs: now.UnixMilli()}))
	r.Move(proto.Running, now, cause, "")
	r.Events[len(r.Events)-1].Attempt = n
}

// starts returns the number of ended starts that count.
func starts(r *proto.Record) uint32 { return r.Attempts + r.Abandons }

// trimHistory keeps the first attempts and the newest.
func trimHistory(h []*proto.Attempt) []*proto.Attempt {
	if len(h) <= proto.MaxAttempts {
		return h
	}
	const keep = proto.MaxAttempts / 4
	return append(h[:keep], h[keep+1:]...)
}

// apply records the transition after a run in r.
func (t transition) apply(r *proto.Record, res *handler.Result, now time.Time) {
	n := starts(r) + 1
	if t.spent {
		r.Attempts++
	}
	if t.abandoned {
		r.Abandons++
	}
	if len(r.History) > 0 {
		if a := r.History[len(r.History)-1]; a.FinishedMs == 0 {
			a.FinishedMs, a.ExitCode, a.Cause, a.Error = now.UnixMilli(), int32(res.Code), t.cause, text(t.reason, 256)
		}
	}
	r.Cause, r.Reason, r.Code, r.ExitCode, r.Stderr = t.cause, text(t.reason, proto.MaxReason), t.code, int32(res.Code), tail(res.Stderr, proto.MaxStderr)
	r.MayHaveRun = t.mayHaveRun
	r.Truncated, r.ResultType = res.Truncated, text(res.ContentType, 128)
	r.DueMs = 0
	if t.wait > 0 {
		r.DueMs = now.Add(t.wait).UnixMilli()
	}
	r.Move(t.state, now, t.cause, t.reason)
	r.Events[len(r.Events)-1].Attempt = n
}

// text returns s as valid UTF-8 of at most n bytes.
func text(s string, n int) string { return proto.Clip(strings.ToValidUTF8(s, "?"), n) }

// tail returns the end of s as valid UTF-8 of at most n bytes.
func tail(s string, n int) string {
	return strings.ToValidUTF8(s[max(len(s)-n, 0):], "?")
}
