package node

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/inbox"
	"github.com/balefire/balefire/wire"
)

// A member of a queue whose program is missing does not take tasks from the member that
// can run them, and no task loses an attempt there: neither if the program was never there
// nor if it vanishes while its kind is offered. The home may be either member.
func TestQueueAvoidsAMemberWithoutItsProgram(t *testing.T) {
	for _, tt := range []struct {
		name   string
		broken int
		was    bool // the program was there at first
	}{
		{"never there", 1, false},
		{"vanishes", 1, true},
		{"never there, at home", 0, false},
		{"vanishes at home", 0, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, 2, time.Second)
				defer c.close()
				broken, sound := c.nodes[tt.broken], c.nodes[1-tt.broken]
				spec := inbox.Spec{Kind: "convert", Allow: []string{"role:send"}, OnCrash: inbox.OnCrashRetry, Handler: clusterHandler{c, sound.place, time.Second}}
				if err := sound.node.inbox.Register(spec); err != nil {
					t.Fatal(err)
				}
				sound.node.gossip.Describe()
				program := filepath.Join(t.TempDir(), "prog")
				if err := broken.node.Handlers.Add(t.Context(), wire.HandlerSpec{Kind: "convert", Exec: []string{program}, Allow: []string{"role:send"}, OnCrash: "retry"}); err != nil {
					t.Fatal(err)
				}
				if tt.was {
					c.install(broken, program)
				}
				time.Sleep(5 * time.Second) // gossip tells it
				if !c.offers(sound.place, "convert") || c.offers(broken.place, "convert") != tt.was {
					t.Fatalf("before: sound %v, broken %v", c.offers(sound.place, "convert"), c.offers(broken.place, "convert"))
				}
				if tt.was {
					if err := os.Remove(program); err != nil {
						t.Fatal(err)
					}
				}
				ids := c.submitConversions(1, 200)
				if by := c.waitAll(1, ids, 5*time.Minute); !maps.Equal(by, map[int]int{sound.place: len(ids)}) {
					t.Errorf("run by %v", by)
				}
				grants := 0 // to the broken member: at most one for each of its slots
				for _, id := range ids {
					task, err := c.nodes[1].node.Views.Task(t.Context(), id)
					if err != nil {
						t.Fatal(err)
					}
					grants += int(task.Attempts) - 1
				}
				if grants > simSlots || grants > 0 != tt.was {
					t.Errorf("the broken member was to start %d times", grants)
				}
				time.Sleep(15 * time.Second) // its next look for the program, and gossip
				if !c.offers(sound.place, "convert") || c.offers(broken.place, "convert") {
					t.Errorf("after: sound %v, broken %v", c.offers(sound.place, "convert"), c.offers(broken.place, "convert"))
				}
			})
		})
	}
}

// install writes a program and waits until the node has just found it: the next look is
// ten seconds later.
func (c *cluster) install(s *simNode, program string) {
	c.t.Helper()
	if err := os.WriteFile(program, nil, 0o700); err != nil {
		c.t.Fatal(err)
	}
	for range 200 {
		if s.node.inbox.Suspended("convert") == "" {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	c.t.Fatal("the program is not found")
}

// offers reports whether the home knows that a member runs tasks of a kind.
func (c *cluster) offers(place int, kind string) bool {
	c.t.Helper()
	q, err := c.nodes[0].node.Queues.Get(c.t.Context(), "build")
	if err != nil {
		c.t.Fatal(err)
	}
	for _, m := range q.Members {
		if m.Name == c.nodes[place].name {
			return slices.Contains(m.Kinds, kind)
		}
	}
	c.t.Fatalf("%s is no member", c.nodes[place].name)
	return false
}

// submitConversions submits tasks of the kind convert at a node and returns their ids. Each
// has one attempt: it is a dead letter if that is used up for nothing.
func (c *cluster) submitConversions(at, count int) (ids []string) {
	c.t.Helper()
	rs := make([]wire.Request, count)
	for i := range rs {
		rs[i] = wire.Request{Target: "queue:build", Kind: "convert", Retries: 1, Body: fmt.Appendf(nil, "task %d", i)}
	}
	got, errs := c.nodes[at].node.SubmitMany(c.t.Context(), rs)
	if err := errors.Join(errs...); err != nil {
		c.t.Fatal(err)
	}
	for _, s := range got {
		ids = append(ids, s.ID)
	}
	return ids
}
