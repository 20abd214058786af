package node

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	bodystore "github.com/balefire/balefire/bodies"
	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/inbox"
	"github.com/balefire/balefire/ownership"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/queue"
	"github.com/balefire/balefire/transfer"
	"github.com/balefire/balefire/transport"
	"github.com/balefire/balefire/transport/transporttest"
	"github.com/balefire/balefire/wire"
)

const largeBody = 1<<20 + 12345 // the last chunk is a partial one

// A largeHandler returns its body inverted as a large result.
type largeHandler struct {
	cluster *cluster
	place   int
	dir     string
}

// Run copies one chunk at a time.
func (h largeHandler) Run(_ context.Context, r *handler.Run) *handler.Result {
	h.cluster.mu.Lock()
	at := len(h.cluster.runs[r.ID])
	h.cluster.runs[r.ID] = append(h.cluster.runs[r.ID], clusterRun{place: h.place, epoch: r.Epoch})
	h.cluster.mu.Unlock()
	name := filepath.Join(h.dir, fmt.Sprintf("%s-%d-%d", r.ID, h.place, at))
	f, err := os.Create(name)
	if err != nil {
		return &handler.Result{Outcome: handler.Retry, Reason: err.Error()}
	}
	defer f.Close()
	sum := sha256.New()
	n, err := io.Copy(io.MultiWriter(f, sum), invertedReader{r.Body})
	if err != nil {
		return &handler.Result{Outcome: handler.Retry, Reason: err.Error()}
	}
	return &handler.Result{Outcome: handler.Success, File: name, Size: n, Digest: sum.Sum(nil)}
}

// An invertedReader inverts each byte.
type invertedReader struct{ r io.Reader }

func (r invertedReader) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	for i := range p[:n] {
		p[i] = ^p[i]
	}
	return n, err
}

// newLargeCluster starts three nodes whose home of the queue is the first; the others run
// its tasks. A body takes some five seconds over each link.
func newLargeCluster(t *testing.T, change func(*simNode, *Config)) *cluster {
	link := transporttest.Link{Latency: 10 * time.Millisecond, Mbps: 2, Seed: 1}
	c := newClusterOf(t, newSimMeshWith(t, 3, 1, link, change), time.Second)
	for _, s := range c.nodes[1:] {
		c.serveLarge(s)
	}
	time.Sleep(3 * time.Second) // until the home knows the members
	return c
}

func (c *cluster) serveLarge(s *simNode) {
	spec := inbox.Spec{Kind: "big", Allow: []string{"role:send"}, OnCrash: inbox.OnCrashRetry, Handler: largeHandler{c, s.place, c.t.TempDir()}}
	if err := s.node.inbox.Register(spec); err != nil {
		c.t.Fatal(err)
	}
	s.node.gossip.Describe()
}

// submitLarge submits tasks with large bodies at a node.
func (c *cluster) submitLarge(at, count int) (ids []string, bodies [][]byte) {
	c.t.Helper()
	for i := range count {
		body := make([]byte, largeBody)
		rng := rand.NewChaCha8([32]byte{byte(i), byte(at)})
		rng.Read(body)
		s, err := c.nodes[at].node.Submit(c.t.Context(), wire.Request{Target: "queue:build", Kind: "big", Stream: bytes.NewReader(body)})
		if err != nil {
			c.t.Fatal(err)
		}
		ids, bodies = append(ids, s.ID), append(bodies, body)
	}
	return ids, bodies
}

// waitLarge waits until all tasks have succeeded, each with its own body inverted.
func (c *cluster) waitLarge(at int, ids []string, bodies [][]byte, within time.Duration) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), within)
	defer cancel()
	for i, ref := range ids {
		task, err := c.nodes[at].node.Views.Wait(ctx, ref)
		if err != nil || task.State != "SUCCESS" {
			b, _ := c.nodes[at].node.Explainer.Why(c.t.Context(), ref)
			c.t.Fatalf("%s is %s (%s): %v; %+v", ref, task.State, task.Reason, err, b)
		}
		r, _, err := c.nodes[at].node.Views.Result(ctx, ref)
		if err != nil {
			c.t.Fatal(err)
		}
		got, err := io.ReadAll(invertedReader{r})
		r.Close()
		if err != nil || !bytes.Equal(got, bodies[i]) {
			c.t.Errorf("I9: the result of %s has %d bytes and is wrong: %v", ref, len(got), err)
		}
	}
}

// waitNoBodies waits until no node stores a body except the origin, which stores those
// of the results.
func (c *cluster) waitNoBodies(origin, results int) {
	c.t.Helper()
	c.await(time.Minute, "unneeded bodies are still stored", func() bool {
		for _, s := range c.nodes {
			want := 0
			if s.place == origin {
				want = results
			}
			if u := s.node.storage.Blobs.Usage(); u.Blobs != want || u.Parts != 0 {
				return false
			}
		}
		return true
	})
}

// What a part is received for.
const (
	partOfTask  = false // a task or its result, on the way between origin and home
	partOfLease = true  // a granted task, or the result of its run
)

// waitPart waits until one of the nodes is receiving a body of this kind, and returns
// the node.
func (c *cluster) waitPart(lease bool, places ...int) int {
	c.t.Helper()
	found := -1
	c.await(time.Minute, "no body is being transferred", func() bool {
		for _, i := range places {
			names, _ := filepath.Glob(filepath.Join(c.nodes[i].dir, "*", "o-*.part"))
			for _, name := range names {
				info, err := os.Stat(name)
				if err == nil && info.Size() > largeBody/4 && isLeasePart(name) == lease {
					found = i
					return true
				}
			}
		}
		return false
	})
	return found
}

// isLeasePart reports whether the header of a part names a task.
func isLeasePart(name string) bool {
	const taskAt = 4 + 45 + 8 + 32
	b, err := os.ReadFile(name)
	return err == nil && len(b) > taskAt+16 && !bytes.Equal(b[taskAt:taskAt+16], make([]byte, 16))
}

// startsOf counts the runs of a task.
func (c *cluster) startsOf(ref string) int {
	id, err := proto.ParseTaskID(ref)
	if err != nil {
		c.t.Fatal(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.runs[id])
}

// Tasks of a queue and their results may have any size: the bodies go from the origin to
// the home, to the owner and all the way back, and none is left behind.
func TestQueueCarriesLargeBodies(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newLargeCluster(t, nil)
		defer c.close()
		for _, origin := range []int{1, 0} { // the origin is an owner; the origin is the home
			ids, bodies := c.submitLarge(origin, 3)
			c.waitLarge(origin, ids, bodies, 5*time.Minute)
			for _, ref := range ids {
				if n := c.startsOf(ref); n != 1 {
					t.Errorf("I6: %s was started %d times", ref, n)
				}
			}
		}
		c.await(time.Minute, "unneeded bodies are still stored", func() bool {
			a, b, o := c.nodes[0].node.storage.Blobs.Usage(), c.nodes[1].node.storage.Blobs.Usage(), c.nodes[2].node.storage.Blobs.Usage()
			return a.Blobs == 3 && b.Blobs == 3 && o.Blobs == 0 && a.Parts+b.Parts+o.Parts == 0
		})
	})
}

// While the body of a task is being transferred to its owner, the owner reports that.
func TestQueueOwnerReportsMissingBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newLargeCluster(t, nil)
		defer c.close()
		ids, bodies := c.submitLarge(0, 1)
		time.Sleep(2 * time.Second)
		var causes []wire.Note
		for _, s := range c.nodes[1:] {
			if b, err := s.node.Explainer.Why(t.Context(), ids[0]); err == nil {
				causes = append(causes, b.Cause)
			}
		}
		if !slices.ContainsFunc(causes, func(n wire.Note) bool { return n.Code == wire.NoteFetchingBody && n.Peer == "n0" }) {
			t.Errorf("its owner reports %+v", causes)
		}
		c.waitLarge(0, ids, bodies, 10*time.Minute)
	})
}

// The home may run a task itself: the body is not transferred.
func TestQueueHomeRunsALargeTask(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newLargeCluster(t, nil)
		defer c.close()
		c.serveLarge(c.nodes[0])
		for _, s := range c.nodes[1:] {
			s.node.inbox.Unregister("big")
			s.node.gossip.Describe()
		}
		time.Sleep(3 * time.Second)
		ids, bodies := c.submitLarge(2, 2)
		c.waitLarge(2, ids, bodies, 5*time.Minute)
		c.waitNoBodies(2, 2)
	})
}

// An owner that dies while it fetches a body or delivers a result loses nothing: another
// node runs the task, and only its result counts (I3, S19).
func TestQueueOwnerDiesWithALargeBody(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		fetch bool
	}{{"in mid-fetch", true}, {"in mid-result", false}} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newLargeCluster(t, smallMesh)
				defer c.close()
				ids, bodies := c.submitLarge(0, 1)
				var owner int
				if tt.fetch {
					owner = c.waitPart(partOfLease, 1, 2)
				} else {
					c.waitPart(partOfLease, 0)
					id, _ := proto.ParseTaskID(ids[0])
					c.mu.Lock()
					owner = c.runs[id][0].place
					c.mu.Unlock()
				}
				c.nodes[owner].crash()
				c.waitLarge(0, ids, bodies, 5*time.Minute)
				c.nodes[owner].start()
				c.serveLarge(c.nodes[owner])
				c.waitNoBodies(0, 1)
			})
		})
	}
}

// A home that dies while a body arrives, is fetched or returns as a result resumes the
// transfer; the owner repeats nothing.
func TestQueueHomeDiesWithALargeBody(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		lease  bool
		places []int
	}{{"while it comes", partOfTask, []int{0}}, {"while the owner fetches it", partOfLease, []int{1, 2}}, {"while the result comes", partOfLease, []int{0}}} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newLargeCluster(t, nil)
				defer c.close()
				if tt.lease && len(tt.places) > 1 { // the origin has the body: only the other owner fetches it
					c.nodes[1].node.inbox.Unregister("big")
					c.nodes[1].node.gossip.Describe()
					time.Sleep(3 * time.Second)
				}
				ids, bodies := c.submitLarge(1, 1)
				c.waitPart(tt.lease, tt.places...)
				c.nodes[0].crash()
				c.nodes[0].start()
				c.serve(c.nodes[0], time.Second)
				c.waitLarge(1, ids, bodies, 5*time.Minute)
				if n := c.startsOf(ids[0]); n != 1 {
					t.Errorf("I6: started %d times", n)
				}
				c.waitNoBodies(1, 1)
			})
		})
	}
}

// When the home of a queue moves, the bodies of its tasks move to the next home, even if
// one of the two dies in between: a task is never without its body.
func TestQueueHandsOverLargeBodies(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		dies int // after a part of a body was transferred; -1: none
	}{{"without faults", -1}, {"the old home dies", 0}, {"the new home dies", 1}} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newLargeCluster(t, nil)
				defer c.close()
				ids, bodies := c.submitPaused(2, 2)
				if _, err := c.nodes[0].node.Queues.HandOff(t.Context(), "build", c.nodes[1].name); err != nil {
					t.Fatal(err)
				}
				if tt.dies >= 0 {
					c.waitPart(partOfTask, 1)
					s := c.nodes[tt.dies]
					s.crash()
					s.start()
					c.serve(s, time.Second)
					if s.place > 0 {
						c.serveLarge(s)
					}
				}
				c.await(2*time.Minute, "the new home has not all tasks", func() bool {
					q, err := c.nodes[1].node.Queues.Get(t.Context(), "build")
					return err == nil && q.Here && q.Waiting == 2
				})
				if _, err := c.nodes[1].node.Queues.Set(t.Context(), "build", wire.QueueSettings{Paused: new(false)}); err != nil {
					t.Fatal(err)
				}
				c.waitLarge(2, ids, bodies, 5*time.Minute)
				c.waitNoBodies(2, 2)
			})
		})
	}
}

// A task that is moved to another queue runs there once with the body of the first, and none is left
// behind. Its origin sends the body once to each home: not again to one that has it.
func TestMovedTaskKeepsItsLargeBody(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		home   int     // place of the home of the new queue
		bodies float64 // that the origin sends
	}{
		{"to another home", 2, 2},
		{"to the same home", 0, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newLargeCluster(t, nil)
				defer c.close()
				if _, err := c.nodes[tt.home].node.Queues.Set(t.Context(), "night", wire.QueueSettings{Home: "here"}); err != nil {
					t.Fatal(err)
				}
				if _, err := c.nodes[1].node.Queues.Drain(t.Context(), true); err != nil { // the origin runs nothing, so all that it sends are bodies of tasks
					t.Fatal(err)
				}
				time.Sleep(10 * time.Second) // the others know its home
				ids, bodies := c.submitPaused(1, 1)
				s, err := c.nodes[1].node.Redriver.Move(t.Context(), ids[0], "night")
				if err != nil {
					t.Fatal(err)
				}
				c.waitLarge(1, []string{s.ID}, bodies, 5*time.Minute)
				if old, moved := c.startsOf(ids[0]), c.startsOf(s.ID); old != 0 || moved != 1 {
					t.Errorf("the old task was started %d times and its successor %d times", old, moved)
				}
				if task, err := c.nodes[1].node.Views.Task(t.Context(), s.ID); err != nil || task.Target != "queue:night" {
					t.Errorf("the target is %s: %v", task.Target, err)
				}
				if sent, want := c.nodes[1].metrics()["balefire_body_bytes_total{out}"], tt.bodies*largeBody; sent < want || sent > want+want/100 {
					t.Errorf("the origin sent %v bytes of bodies, want little more than %v", sent, want)
				}
				c.waitNoBodies(1, 1)
			})
		})
	}
}

// A home accepts large bodies only up to its limits of number and disk space: other
// tasks are refused, wait at their origin, and are delivered when there is space.
func TestQueueRefusesBodiesBeyondItsLimits(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		change func(*Config)
	}{
		{"by number", func(c *Config) { c.Limits.QueueBodies = 1 }},
		{"by size", func(c *Config) { c.Store.MaxBlobs = 2*largeBody - 1 }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newLargeCluster(t, func(s *simNode, cfg *Config) {
					if s.place == 0 {
						tt.change(cfg)
					}
				})
				defer c.close()
				if _, err := c.nodes[0].node.Queues.Set(t.Context(), "build", wire.QueueSettings{Paused: new(true)}); err != nil {
					t.Fatal(err)
				}
				ids, bodies := c.submitLarge(1, 3)
				c.await(time.Minute, "nothing was refused", func() bool {
					for _, ref := range ids {
						if why, err := c.nodes[1].node.Explainer.Why(t.Context(), ref); err == nil && strings.Contains(fmt.Sprintf("%+v", why), "FULL") {
							return true
						}
					}
					return false
				})
				if q, err := c.nodes[0].node.Queues.Get(t.Context(), "build"); err != nil || q.Waiting > 1 {
					t.Errorf("%d tasks were accepted, want one: %v", q.Waiting, err)
				}
				if _, err := c.nodes[0].node.Queues.Set(t.Context(), "build", wire.QueueSettings{Paused: new(false)}); err != nil {
					t.Fatal(err)
				}
				c.waitLarge(1, ids, bodies, 20*time.Minute)
				c.waitNoBodies(1, 3)
			})
		})
	}
}

// submitPaused submits tasks with large bodies to a paused queue.
func (c *cluster) submitPaused(at, count int) (ids []string, bodies [][]byte) {
	c.t.Helper()
	if _, err := c.nodes[0].node.Queues.Set(c.t.Context(), "build", wire.QueueSettings{Paused: new(true)}); err != nil {
		c.t.Fatal(err)
	}
	ids, bodies = c.submitLarge(at, count)
	c.await(2*time.Minute, "the home has not all tasks", func() bool {
		q, err := c.nodes[0].node.Queues.Get(c.t.Context(), "build")
		return err == nil && q.Waiting == count
	})
	return ids, bodies
}

func (c *cluster) resume() {
	c.t.Helper()
	if _, err := c.nodes[0].node.Queues.Set(c.t.Context(), "build", wire.QueueSettings{Paused: new(false)}); err != nil {
		c.t.Fatal(err)
	}
}

// An owner that receives no bytes of a body returns the task unstarted, and another one
// gets it; that uses up no attempt.
func TestQueueStalledBody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newLargeCluster(t, nil)
		defer c.close()
		ids, bodies := c.submitPaused(0, 1)
		id, err := proto.ParseTaskID(ids[0])
		if err != nil {
			t.Fatal(err)
		}
		found, err := filepath.Glob(filepath.Join(c.nodes[0].dir, "*", "o-*"))
		if err != nil || len(found) != 1 {
			t.Fatalf("the body at the home: %v, %v", found, err)
		}
		away := filepath.Join(t.TempDir(), "away")
		if err := os.Rename(found[0], away); err != nil {
			t.Fatal(err)
		}
		c.resume()
		const stalled = 20 * time.Minute // more than a body may come without progress
		waited := map[int]bool{}
		c.await(stalled, "the task was not granted to both owners", func() bool {
			for _, s := range c.nodes[1:] {
				if l, ok := s.node.Queues.LeaseOf(t.Context(), id.String()); ok && l.Fetching {
					waited[s.place] = true
				}
			}
			return len(waited) == 2
		})
		if err := os.Rename(away, found[0]); err != nil {
			t.Fatal(err)
		}
		c.waitLarge(0, ids, bodies, stalled)
		task, err := c.nodes[0].node.Views.Task(t.Context(), ids[0])
		if err != nil || task.Abandons != 0 || c.startsOf(ids[0]) != 1 {
			t.Errorf("%d abandons and %d starts: %v", task.Abandons, c.startsOf(ids[0]), err)
		}
		c.waitNoBodies(0, 1)
	})
}

// A result that does not match its owner's signature ends its task as a dead letter: no
// byte of it reaches the origin (I9).
func TestQueueCorruptResult(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newLargeCluster(t, nil)
		defer c.close()
		ids, _ := c.submitLarge(0, 1)
		c.waitPart(partOfLease, 0)
		corrupt := 0
		for _, s := range c.nodes[1:] {
			found, _ := filepath.Glob(filepath.Join(s.dir, "*", "o-*"))
			for _, name := range found {
				f, err := os.OpenFile(name, os.O_RDWR, 0)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := f.WriteAt([]byte("corrupt"), largeBody-100); err != nil {
					t.Fatal(err)
				}
				f.Close()
				corrupt++
			}
		}
		if corrupt != 1 {
			t.Fatalf("%d results were corrupt, want one", corrupt)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		task, err := c.nodes[0].node.Views.Wait(ctx, ids[0])
		if err != nil || task.State != "DEAD_LETTER" || task.Cause != proto.TaskResultDamaged.Name() || task.Reason != "" || task.ResultSize != 0 {
			t.Errorf("the task is %s (%s %s) with a result of %d bytes: %v", task.State, task.Cause, task.Reason, task.ResultSize, err)
		}
		for _, s := range c.nodes[1:] {
			c.await(time.Minute, "the owner still stores a result that nobody accepts", func() bool { return s.node.storage.Blobs.Usage().Bytes == 0 })
		}
	})
}

// No node accepts a byte from a peer that may not send it: of a task that it was not
// granted, of a result without a lease, of a queue that is not handed over to it.
func TestQueueUnrequestedBodies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newLargeCluster(t, nil)
		defer c.close()
		ids, bodies := c.submitPaused(0, 1)
		id, _ := proto.ParseTaskID(ids[0])
		home, other, third := c.nodes[0], c.nodes[1], c.nodes[2]
		env, err := (queue.Custody{Queues: home.node.Queues}).Envelope(id, other.peer())
		if err != nil {
			t.Fatal(err)
		}
		forged := &proto.Outcome{
			State: proto.Success, BodySize: largeBody, BodyDigest: make([]byte, 32),
			EpochBoot: 1, EpochCounter: 1, LeaseToken: make([]byte, 16), BootId: make([]byte, 16),
		}
		ref, object, err := third.node.storage.Blobs.Seal(t.Context(), bytes.NewReader(make([]byte, largeBody)), bodystore.SealOptions{Suite: bodystore.AES})
		if err != nil {
			t.Fatal(err)
		}
		defer third.node.storage.Blobs.Release(ref.Name.String())
		forged.Object = ref.Proto()
		sealed, err := queue.Results{Queues: third.node.Queues}.Seal(home.peer(), []ownership.SealRequest{{Task: id, Outcome: forged}})
		if err != nil {
			t.Fatal(err)
		}
		tests := []struct {
			name     string
			at, from *simNode
			offer    *proto.Offer
			want     proto.Code
		}{
			{"a task that was not granted", other, home, &proto.Offer{Type: proto.TypeGrant, Envelope: env}, proto.CodeStale},
			{"a task of a queue with another home", other, home, &proto.Offer{Type: proto.TypeHandoff, Envelope: env}, proto.CodeBusy},
			{"a handoff from a node that never was the home", other, third, &proto.Offer{Type: proto.TypeHandoff, Envelope: env}, proto.CodeBusy},
			{"a result without a lease", home, third, &proto.Offer{Type: proto.TypeEnded, Envelope: sealed[0]}, proto.CodeBusy},
			{"a result of another node", home, other, &proto.Offer{Type: proto.TypeEnded, Envelope: sealed[0]}, proto.CodeBadForm},
			{"a body for a message without one", home, third, &proto.Offer{Type: proto.TypeRenew, Envelope: env}, proto.CodeBadForm},
		}
		for _, tt := range tests {
			sink, reply := bodySink(tt.at).Offer(t.Context(), tt.from.peer(), tt.offer, &object)
			if sink != nil || reply.GetCode() != tt.want {
				t.Errorf("%s: accepted: %v, %s (%s), want %s", tt.name, sink != nil, reply.GetCode().Name(), reply.GetDetail(), tt.want.Name())
			}
		}
		c.resume()
		c.waitLarge(0, ids, bodies, 5*time.Minute)
	})
}

// bodySink returns the receiver for bodies sent to a node.
func bodySink(s *simNode) transport.Bodies { return transfer.Receiver{Transfers: s.node.transfers} }
