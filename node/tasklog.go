package node

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// logTask logs a durable change of a task at debug level, using only its record. Nothing
// else logs these changes.
func (n *Node) logTask(role string, id proto.TaskID, r *proto.Record) {
	if !n.log.Enabled(context.Background(), slog.LevelDebug) {
		return
	}
	peer, _ := n.book.Identify(r.GetPeer())
	n.log.LogAttrs(context.Background(), slog.LevelDebug, "task", taskAttrs(role, id, peer, r)...)
}

// taskAttrs returns the attributes of a log line about a task. Their keys are stable.
func taskAttrs(role string, id proto.TaskID, peer string, r *proto.Record) []slog.Attr {
	attrs := []slog.Attr{
		slog.String("event", taskEvent(role, r)), slog.String("task_id", id.String()), slog.String("role", role),
		slog.String("kind", r.GetKind()), slog.String("class", strings.ToLower(r.GetClass().Name())), slog.String("peer", peer),
		slog.String("status", r.GetState().Name()), slog.Uint64("attempt", uint64(r.GetAttempts())),
	}
	if took, ok := taskTook(role, r); ok {
		attrs = append(attrs, slog.Int64("duration_ms", took.Milliseconds()))
	}
	if trace := strings.Split(r.GetTraceparent(), "-"); len(trace) == 4 {
		attrs = append(attrs, slog.String("trace_id", trace[1]))
	}
	if c := r.GetCause(); c != 0 && r.GetState() != proto.Running {
		attrs = append(attrs, slog.String("cause", c.Name()), slog.String("err", proto.Clip(r.GetReason(), maxLogged)))
	}
	return attrs
}

// maxLogged bounds the reason in a log line, in bytes.
const maxLogged = 256

// taskEvent returns the name of the latest change of a task.
func taskEvent(role string, r *proto.Record) string {
	switch s := r.GetState(); s {
	case proto.Pending:
		if len(r.GetEvents()) > 1 {
			return "task.deferred"
		}
		return "task.submitted"
	case proto.Accepted:
		if role == wire.RoleHome {
			return "task.accepted"
		}
		return "task.received"
	case proto.Running:
		return "task.started"
	case proto.Retrying:
		return "task.retry"
	case proto.DeadLetter:
		return "task.dead"
	default:
		if s.Terminal() {
			return "task.ended"
		}
		return "task.changed"
	}
}

// taskTook returns the time from the creation of a task to its end at its home; at its
// owner, the duration of the run that has just ended.
func taskTook(role string, r *proto.Record) (took time.Duration, ok bool) {
	if role == wire.RoleHome {
		return time.Duration(r.GetEndedMs()-r.GetCreatedMs()) * time.Millisecond, r.GetState().Terminal() && r.GetCreatedMs() > 0
	}
	runs := r.GetHistory()
	if len(runs) == 0 || r.GetState() != proto.Retrying && !r.GetState().Terminal() {
		return 0, false
	}
	last := runs[len(runs)-1]
	return time.Duration(last.GetFinishedMs()-last.GetStartedMs()) * time.Millisecond, last.GetFinishedMs() > 0 && last.GetStartedMs() > 0
}
