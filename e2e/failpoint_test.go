//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/balefire/balefire/inbox"
	"github.com/balefire/balefire/receive"
	"github.com/balefire/balefire/submit"
	"github.com/balefire/balefire/submit/redrive"
	"github.com/balefire/balefire/wire"
)

// points are the moments at which a node can be killed, whether the home or the owner of
// a task passes them, and whether the body of a task or of its result is then a file whose
// record is about to be written or was written last: before and after every commit that a task
// needs.
var points = []struct {
	name string
	home bool
	body bool
}{
	{submit.PointSealed, true, true},
	{submit.PointStored, true, true},
	{receive.PointReceive, true, true}, // a result
	{receive.PointAccepted, true, true},
	{receive.PointReceive, false, true}, // a task
	{receive.PointAccepted, false, false},
	{inbox.PointAccept, false, true},
	{inbox.PointAccepted, false, true},
	{inbox.PointStart, false, false},
	{inbox.PointStarted, false, false},
	{inbox.PointFinish, false, true},
	{submit.PointResult, false, true},
	{inbox.PointFinished, false, true},
	{inbox.PointSettle, false, false},
	{inbox.PointSettled, false, true},
	// redrive.PointRedriven is passed only on an operator's command: see TestKillAfterRedrive.
}

// TestKillAtNamedPoints checks I1, I6, I8 and S01 at every step between two
// commits: the process dies at its n-th visit of the point, and every acknowledged
// task runs once. At the points around the file of a large body, the record that refers to it
// and the end of that record, it dies with large bodies too, and a sweep follows each
// death: every body arrives, and after the last sweep none is left but those of the results. The
// short form visits each point once with each size and alternates between the stores.
func TestKillAtNamedPoints(t *testing.T) {
	for e, engine := range engines {
		t.Run(engine, func(t *testing.T) {
			dir := filepath.Join(shortDir(t), "b")
			a, b := pairOf(t, config{engine: engine}, config{engine: engine, dir: dir, kinds: marking("copy", filepath.Join(dir, "marks"), "cat; ")})
			for i, pt := range points {
				side, who := b, "owner"
				if pt.home {
					side, who = a, "home"
				}
				for _, visit := range either([]int{1}, []int{1, 4}) {
					if long || i%len(engines) == e {
						t.Run(fmt.Sprintf("%s %s %d", who, pt.name, visit), func(t *testing.T) { dieAt(t, a, b, side, pt.name, visit, false) })
					}
					if pt.body && (long || i%len(engines) != e) {
						t.Run(fmt.Sprintf("%s %s %d with large bodies", who, pt.name, visit), func(t *testing.T) { dieAt(t, a, b, side, pt.name, visit, true) })
					}
				}
			}
		})
	}
}

func dieAt(t *testing.T, a, b, side *machine, point string, visit int, large bool) {
	p := newAcknowledged()
	before := p.checkMarks(t, b)
	side.stop()
	side.start(fmt.Sprintf("BALEFIRE_FAILPOINT=%s:%d", point, visit))
	for i, began := 0, time.Now(); side.alive() && time.Since(began) < testTimeout; i++ {
		if n := 1 + i%3; large {
			p.submitCopies(t.Context(), a, n)
		} else {
			p.submit(t.Context(), a, n, wire.Request{Target: "b", Kind: "mark"})
		}
		if i%10 == 9 { // let sent tasks settle, so that marks are due
			a.until("the tasks end or the failpoint is reached", func() bool { return !side.alive() || a.isIdle() })
			pause(150 * time.Millisecond)
		}
	}
	side.waitDeath()
	swept := side.addStray()
	side.start()
	swept()
	p.checkAllEnd(t, a, "SUCCESS")
	a.waitIdle()
	if again := p.checkMarks(t, b); side == a && again > before {
		t.Errorf("I6: %d tasks ran twice although their owner stayed alive", again-before)
	}
	if large {
		p.checkCopies(t, a)
		both(func(m *machine) { m.stop(); m.start() }, a, b)
		checkBodies(t, a, b)
	}
}

// TestKillAfterRedrive checks S17 at the point that only a redrive passes: the
// process dies when the new task is on disk but the old one does not name it yet. A second
// request returns the same new task, which runs once.
func TestKillAfterRedrive(t *testing.T) {
	for _, engine := range engines {
		t.Run(engine, func(t *testing.T) {
			repaired, ran := filepath.Join(shortDir(t), "repaired"), filepath.Join(shortDir(t), "ran")
			weak := fmt.Sprintf("  - {kind: weak, exec: [/bin/sh, -c, 'test -e %s && echo ran >> %s || exit 65'], allow: ['role:send']}\n", repaired, ran)
			a, b := pairOf(t, config{engine: engine}, config{engine: engine, kinds: weak})
			for i, key := range []string{"", "k"} {
				old := newAcknowledged()
				if errs := old.submit(t.Context(), a, 1, wire.Request{Target: "b", Kind: "weak", Key: key}); errs != nil {
					t.Fatal(errs)
				}
				old.checkAllEnd(t, a, "FAILED")
				id := old.all()[0]
				a.stop()
				// Repair before the redrive: the new task may be sent and run before the
				// process dies.
				if err := os.WriteFile(repaired, nil, 0o600); err != nil {
					t.Fatal(err)
				}
				a.start("BALEFIRE_FAILPOINT=" + redrive.PointRedriven + ":1")
				if s, err := a.Retry(t.Context(), id); err == nil {
					t.Fatalf("key %q: the point was not passed: %+v", key, s)
				}
				a.died()
				a.start()
				s, err := a.Retry(t.Context(), id)
				if err != nil || !s.Known {
					t.Fatalf("key %q: second request: %+v, %v", key, s, err)
				}
				anew := newAcknowledged()
				anew.add(s.ID)
				anew.checkAllEnd(t, a, "SUCCESS")
				a.waitIdle()
				lines, err := os.ReadFile(ran)
				if err != nil || strings.Count(string(lines), "ran") != i+1 {
					t.Errorf("I6: key %q: %d tasks ran after %d redrives, %v", key, strings.Count(string(lines), "ran"), i+1, err)
				}
				if err := os.Remove(repaired); err != nil {
					t.Fatal(err)
				}
			}
			if !b.alive() {
				t.Error("the owner has exited")
			}
		})
	}
}

// TestKillAfterMove checks I11 at the points that a move to another queue passes: the
// process dies when the old task is cancelled but has no successor, or has one that it does
// not name yet. The next start creates the one successor without being asked; a second
// request returns it, and it runs once.
func TestKillAfterMove(t *testing.T) {
	for _, engine := range engines {
		for _, point := range []string{redrive.PointMoving, redrive.PointRedriven} {
			t.Run(engine+"/"+strings.ReplaceAll(point, "/", "-"), func(t *testing.T) {
				a := newMachine(t, "a", true, config{engine: engine})
				a.start()
				for _, name := range []string{"day", "night"} { // paused: none runs before the process dies
					if _, err := a.SetQueue(t.Context(), name, wire.QueueSettings{Home: "here", Paused: new(true)}); err != nil {
						t.Fatal(err)
					}
				}
				old := newAcknowledged()
				if errs := old.submit(t.Context(), a, 1, wire.Request{Target: "queue:day", Kind: "mark", Key: "k"}); errs != nil {
					t.Fatal(errs)
				}
				id := old.all()[0]
				a.stop()
				a.start("BALEFIRE_FAILPOINT=" + point + ":1")
				if s, err := a.MoveTask(t.Context(), id, "night"); err == nil {
					t.Fatalf("the point was not passed: %+v", s)
				}
				a.died()
				a.start()
				old.checkAllEnd(t, a, "CANCELLED")
				var as string
				a.until("the task has a successor", func() bool {
					got, err := a.Task(t.Context(), id)
					as = got.RedrivenAs
					return err == nil && as != ""
				})
				if s, err := a.MoveTask(t.Context(), id, "night"); err != nil || s.ID != as {
					t.Errorf("second request: %+v, %v, want %s", s, err, as)
				}
				if _, err := a.SetQueue(t.Context(), "night", wire.QueueSettings{Paused: new(false)}); err != nil {
					t.Fatal(err)
				}
				anew := newAcknowledged()
				anew.add(as)
				anew.checkAllEnd(t, a, "SUCCESS")
				a.waitIdle()
				if marks := a.readMarks(); len(marks) != 2 || marks[0].task != as {
					t.Errorf("I6: %+v, want one run of %s", marks, as)
				}
			})
		}
	}
}
