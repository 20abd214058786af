package api

import (
	"context"

	"github.com/danielgtaylor/huma/v2"
)

// notAudited are routes with a method other than GET that no person is asked about later: a
// ping changes nothing, a handler may report progress every second, and readers lease and
// settle mail, and requesters make boxes for replies, as their work. The route
// of a drain is repeated to see its progress: it wraps those that change something itself.
var notAudited = map[string]bool{
	"pingPeer": true, "taskProgress": true, "drain": true,
	"newReplyBox": true, "leaseMailbox": true, "leaseSubscription": true, "settleMailbox": true, "settleSubscription": true,
}

// actions has the name in the audit log of each route that changes something. Submits are
// not there: each task is its own record. Nor is mail that is sent.
var actions = map[string]string{
	"cancelTask":       "task.cancel",
	"retryTask":        "task.redrive",
	"setTaskClass":     "task.set",
	"moveTask":         "task.set",
	"purgeTasks":       "task.purge",
	"retryDeadLetters": "dead_letters.redrive",

	"blockPeer":         "peer.block",
	"unblockPeer":       "peer.unblock",
	"forgetPeer":        "peer.forget",
	"renamePeer":        "peer.name",
	"revokePeer":        "peer.revoke",
	"invite":            "peer.invite",
	"acceptJoinRequest": "peer.accept",
	"pruneMesh":         "mesh.prune",
	"convergeMesh":      "mesh.converge",

	"setQueue":       "queue.set",
	"pauseQueue":     "queue.set",
	"resumeQueue":    "queue.set",
	"unblockLane":    "queue.unblock",
	"seizeQueue":     "queue.seize",
	"handOffQueue":   "queue.handoff",
	"releaseLease":   "lease.release",
	"recoverLeases":  "mesh.recover",
	"addSchedule":    "schedule.add",
	"removeSchedule": "schedule.remove",
	"pauseSchedule":  "schedule.pause",
	"resumeSchedule": "schedule.resume",

	"setMailbox":          "mailbox.set",
	"pauseMailbox":        "mailbox.set",
	"resumeMailbox":       "mailbox.set",
	"removeMailbox":       "mailbox.remove",
	"purgeMailbox":        "mailbox.purge",
	"redriveMailbox":      "mailbox.redrive",
	"handOffMailbox":      "mailbox.handoff",
	"handOffTopic":        "topic.handoff",
	"unblockMailbox":      "mailbox.unblock",
	"setTopic":            "topic.set",
	"removeTopic":         "topic.remove",
	"purgeTopic":          "topic.purge",
	"setSubscription":     "subscription.set",
	"pauseSubscription":   "subscription.set",
	"resumeSubscription":  "subscription.set",
	"removeSubscription":  "subscription.remove",
	"seekSubscription":    "subscription.seek",
	"redriveSubscription": "topic.redrive",
	"unblockSubscription": "topic.unblock",

	"addHandler":    "handler.add",
	"removeHandler": "handler.remove",
	"compactStore":  "store.compact",
	"snapshotStore": "store.snapshot",
	"stop":          "node.stop",
}

type pathKey struct{}

// withPath notes the path of a request: it is the subject of a command.
func withPath(c huma.Context, next func(huma.Context)) {
	next(huma.WithValue(c, pathKey{}, c.URL().Path))
}

// audited returns f with a start and an end in the audit log (I19). A command whose start
// cannot be written is not done.
func audited[O any](s *Server, action string, f func(context.Context, any) (*O, error)) func(context.Context, any) (*O, error) {
	return func(ctx context.Context, in any) (*O, error) {
		path, _ := ctx.Value(pathKey{}).(string)
		act, end, err := s.recorder.StartCommand(ctx, action, path)
		if err != nil {
			return nil, err
		}
		out, err := f(act, in)
		result := "ok"
		if err != nil {
			result = string(ProblemOf(err).Code)
		}
		if ended := end(result); err == nil && ended != nil {
			return nil, ended
		}
		return out, err
	}
}
