package ownership

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/proto"
)

// A refusedResult is why a result does not unseal.
type refusedResult proto.Code

func (r refusedResult) Error() string       { return "refused: " + proto.Code(r).Name() }
func (r refusedResult) Refusal() proto.Code { return proto.Code(r) }

// A result that its home rejects for good when it is opened ends the lease of its owner at
// once: the task runs again elsewhere, or is a dead letter if it may run only once, and the
// owner does not send the result again. A result that may count later ends nothing, and counts when it
// is sent again (I20).
func TestDriversEndTheLeaseOfARefusedResult(t *testing.T) {
	const work = time.Second
	tests := []struct {
		code proto.Code
		mode proto.Mode
		want string // how the tasks of the refused owner have ended; empty: not while it is refused
	}{
		{proto.CodeDenied, proto.AtLeastOnce, "SUCCESS by 0"},
		{proto.CodeDenied, proto.AtMostOnce, "DEAD_LETTER "},
		{proto.CodeBadForm, proto.AtLeastOnce, "SUCCESS by 0"},
		{proto.CodeUnknownVersion, proto.AtLeastOnce, "SUCCESS by 0"},
		{proto.CodeTooLarge, proto.AtLeastOnce, "SUCCESS by 0"},
		{proto.CodeBusy, proto.AtLeastOnce, ""},
		{proto.CodeBusy, proto.AtMostOnce, ""},
		{proto.CodeOK, proto.AtLeastOnce, ""}, // an error without a code
	}
	for _, tt := range tests {
		t.Run(tt.code.Name()+" "+tt.mode.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newCluster(t, 2, work)
				defer w.close()
				refuse := func(on bool) {
					w.mu.Lock()
					defer w.mu.Unlock()
					if w.refuse = nil; on {
						w.refuse = func(from proto.PeerID) error {
							if from == testPeer(1) {
								return refusedResult(tt.code)
							}
							return nil
						}
					}
				}
				refuse(true)
				for i := range 6 {
					w.nodes[0].add(i, func(x *Task) { x.Mode = tt.mode })
				}
				time.Sleep(work / 2)
				w.mu.Lock()
				refused := slices.Collect(maps.Keys(w.nodes[1].stops))
				w.mu.Unlock()
				if len(refused) == 0 {
					t.Fatal("the other node was granted nothing")
				}
				if tt.want != "" {
					w.settled(6, 10*time.Second) // less than a lease
					time.Sleep(time.Second)      // for the answers
				} else {
					time.Sleep(time.Minute)
				}
				w.mu.Lock()
				for _, id := range refused {
					ends, starts, again := w.ends[id], w.starts[id], 1
					if strings.HasPrefix(tt.want, "SUCCESS") {
						again = 2
					}
					if starts != again || len(ends) > 1 || (len(ends) == 1) != (tt.want != "") || tt.want != "" && !strings.HasPrefix(ends[0], tt.want) {
						t.Errorf("%s was started %d times and ended %q, want %d and %q", id, starts, ends, again, tt.want)
					}
				}
				w.mu.Unlock()
				_, unanswered, err := w.nodes[1].driver.Unfinished(t.Context())
				if err != nil || (unanswered == 0) != (tt.want != "") {
					t.Errorf("the owner waits for the answers to %d results: %v", unanswered, err)
				}
				refuse(false)
				w.settled(6, 2*time.Minute)
				if n := w.starts[refused[0]]; tt.want == "" && n != 1 {
					t.Errorf("I6: %s was started %d times", refused[0], n)
				}
			})
		})
	}
}
