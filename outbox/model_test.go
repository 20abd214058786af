package outbox

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/proto"
)

// rounds is how many random histories a test runs; BALEFIRE_ROUNDS sets another
// number.
func rounds(t *testing.T, n int) int {
	s := os.Getenv("BALEFIRE_ROUNDS")
	if s == "" {
		return n
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatalf("BALEFIRE_ROUNDS: %v", err)
	}
	return n
}

// TestModel breaks links at random moments, loses acknowledgements, lets targets
// refuse and the home crash, and then ends all faults: every submitted task is there
// and ends once (I1, I3, I11), the target accepts each task once and nothing at or
// below the mark (I6, I12), and the mark catches up.
func TestModel(t *testing.T) {
	histories := rounds(t, 8)
	t.Logf("counted: %d histories", histories)
	for seed := range histories {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			inBubble(t, Config{}, func(t *testing.T, h *home) { runHistory(t, h, rand.New(rand.NewPCG(uint64(seed), 1))) })
		})
	}
}

func runHistory(t *testing.T, h *home, rnd *rand.Rand) {
	targets := []*target{newTarget(t), newTarget(t)}
	for _, g := range targets {
		rnd := rand.New(rand.NewPCG(rnd.Uint64(), 2)) // respond runs concurrently
		g.respond = func(*proto.Message) *proto.Refusal {
			if rnd.IntN(10) > 0 {
				return nil
			}
			codes := []proto.Code{proto.CodeBusy, proto.CodeFull, proto.CodeDraining, proto.Code(55)}
			return &proto.Refusal{Code: codes[rnd.IntN(len(codes))]}
		}
	}
	cuts := make([]func(), len(targets))
	owner := map[proto.TaskID]*target{}
	cut := func(i int) {
		if cuts[i] != nil {
			cuts[i]()
			cuts[i] = nil
		}
	}
	for range 150 {
		i := rnd.IntN(len(targets))
		g := targets[i]
		switch rnd.IntN(9) {
		case 0, 1, 2:
			var drafts []*Draft
			for range 1 + rnd.IntN(20) {
				drafts = append(drafts, h.draft(g.peer(), 30*day, func(r *proto.Record) {
					r.Class = proto.Class(1 + rnd.IntN(4))
					if rnd.IntN(4) == 0 {
						r.OrderingKey = fmt.Sprint("key-", rnd.IntN(3))
					}
				}))
			}
			h.mustSubmit(drafts...)
			for _, d := range drafts {
				owner[d.Header.ID] = g
			}
		case 3, 4:
			cut(i)
			cuts[i] = h.connect(g)
		case 5:
			cut(i)
		case 6:
			g.setDropAcks(rnd.IntN(2) == 0)
		case 7:
			if rnd.IntN(5) > 0 {
				break
			}
			h.crash()
			for i := range cuts {
				cut(i)
			}
		case 8:
			finishSome(t, h, owner, func() bool { return rnd.IntN(2) == 0 })
		}
		time.Sleep(time.Duration(rnd.IntN(2000)) * time.Millisecond)
	}
	for i, g := range targets {
		cut(i)
		g.setDropAcks(false)
		g.respondWith(0)
		cuts[i] = h.connect(g)
		defer cut(i)
	}
	for range 1000 { // one task of a key is sent at a time
		if h.Stats().Live == 0 {
			break
		}
		time.Sleep(2 * time.Second)
		finishSome(t, h, owner, func() bool { return true })
	}
	time.Sleep(time.Second)
	synctest.Wait()
	ended := 0
	for id, g := range owner {
		h.want(id, success)
		if r, err := h.Get(id); err == nil && r.Attempts != 1 { // the target's, none of delivery
			t.Errorf("%d attempts", r.Attempts)
		}
		if g.has(id) {
			ended++
		}
	}
	if taken := targets[0].taken + targets[1].taken; taken != len(owner) || ended != len(owner) {
		t.Errorf("%d tasks taken, %d of ours, want %d", taken, ended, len(owner))
	}
	if st := h.Stats(); st.Live != 0 || st.Done != len(owner) {
		t.Errorf("stats %+v", st)
	}
	for _, g := range targets {
		if m := h.Mark(g.peer()); m != h.seqs.last {
			t.Errorf("mark %v, want %v", m, h.seqs.last)
		}
	}
}

// finishSome commits the results of some tasks that their targets have, each
// twice.
func finishSome(t *testing.T, h *home, owner map[proto.TaskID]*target, some func() bool) {
	t.Helper()
	for id, g := range owner {
		if !g.has(id) || h.state(id).Terminal() || !some() {
			continue
		}
		res := []ResultIn{g.result(h, id, success, "out"), g.result(h, id, success, "out")}
		for _, v := range h.Commit(t.Context(), g.peer(), res) {
			if v.Code != 0 || v.State != success {
				t.Fatalf("answer %+v", v)
			}
		}
	}
}
