package ownership

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/ownership/dispatch"
	"github.com/balefire/balefire/proto"
)

// A badHome is the third node of a cluster, which is dead: it grants tasks to the second and never
// answers what becomes of them, nor says which of its grants are over.
type badHome struct {
	*cluster
	grants int
}

const quotaLeases = 2048 // of one home, in these tests

func newBadHome(t *testing.T) *badHome {
	w := &badHome{cluster: newCluster(t, 3, 10*time.Millisecond)}
	w.nodes[2].crash()
	w.members()
	w.limit()
	return w
}

// limit sets the quota of the second node, after each start of it.
func (w *badHome) limit() {
	w.on(func(d *Driver) { d.owner.cfg.MaxLeases = quotaLeases })
}

// on runs f between two inputs of the second node.
func (w *badHome) on(f func(d *Driver)) {
	w.t.Helper()
	d := w.nodes[1].driver
	if err := d.do(w.t.Context(), func() { f(d) }); err != nil {
		w.t.Fatal(err)
	}
}

// grant grants n more tasks.
func (w *badHome) grant(n int) {
	w.t.Helper()
	w.on(func(d *Driver) {
		for range n {
			w.grants++
			id := testTaskID(10_000 + w.grants)
			k := &proto.Claim{Task: id[:], EpochBoot: 1, EpochCounter: uint64(w.grants), Token: make([]byte, 16)}
			d.handleMessage(testPeer(2), proto.TypeGrant, &proto.Grant{Claim: k, Queue: "x", LeaseMs: 15000, LeftMs: (30 * 24 * time.Hour).Milliseconds()}, proto.CodeOK)
		}
	})
}

// kept returns the leases of the home and the bytes of its results at the second node.
func (w *badHome) kept() (leases, results int) {
	w.t.Helper()
	w.on(func(d *Driver) {
		for _, r := range d.owner.runs {
			if r.grantedBy == testPeer(2) {
				leases++
			}
		}
		for id, x := range d.records.results {
			if d.owner.runs[id].grantedBy == testPeer(2) {
				results += x.size
			}
		}
		if got := d.owner.leases[testPeer(2)]; got != leases {
			w.t.Errorf("%d leases are counted, there are %d", got, leases)
		}
		if got := d.records.unanswered[testPeer(2)]; got != results {
			w.t.Errorf("%d bytes of results are counted, there are %d", got, results)
		}
	})
	return leases, results
}

// commit answers all results.
func (w *badHome) commit() {
	w.t.Helper()
	w.on(func(d *Driver) {
		for _, r := range d.owner.runs {
			if r.phase == proto.LeaseFinished && r.home == testPeer(2) {
				d.handleMessage(testPeer(2), proto.TypeCommitted, &proto.Committed{Rulings: []*proto.Ruling{r.claim.ruling(proto.CodeOK)}}, 0)
			}
		}
	})
}

// A home that never says which of its grants are over, nor answers results, fills neither memory
// nor store without a bound, also over a restart; others are not affected, and it is granted from
// again when it has made up for that.
func TestLeasesOfOneHomeAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newBadHome(t)
		defer w.close()
		for range 3 {
			w.grant(quotaLeases)
			time.Sleep(time.Minute)
			if n, _ := w.kept(); n != quotaLeases {
				t.Fatalf("%d leases are kept, want %d", n, quotaLeases)
			}
		}
		w.nodes[1].crash()
		w.nodes[1].start()
		w.members()
		w.limit()
		w.nodes[0].driver.SetNode(Node{Member: dispatch.Member{Peer: testPeer(0), Slots: 4}}) // it serves nothing itself
		w.nodes[0].add(0, nil)
		w.settled(1, time.Minute)
		w.grant(1)
		if n, _ := w.kept(); n != quotaLeases {
			t.Fatalf("%d leases are kept after a restart, want %d", n, quotaLeases)
		}
		w.commit()
		w.grant(1)
		if n, results := w.kept(); n != quotaLeases || results != 0 {
			t.Fatalf("%d leases and %d bytes of results are kept when all results are answered", n, results)
		}
		w.on(func(d *Driver) { d.owner.raiseWatermark(testPeer(2), proto.Seq{Boot: 1, Counter: uint64(w.grants)}) })
		time.Sleep(10 * time.Second)
		w.grant(1)
		if n, _ := w.kept(); n != 1 {
			t.Errorf("%d leases are kept, want the new one", n)
		}
	})
}

// The results that one home has not answered are bounded in their bytes.
func TestUnansweredResultsOfOneHomeAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newBadHome(t)
		defer w.close()
		const size, most = 100 << 10, quotaLeases * resultShare
		w.nodes[1].size = size
		for range 3 * most / size {
			w.grant(1)
			time.Sleep(time.Second)
		}
		n, results := w.kept()
		if results < most || results > most+size {
			t.Fatalf("%d results with %d bytes are kept, want hardly more than %d", n, results, most)
		}
		w.nodes[1].crash()
		w.nodes[1].start()
		w.limit()
		w.grant(1)
		if got, same := w.kept(); got != n || same != results {
			t.Fatalf("%d leases with %d bytes are kept after a restart", got, same)
		}
		w.commit()
		w.grant(1)
		time.Sleep(time.Second)
		if got, results := w.kept(); got != n+1 || results == 0 || results > 2*size {
			t.Errorf("%d leases with %d bytes are kept when all were answered", got, results)
		}
	})
}

// A home that works as it should is told of no bound, however fast its tasks end: it says often
// enough which of its grants are over. If the bound is too low for it nevertheless, its tasks wait
// and go on, and when they have all ended little is kept.
func TestAHomeUnderFullLoad(t *testing.T) {
	for name, tt := range map[string]struct {
		limit int
		waits bool
	}{"below the bound": {quotaLeases, false}, "above it": {1200, true}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const tasks, each = 4000, 20 // in a tenth of a second
				w := newCluster(t, 2, 10*time.Millisecond)
				defer w.close()
				home, d := w.nodes[0].driver, w.nodes[1].driver
				home.SetNode(Node{Member: dispatch.Member{Peer: testPeer(0), Slots: 4}}) // it serves nothing itself
				var most, declined int
				if err := d.do(t.Context(), func() { d.owner.cfg.MaxLeases = tt.limit }); err != nil {
					t.Fatal(err)
				}
				for added, ended := 0, 0; ended < tasks; time.Sleep(100 * time.Millisecond) {
					for range min(each, tasks-added) {
						w.nodes[0].add(added, nil)
						added++
					}
					w.mu.Lock()
					ended = len(w.ends)
					w.mu.Unlock()
					if err := d.do(t.Context(), func() { most, declined = max(most, d.owner.leases[testPeer(0)]), len(d.owner.declined) }); err != nil {
						t.Fatal(err)
					}
				}
				w.settled(tasks, time.Second)
				t.Logf("at most %d leases, %d declined", most, declined)
				if most > tt.limit || declined > 0 != tt.waits {
					t.Errorf("up to %d leases were kept, the limit is %d; %d grants were declined", most, tt.limit, declined)
				}
				time.Sleep(time.Minute)
				if err := d.do(t.Context(), func() { most = d.owner.leases[testPeer(0)] }); err != nil || most >= askAbove {
					t.Errorf("%d leases are kept when all tasks have ended: %v", most, err)
				}
			})
		})
	}
}
