package node

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport/transporttest"
	"github.com/balefire/balefire/wire"
)

// Two members that accuse the home of a queue once a second do not stop its grants,
// and a person is told who they are (I16).
func TestAccusersAreNamed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, time.Second)
		defer c.close()
		liars := []*transporttest.Forger{c.forger("mallory", "send"), c.forger("zed", "send")}
		home := c.nodes[0].node
		self := home.keys.Peer()
		for _, f := range liars {
			defer f.Close()
		}
		number := uint64(time.Now().UnixNano())
		accuse := func(f *transporttest.Forger) {
			t.Helper()
			by, mesh := f.Peer(), f.Mesh.ID
			details, err := proto.Encode(nil, &proto.Accusation{
				Mesh: mesh[:], Peer: self[:], Accuser: by[:], Incarnation: home.gossip.Summary().Incarnation, Liveness: proto.Suspect,
			})
			if err != nil {
				t.Fatal(err)
			}
			number++
			data, err := proto.Encode(nil, &proto.Rumors{Rumors: []*proto.Rumor{{Accusation: f.Sign("accusation", details)}}, Number: number})
			if err == nil {
				err = f.Publish(data)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		refuted := home.gossip.Summary().Counts.OwnRefutations
		for i := range 60 {
			for _, f := range liars {
				accuse(f)
			}
			time.Sleep(time.Second)
			if i == 10 { // their first accusations are over
				c.waitAll(0, c.submitMany(0, 5), 30*time.Second)
			}
		}
		if n := home.gossip.Summary().Counts.OwnRefutations - refuted; n < 60 {
			t.Errorf("only %d accusations arrived", n)
		}
		if s := home.Views.MeshSummary(t.Context()); s.Isolated || strings.Join(s.Accusers, " ") == "" || !strings.Contains(strings.Join(s.Accusers, " "), "mallory") || !strings.Contains(strings.Join(s.Accusers, " "), "zed") {
			t.Errorf("isolated %v, the accusers are %q", s.Isolated, s.Accusers)
		}
	})
}

// The home of a queue whose other members are all gone considers itself isolated, and
// does the tasks itself (I16).
func TestLastNodeServesItsOwnQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, time.Second)
		defer c.close()
		c.nodes[1].crash()
		c.nodes[2].crash()
		home := c.nodes[0].node
		for range 300 {
			if home.gossip.SelfPaused() {
				break
			}
			time.Sleep(time.Second)
		}
		if s := home.Views.MeshSummary(t.Context()); !s.Isolated || !s.Paused {
			t.Fatalf("it does not consider itself isolated: %+v", s)
		}
		if by := c.waitAll(0, c.submitMany(0, 5), time.Minute); by[0] != 5 {
			t.Errorf("it did %d of 5 tasks itself", by[0])
		}
		b, err := home.Explainer.Why(t.Context(), "queue:build")
		if err != nil || b.Cause.Code != wire.NoteSelfPaused || len(b.Cause.Names) > 0 || b.Cause.Of > 0 {
			t.Errorf("why reports %+v, %v", b.Cause, err)
		}
	})
}
