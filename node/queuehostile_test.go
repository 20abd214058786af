package node

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/queue"
	"github.com/balefire/balefire/transport/transporttest"
	"github.com/balefire/balefire/wire"
)

// forgedTask is a task for a queue that a forger signs with itself as the target and
// seals for a node.
func forgedTask(t *testing.T, f *transporttest.Forger, n *Node, queue, order string) (proto.TaskID, *proto.Envelope) {
	t.Helper()
	now := time.Now()
	sum := sha256.Sum256(nil)
	content, err := proto.Encode(nil, &proto.Content{Kind: "build", Class: proto.Normal, Queue: queue, OrderingKey: order, BodyDigest: sum[:]})
	if err != nil {
		t.Fatal(err)
	}
	h := proto.Header{
		What: proto.WhatTask, Mesh: f.Mesh.ID, ID: proto.NewTaskID(now), Origin: f.Peer(), Target: f.Peer(), Seq: proto.Seq{Boot: f.Boot, Counter: 1},
		Created: now.UnixMilli(), NotAfter: now.Add(time.Hour).UnixMilli(),
	}
	sealer := identity.NewSealer(clock.Runtime())
	env, key, err := sealer.Seal(&h, f.Keys.SealingKey(), content)
	if err != nil {
		t.Fatal(err)
	}
	if env.Slot, err = sealer.WrapKey(env.GetHeader(), n.keys.SealingKey(), key); err != nil {
		t.Fatal(err)
	}
	sig, proofs := f.Keys.SignGroup([][32]byte{identity.EnvelopeLeaf(env.GetHeader(), env.GetBody(), h.What)})
	env.Signature, env.Index, env.Path = sig, proofs[0].Index, proofs[0].Path
	return h.ID, env
}

// A member cannot claim a queue with its own statements, whatever its id and the
// generation, cannot hand over a task that it signed for itself, and cannot block an
// ordering key: it was never a home (I10, I17).
func TestMemberCannotTakeAQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2, time.Second)
		defer c.close()
		home := c.nodes[0].node
		f := c.forger("mallory")
		defer f.Close()
		time.Sleep(30 * time.Second)
		self := f.Peer()
		signed := func(g uint64) *proto.Signed {
			d := identity.Deed{Queue: "build", Generation: g, From: home.keys.Peer(), To: self}
			if g == 1 {
				d.From = proto.PeerID{}
			}
			s, _ := f.Keys.SignDeed(f.Mesh, d) // refused here too, but sent anyway
			return s
		}
		own, err := f.Keys.SignDeed(f.Mesh, identity.Deed{Queue: "deploy", Generation: 7, Root: [32]byte{1}, From: self, To: c.nodes[1].node.keys.Peer()})
		if err != nil {
			t.Fatal(err)
		}
		for _, q := range []*proto.QueueState{
			{Name: "build", Generation: 1, Home: self[:]},
			{Name: "build", Generation: 2, Home: self[:]},
			{Name: "build", Generation: 1<<64 - 1, Home: self[:]},
			{Name: "deploy", Generation: 1, Home: self[:]},
			{Name: "deploy", Generation: 1<<64 - 1, Home: self[:], Deeds: []*proto.Signed{own}},
			{Name: "deploy", Generation: 1 << 32, Home: self[:], Deeds: []*proto.Signed{own}},
		} {
			if s := signed(q.Generation); s != nil {
				q.Deeds = append(q.Deeds, s)
			}
			for _, s := range c.nodes {
				f.Send(s.node.keys.Peer(), proto.StreamTask, f.Frame(proto.TypeQueues, &proto.QueueStates{Queues: []*proto.QueueState{q}}))
			}
		}
		time.Sleep(5 * time.Second)
		for _, s := range c.nodes {
			if q, err := s.node.Queues.Get(t.Context(), "build"); err != nil || q.Home != "n0" {
				t.Errorf("%s has %s as the home of build: %v", s.name, q.Home, err)
			}
			if q, err := s.node.Queues.Get(t.Context(), "deploy"); !errors.Is(err, wire.ErrNotFound) {
				t.Errorf("%s has %s as the home of deploy: %v", s.name, q.Home, err)
			}
		}
		if q, err := home.Queues.Set(t.Context(), "deploy", wire.QueueSettings{Home: "here"}); err != nil || !q.Here {
			t.Errorf("an admin cannot create the queue: %v", err)
		}
		id, env := forgedTask(t, f, home, "build", "lane")
		lease := &proto.Lease{Task: id[:], Queue: "build", State: proto.Pending, Generation: 2, NotAfterMs: time.Now().Add(time.Hour).UnixMilli()}
		f.Send(home.keys.Peer(), proto.StreamTask, f.Frame(proto.TypeHandoff, &proto.Handoff{
			Lease: lease, Task: &proto.Stored{Envelope: env}, Blocks: []*proto.LaneBlock{{Queue: "build", Key: "lane-a"}, {Queue: "build", Key: "lane-b"}},
		}))
		time.Sleep(5 * time.Second)
		if _, err := home.Views.Task(t.Context(), id.String()); !errors.Is(err, wire.ErrNotFound) {
			t.Errorf("a task was accepted from a node that was never the home: %v", err)
		}
		if q, _ := home.Queues.Get(t.Context(), "build"); len(q.Blocked) != 0 {
			t.Errorf("its message blocks lanes: %v", q.Blocked)
		}
		c.waitAll(1, c.submitMany(1, 3), time.Minute)
	})
}

// What a member says of queues takes little memory of others, however much it says: of a
// queue that no admin gave it nothing is kept, and of all that an admin gave it 1 KiB
// each, and 64 KiB more together.
func TestOneMemberCannotFillTheMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2, time.Second)
		defer c.close()
		f := c.forger("mallory", "send", identity.RoleWork)
		defer f.Close()
		time.Sleep(30 * time.Second)
		self, root := f.Peer(), rootIn(t, c.nodes[0].dir)
		const given, claimed = 40, 200
		said := 0
		for i := range given + claimed {
			q := &proto.QueueState{Name: fmt.Sprint("fat-", i), Generation: 1, Home: self[:]}
			for range 32 {
				q.Labels = append(q.Labels, strings.Repeat("x", 128))
				q.Allow = append(q.Allow, strings.Repeat("y", 128))
			}
			if i < given {
				d, err := root.SignDeed(identity.Deed{Queue: q.Name, Generation: 1, To: self})
				if err != nil {
					t.Fatal(err)
				}
				q.Deeds = append(q.Deeds, d)
			}
			said += proto.Size(q)
			for _, s := range c.nodes {
				f.Send(s.node.keys.Peer(), proto.StreamTask, f.Frame(proto.TypeQueues, &proto.QueueStates{Queues: []*proto.QueueState{q}}))
			}
		}
		time.Sleep(5 * time.Second)
		for _, s := range c.nodes {
			names, size := 0, 0
			for name, q := range s.node.Queues.Driver.QueueStates() {
				if !strings.HasPrefix(name, "fat-") {
					continue
				}
				names, size = names+1, size+proto.Size(q)
				if i, err := strconv.Atoi(name[len("fat-"):]); err != nil || i >= given {
					t.Errorf("%s keeps %s, which no admin created", s.name, name)
				}
			}
			if bound := names<<10 + 64<<10; names == 0 || size > bound {
				t.Errorf("%s keeps %d queues with %d bytes of the %d that were said, the bound is %d", s.name, names, size, said, bound)
			}
		}
		c.waitAll(1, c.submitMany(1, 3), time.Minute)
	})
}

// A node without the role work is granted nothing and cannot be a home; an owner accepts
// no grant from a node that was never the home of the queue, and none whose mode or
// expiry differs from what the origin signed (I2, I17).
func TestGrantsFollowTheRules(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, time.Second)
		defer c.close()
		s := c.simMesh.add()
		inv, err := c.nodes[0].node.Pairing.Invite(t.Context(), wire.InviteOptions{Roles: []string{identity.RoleSend}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Joiner(s.config()).WithTicket(t.Context(), inv.Ticket, s.name); err != nil {
			t.Fatal(err)
		}
		s.engine = s.engine.Reopen()
		s.start()
		c.serve(s, time.Second)
		time.Sleep(time.Minute)
		if by := c.waitAll(1, c.submitMany(1, 40), time.Minute); by[3] != 0 {
			t.Errorf("run by %v: a node without the role work was granted tasks", by)
		}
		if _, err := s.node.Queues.Set(t.Context(), "own", wire.QueueSettings{Home: "here"}); !errors.Is(err, wire.ErrDenied) {
			t.Errorf("it creates a queue: %v", err)
		}
		if _, err := c.nodes[0].node.Queues.HandOff(t.Context(), "build", s.name); !errors.Is(err, wire.ErrRefused) {
			t.Errorf("it receives a queue: %v", err)
		}

		c.setQueue(wire.QueueSettings{Paused: new(true)})
		id, err := proto.ParseTaskID(c.submitMany(1, 1)[0])
		if err != nil {
			t.Fatal(err)
		}
		c.waitAccepted(0, []string{id.String()})
		home, owner := c.nodes[0].node, c.nodes[1].node
		if _, err := (queue.Custody{Queues: home.Queues}).Envelope(id, s.node.keys.Peer()); err == nil {
			t.Error("a body is sealed for a node without the role work")
		}
		env, err := (queue.Custody{Queues: home.Queues}).Envelope(id, owner.keys.Peer())
		if err != nil {
			t.Fatal(err)
		}
		h, err := proto.ParseHeader(env.GetHeader())
		if err != nil {
			t.Fatal(err)
		}
		for name, tt := range map[string]struct {
			from   proto.PeerID
			change func(*proto.Grant)
			want   proto.Code
		}{
			"as signed, with all its time":      {home.keys.Peer(), func(*proto.Grant) {}, 0},
			"with another mode":                 {home.keys.Peer(), func(g *proto.Grant) { g.Mode = proto.AtMostOnce }, proto.CodeBadForm},
			"with a longer time":                {home.keys.Peer(), func(g *proto.Grant) { g.LeftMs++ }, proto.CodeBadForm},
			"with a shorter time":               {home.keys.Peer(), func(g *proto.Grant) { g.LeftMs-- }, 0},
			"with no time left":                 {home.keys.Peer(), func(g *proto.Grant) { g.LeftMs = 0 }, 0}, // its owner does not start it
			"with a time below zero":            {home.keys.Peer(), func(g *proto.Grant) { g.LeftMs = -1 }, 0},
			"of another queue":                  {home.keys.Peer(), func(g *proto.Grant) { g.Queue = "other" }, proto.CodeDenied},
			"by a node that was never the home": {c.nodes[2].node.keys.Peer(), func(*proto.Grant) {}, proto.CodeDenied},
		} {
			g := &proto.Grant{Claim: &proto.Claim{Task: id[:]}, Queue: "build", LeftMs: h.NotAfter - h.Created, Envelope: env}
			tt.change(g)
			if got := (queue.Runner{Queues: owner.Queues}).Check(tt.from, g); got != tt.want {
				t.Errorf("%s: %v, want %v", name, got, tt.want)
			}
		}
		c.setQueue(wire.QueueSettings{Paused: new(false)})
		c.waitAll(1, []string{id.String()}, time.Minute)

		c.handOffAndWait(0, 2, nil)
		c.awaitHome(2)
		c.handOffAndWait(2, 0, nil)
		c.awaitHome(0)
		former := c.nodes[2].node.keys.Peer()
		check := func() proto.Code {
			return queue.Runner{Queues: owner.Queues}.Check(former, &proto.Grant{Claim: &proto.Claim{Task: id[:]}, Queue: "build", LeftMs: h.NotAfter - h.Created, Envelope: env})
		}
		c.await(time.Minute, "a grant of a former home to count", func() bool { return check() == 0 })
		c.renewCertificate(t, c.nodes[2], identity.RoleSend)
		if got := check(); got != proto.CodeDenied {
			t.Errorf("a grant by a former home without the role work: %v", got)
		}
	})
}

// awaitHome waits until all nodes have one node as the home of the queue.
func (c *cluster) awaitHome(at int) {
	c.t.Helper()
	c.await(2*time.Minute, "all to know the home", func() bool {
		return !slices.ContainsFunc(c.nodes, func(s *simNode) bool {
			q, err := s.node.Queues.Get(c.t.Context(), "build")
			return err != nil || q.Home != c.nodes[at].name
		})
	})
}

// A home cannot give its queue to a node without the role work: the others reject the
// deed, and the queue keeps its home until an admin seizes it (I17).
func TestHomeCannotGiveAQueueToANodeWithoutTheRole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 4, time.Second)
		defer c.close()
		time.Sleep(time.Minute)
		poor := c.nodes[3].node.keys.Peer()
		c.renewCertificate(t, c.nodes[3], identity.RoleSend)
		c.handOffAndWait(0, 1, nil)
		c.awaitHome(1)
		if err := c.nodes[1].node.Queues.Driver.HandOff(t.Context(), "build", poor); err != nil {
			t.Fatal(err)
		}
		given := c.nodes[1].node.Queues.Driver.QueueStates()["build"]
		if string(given.GetHome()) != string(poor[:]) || given.GetGeneration() != 3 {
			t.Fatalf("the queue was not given away: %v", given)
		}
		payload, err := proto.Encode(nil, &proto.QueueStates{Queues: []*proto.QueueState{given}})
		if err != nil {
			t.Fatal(err)
		}
		for _, at := range []int{0, 2} {
			if err := c.nodes[at].node.Queues.Driver.Receive(poor, &proto.Message{Type: proto.TypeQueues, Payload: payload}); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Minute)
		for _, at := range []int{0, 2} {
			if q, err := c.nodes[at].node.Queues.Get(t.Context(), "build"); err != nil || q.Home != "n1" {
				t.Errorf("n%d has %s as the home: %v", at, q.Home, err)
			}
		}
		if _, err := c.nodes[2].node.Queues.Seize(t.Context(), "build", "n1"); err != nil {
			t.Fatal(err)
		}
		c.awaitHome(2)
		c.waitAll(2, c.submitMany(2, 3), time.Minute)
	})
}

// A member that is not an admin creates a queue with the signature of a connected admin,
// and fails without one: the error suggests what to do, and nothing remains of the
// queue. An admin signs only for the members named in its setting.
func TestMemberMakesAQueueWithAnAdmin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClusterOf(t, newSimMeshWith(t, 3, 1, transporttest.Link{Latency: 10 * time.Millisecond, Mbps: 100, Seed: 1}, func(s *simNode, cfg *Config) {
			if s.place == 2 {
				cfg.Queues.MadeBy = []string{} // also an admin, which signs for no member
			}
		}), time.Second)
		defer c.close()
		member := c.nodes[1].node
		here := wire.QueueSettings{Home: "here"}
		if q, err := member.Queues.Set(t.Context(), "mine", here); err != nil || !q.Here {
			t.Fatalf("with an admin: %v", err)
		}
		if _, err := c.nodes[0].node.Queues.Set(t.Context(), "mine", here); !errors.Is(err, wire.ErrRefused) {
			t.Errorf("the admin creates it too: %v", err)
		}
		c.Partition([]int{1}, []int{0, 2})
		c.await(5*time.Minute, "the member to be alone", func() bool {
			return !member.net.Connected(c.nodes[0].node.keys.Peer()) && !member.net.Connected(c.nodes[2].node.keys.Peer())
		})
		if _, err := member.Queues.Set(t.Context(), "lonely", here); !errors.Is(err, wire.ErrNoAdmin) || !strings.Contains(err.Error(), "queue set lonely --home here") {
			t.Errorf("without an admin: %v", err)
		}
		if _, err := member.Queues.Get(t.Context(), "lonely"); !errors.Is(err, wire.ErrNotFound) {
			t.Errorf("a part of the queue remains: %v", err)
		}
		c.Partition([]int{1, 2}, []int{0})
		c.await(5*time.Minute, "the second admin", func() bool { return member.net.Connected(c.nodes[2].node.keys.Peer()) })
		if _, err := member.Queues.Set(t.Context(), "lonely", here); !errors.Is(err, wire.ErrRefused) || !strings.Contains(err.Error(), "queues.made_by") {
			t.Errorf("with an admin that signs for no member: %v", err)
		}
		c.Heal()
		c.await(5*time.Minute, "the first admin", func() bool {
			_, err := member.Queues.Set(t.Context(), "lonely", here)
			return err == nil
		})
		c.await(time.Minute, "the others to know it", func() bool {
			q, err := c.nodes[2].node.Queues.Get(t.Context(), "lonely")
			return err == nil && q.Home == "n1"
		})
	})
}

// An admin seizes a queue from a connected home, which hands over what it has at once:
// nothing is lost, and nothing runs twice (I3).
func TestQueueIsSeizedFromAConnectedHome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 2*time.Second)
		defer c.close()
		c.setQueue(wire.QueueSettings{Concurrency: new(1)})
		ids := c.submitMany(1, 6)
		time.Sleep(5 * time.Second)
		if _, err := c.nodes[1].node.Queues.Seize(t.Context(), "build", "n0"); !errors.Is(err, wire.ErrDenied) {
			t.Errorf("a node that is not an admin seizes it: %v", err)
		}
		if _, err := c.nodes[2].node.Queues.Seize(t.Context(), "build", "n0"); err != nil {
			t.Fatal(err)
		}
		c.waitAll(1, ids, 5*time.Minute)
		if n := c.reruns(); n != 0 {
			t.Errorf("I6: %d tasks were started again", n)
		}
		for _, s := range c.nodes {
			if q, err := s.node.Queues.Get(t.Context(), "build"); err != nil || q.Home != "n2" {
				t.Errorf("%s has %s as the home: %v", s.name, q.Home, err)
			}
		}
	})
}
