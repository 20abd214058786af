package outbox

import (
	"testing"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store/backlog"
)

func TestBackoff(t *testing.T) {
	tests := []struct {
		name string
		n    int
		r    float64
		want time.Duration
	}{
		{"the first retry has jitter too", 1, 0.5, 1250 * time.Millisecond},
		{"it doubles", 3, 0, 4 * time.Second},
		{"it stops at the limit", 30, 0, 5 * time.Minute},
		{"jitter adds up to a half", 30, 1, 7*time.Minute + 30*time.Second},
		{"a huge count does not overflow", 1 << 30, 0, 5 * time.Minute},
		{"no count is the first", 0, 0, time.Second},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := backoff(tt.n, tt.r); got != tt.want {
				t.Errorf("backoff = %v, want %v", got, tt.want)
			}
		})
	}
}

// The table of refusals, code by code, including an unknown code.
func TestRefusals(t *testing.T) {
	keep := decision{action: retry}
	ends := func(s proto.TaskState) decision { return decision{action: end, state: s} }
	tests := []struct {
		code                 proto.Code
		task, result, cancel decision
	}{
		{proto.CodeNoHandler, keep, keep, decision{action: drop}},
		{proto.CodeFull, keep, keep, keep},
		{proto.CodeBusy, keep, keep, keep},
		{proto.CodeCannotStart, keep, keep, keep},
		{proto.CodeClock, keep, keep, keep},
		{proto.CodeNoMesh, keep, keep, keep},
		{proto.CodeDraining, keep, keep, keep},
		{proto.CodeBadKey, keep, keep, keep},
		{proto.CodeUnknownVersion, keep, keep, keep},
		{proto.CodeExpired, ends(expired), keep, decision{action: drop}},
		{proto.CodeDenied, ends(dead), keep, decision{action: drop}},
		{proto.CodeBadSignature, ends(dead), ends(dead), decision{action: drop}},
		{proto.CodeTooLarge, ends(dead), ends(dead), decision{action: drop}},
		{proto.CodeBadForm, ends(dead), ends(dead), decision{action: drop}},
		{proto.CodeDuplicate, decision{action: accept}, decision{action: drop}, decision{action: drop}},
		{proto.CodeStale, keep, decision{action: drop}, decision{action: drop}},
		{proto.CodeMoved, keep, keep, keep},
		{proto.CodeNeedBody, decision{action: sendBodyFirst}, decision{action: sendBodyFirst}, keep},
		{proto.CodeInternal, decision{action: spendAttempt}, keep, keep},
		{proto.CodeHeld, keep, keep, keep}, // of no task
		{proto.Code(999), keep, keep, keep},
	}
	for code := range proto.Code_name {
		found := code == 0
		for _, tt := range tests {
			found = found || int32(tt.code) == code
		}
		if !found {
			t.Errorf("no decision is stated for %v", proto.Code(code))
		}
	}
	for _, tt := range tests {
		t.Run(tt.code.Name(), func(t *testing.T) {
			f := refusal{code: tt.code, attempts: 3, limit: 10, certainlyNotDelivered: true, expired: true}
			for part, want := range map[backlog.Part]decision{backlog.PartTask: tt.task, backlog.PartResult: tt.result, backlog.PartCancel: tt.cancel} {
				if got := onRefusal(part, f); got != want {
					t.Errorf("%v: %+v, want %+v", part, got, want)
				}
			}
		})
	}
	if got := onRefusal(backlog.PartTask, refusal{code: proto.CodeExpired, limit: 10}); got != keep {
		t.Errorf("EXPIRED by the target's clock alone: %+v", got)
	}
	last := refusal{code: proto.CodeInternal, attempts: 9, limit: 10}
	if got := onRefusal(backlog.PartTask, last); got != ends(dead) {
		t.Errorf("the last attempt: %+v", got)
	}
	busy := refusal{code: proto.CodeBusy, limit: 10, cancel: true, certainlyNotDelivered: true}
	if got := onRefusal(backlog.PartTask, busy); got != ends(cancelled) {
		t.Errorf("a task that is to be cancelled and is certainly not there: %+v", got)
	}
	busy.certainlyNotDelivered = false
	if got := onRefusal(backlog.PartTask, busy); got != keep {
		t.Errorf("a task that is to be cancelled and may be there: %+v", got)
	}
}

// TestOnlyTasksThatCannotRunExpire holds I3: EXPIRED needs never sent, or not_after
// with the run limit and the skew.
func TestOnlyTasksThatCannotRunExpire(t *testing.T) {
	const notAfter = int64(1_000_000_000)
	l := limits{run: 24 * time.Hour, result: 30 * 24 * time.Hour}
	last := notAfter + (24*time.Hour + proto.Skew).Milliseconds()
	months := notAfter + (30 * 24 * time.Hour).Milliseconds()
	over, later := decision{action: end, state: expired}, func(at int64) decision { return decision{action: recheckLater, at: at} }
	tests := []struct {
		name  string
		part  backlog.Part
		state proto.TaskState
		now   int64
		sent  bool
		want  decision
	}{
		{"never sent, in time", backlog.PartTask, pending, notAfter - 1, false, later(notAfter)},
		{"never sent, over", backlog.PartTask, pending, notAfter, false, over},
		{"may be sent, over", backlog.PartTask, pending, notAfter, true, later(last)},
		{"may be sent, just before giving up", backlog.PartTask, pending, last - 1, true, later(last)},
		{"may be sent, long over", backlog.PartTask, pending, last, true, over},
		{"accepted, over", backlog.PartTask, accepted, notAfter, false, later(last)},
		{"running, over", backlog.PartTask, running, last - 1, false, later(last)},
		{"running, long over", backlog.PartTask, running, last, false, over},
		{"ended", backlog.PartTask, success, last, false, decision{action: noChange}},
		{"a result in time", backlog.PartResult, pending, last, false, later(months)},
		{"a result that was never accepted", backlog.PartResult, pending, months, false, over},
		{"a cancellation in time", backlog.PartCancel, pending, last - 1, false, later(last)},
		{"a cancellation, over", backlog.PartCancel, pending, last, false, decision{action: drop}},
		{"the wall clock at zero", backlog.PartTask, pending, 0, true, later(last)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := &proto.Record{State: tt.state, NotAfterMs: notAfter}
			if got := onDeadline(tt.part, r, tt.now, tt.sent, l); got != tt.want {
				t.Errorf("decision %+v, want %+v", got, tt.want)
			}
		})
	}
}

// TestCommitRule checks I3 and I4 case by case.
func TestCommitRule(t *testing.T) {
	owner, other := proto.PeerID{1}, proto.PeerID{2}
	epoch, older := proto.Seq{Boot: 5, Counter: 7}, proto.Seq{Boot: 5, Counter: 6}
	digest, another := []byte("digest"), []byte("another")
	tests := []struct {
		name  string
		state proto.TaskState
		claim assertion
		want  action
	}{
		{"accepted", accepted, assertion{owner, epoch, success, digest, false}, accept},
		{"running", running, assertion{owner, epoch, failed, digest, false}, accept},
		{"pending, the ack was lost", pending, assertion{owner, epoch, success, digest, false}, accept},
		{"another peer", accepted, assertion{other, epoch, success, digest, false}, drop},
		{"an older epoch", accepted, assertion{owner, older, success, digest, false}, drop},
		{"an epoch never granted", accepted, assertion{owner, proto.Seq{Boot: 6, Counter: 1}, success, digest, false}, drop},
		{"not an end", accepted, assertion{owner, epoch, running, digest, false}, drop},
		{"no state", accepted, assertion{owner, epoch, 0, digest, false}, drop},
		{"the queue's home, which is another now", accepted, assertion{other, epoch, success, digest, true}, accept},
		{"the queue's home, after the end", success, assertion{other, epoch, failed, digest, true}, drop},
		{"the same again", success, assertion{owner, epoch, success, digest, false}, noChange},
		{"the same state, another digest", success, assertion{owner, epoch, success, another, false}, drop},
		{"another state, the same digest", success, assertion{owner, epoch, failed, digest, false}, drop},
		{"the same again from another peer", success, assertion{other, epoch, success, digest, false}, drop},
		{"after it expired", expired, assertion{owner, epoch, success, digest, false}, drop},
		{"after it was cancelled", cancelled, assertion{owner, epoch, success, digest, false}, drop},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := &proto.Record{State: tt.state, Peer: owner[:], SeqBoot: epoch.Boot, SeqCounter: epoch.Counter}
			if tt.state == success {
				r.ResultDigest = digest
			}
			if got := onResult(r, tt.claim); got.action != tt.want {
				t.Errorf("action %v, want %v", got.action, tt.want)
			}
		})
	}
}

func TestCancelRule(t *testing.T) {
	tests := []struct {
		name  string
		state proto.TaskState
		sent  bool
		want  action
	}{
		{"never sent", pending, false, end},
		{"may be sent", pending, true, sendBodyFirst},
		{"accepted", accepted, false, sendBodyFirst},
		{"running", running, false, sendBodyFirst},
		{"ended", success, false, noChange},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := onCancel(&proto.Record{State: tt.state}, tt.sent); got.action != tt.want {
				t.Errorf("action %v, want %v", got.action, tt.want)
			}
		})
	}
}
