package chain

import (
	"cmp"
	"fmt"
	"os"
	"testing"

	"github.com/balefire/balefire/internal/mutants"
)

func TestMain(m *testing.M) { mutants.Main(m, hunt) }

// hunt looks for what notices the active mutant: three tables, then runs of all kinds, then
// those in which nothing goes wrong with disks and the box moves often.
func hunt(number int) string {
	runs := uint64(4000)
	if number == 0 {
		runs = 200
	}
	if os.Getenv("BALEFIRE_LONG") != "" {
		runs *= 10
	}
	if wrong := cmp.Or(earlierHome(), heldMail(), expiredMail()); wrong != "" {
		return wrong
	}
	for i := range runs {
		seed := i
		if i >= 200 {
			seed = 8*i + 4
		}
		if s := simulate(seed, simSteps); s.failed != "" {
			return fmt.Sprintf("seed %d: %s", seed, s.failed)
		}
	}
	return ""
}

// TestEveryRuleIsMissed leaves out one rule of I22 at a time: the tests must notice it.
func TestEveryRuleIsMissed(t *testing.T) { mutants.Test(t, "chain", rules) }

// in is short for the edits below.
var in = mutants.Replace

// rules are the rules of the package, and those of its callers that the simulator plays.
var rules = []mutants.Mutant{
	{Name: "number not written with its mail", Edits: []mutants.Edit{in("sim_home_test.go", "apply", "if first {\n\t\te.answer", "if MUTANT && e.id%8 == 0 {\nreturn\n}\nif first {\n\t\te.answer")}},
	{Name: "number given again after a restart", Edits: []mutants.Edit{in("origin.go", "Load", "o.push(box, class, item{Mail: m, n: n,", "if MUTANT {\ns.counter++\nn = proto.Seq{Boot: o.boot, Counter: s.counter}\n}\no.push(box, class, item{Mail: m, n: n,")}},
	{Name: "boot of an earlier start", Edits: []mutants.Edit{in("sim_test.go", "putBackOrigin", "s.startOrigin()", "if MUTANT {\ns.origin.boot = max(s.origin.boot, 3) - 2\n}\ns.startOrigin()")}},
	{Name: "prev ignored by the home", Edits: []mutants.Edit{in("home.go", "Check", "case it.Prev != proto.Seq{} &&", "case !MUTANT && it.Prev != proto.Seq{} &&")}},
	{Name: "prev not sent", Edits: []mutants.Edit{in("bundle.go", "Next", "if s.next > 0 {", "if s.next > 0 && !MUTANT {")}},
	{Name: "one last for all boots", Rare: true, Edits: []mutants.Edit{in("home.go", "last", "if b := find", "if MUTANT {\nif all := n.chains[class.Index()]; len(all) > 0 && all[len(all)-1].boot > boot {\nreturn 1 << 62\n}\n}\nif b := find")}},
	{Name: "number not compared", Edits: []mutants.Edit{in("home.go", "Check", "case it.N.Counter <= notes.last(c.Class, it.N.Boot):", "case it.N.Counter <= notes.last(c.Class, it.N.Boot) && !MUTANT:")}},
	{Name: "order left to the queue", Edits: []mutants.Edit{in("home.go", "Take", "v := h.Check(c, it)", "if MUTANT {\nit.Prev = proto.Seq{}\n}\nv := h.Check(c, it)")}},
	{Name: "end of what may be sent", Edits: []mutants.Edit{in("origin.go", "Hold", "s.items[at].maySent", "s.items[at].maySent && !MUTANT"), in("origin.go", "End", "(s.items[at].maySent ||", "(s.items[at].maySent && !MUTANT ||")}},
	{Name: "end before it is on disk", Edits: []mutants.Edit{in("origin.go", "Hold", "s.items[at].stored = false", "if MUTANT {\no.targets[box].ended(&s.items[at])\ns.items = slices.Delete(s.items, at, at+1)\nreturn true\n}\ns.items[at].stored = false"), in("sim_test.go", "cancel", "true, \"cancelled\"})", "true, \"cancelled\"})\nif MUTANT {\ns.mails[r.id].ended = \"\"\n}")}},
	{Name: "sent to a new home before the end is on disk", Rare: true, Edits: []mutants.Edit{in("sim_test.go", "learn", "s.syncOrigin()", "if !MUTANT {\ns.syncOrigin()\n}")}},
	{Name: "expiry before it is on disk", Edits: []mutants.Edit{in("origin.go", "over", "it.ending, it.stored = true, it.maySent", "it.ending, it.stored, it.gone = true, it.maySent, MUTANT"), in("origin.go", "expire", "s.soonest = maxTime", "s.soonest = maxTime\nif MUTANT {\ndefer func() {\nfor _, it := range s.items[:s.next] {\nif it.gone {\ns.next--\n}\n}\ns.items = slices.DeleteFunc(s.items, func(it item) bool { return it.gone })\n}()\n}")}},
	{Name: "expiry of what may be sent", Edits: []mutants.Edit{in("origin.go", "end", "if it.maySent {", "if it.maySent && !MUTANT {"), in("origin.go", "over", "Unheard: it.maySent", "Unheard: !MUTANT && it.maySent")}},
	{Name: "sent before it is stored", Edits: []mutants.Edit{in("bundle.go", "Ready", "s.items[s.next].stored", "(MUTANT || s.items[s.next].stored)"), in("bundle.go", "Next", "!it.stored ||", "!it.stored && !MUTANT ||")}},
	{Name: "key in the chain of its class", Edits: []mutants.Edit{in("origin.go", "Add", "lane != nil {", "lane != nil && !MUTANT {")}},
	{Name: "key forgotten with its first mail", Edits: []mutants.Edit{in("origin.go", "ended", "lane.mails == 0", "lane.mails == 0 || MUTANT")}},
	{Name: "key forgotten by a restart", Edits: []mutants.Edit{in("origin.go", "push", `if it.Key == "" {`, `if it.Key == "" || it.maySent && MUTANT {`)}},
	{Name: "answer to all before it", Edits: []mutants.Edit{in("bundle.go", "settle", "skipped := a.Skipped", "if MUTANT {\nat = 0\n}\nskipped := a.Skipped")}},
	{Name: "answer to the whole bundle", Edits: []mutants.Edit{in("bundle.go", "settle", "s.items[at].n.Compare(a.UpTo) <= 0", "(s.items[at].n.Compare(a.UpTo) <= 0 || MUTANT && f.has(s.items[at].n))")}},
	{Name: "refusals not read", Edits: []mutants.Edit{in("bundle.go", "settle", "skipped := a.Skipped", "skipped := a.Skipped\nif MUTANT {\nskipped = nil\n}")}},
	{Name: "refusals not kept", Edits: []mutants.Edit{in("home.go", "refused", "if s.first <= n", "if !MUTANT && s.first <= n")}},
	{Name: "refusals joined over a mail", Edits: []mutants.Edit{in("home.go", "skippedLast", "s.last == b.last &&", "(MUTANT || s.last == b.last) &&")}},
	{Name: "refusals lost with a checkpoint", Edits: []mutants.Edit{in("sim_home_test.go", "start", "h.Home = home", "if MUTANT {\nfor _, boxes := range home.origins {\nfor _, n := range boxes {\nfor _, boots := range n.chains {\nfor i := range boots {\nboots[i].skips = nil\n}\n}\n}\n}\n}\nh.Home = home")}},
	{Name: "ended behind a mail without an answer", Edits: []mutants.Edit{in("bundle.go", "release", "s.items[done].answered; done++ {", "(s.items[done].answered || MUTANT && slices.ContainsFunc(s.items[done:], func(it item) bool { return it.answered })); done++ {")}},
	{Name: "no way back after BUSY", Edits: []mutants.Edit{in("bundle.go", "Answer", "o.rewindSpool(f.box, f.class)", "if !MUTANT {\no.rewindSpool(f.box, f.class)\n}"), in("bundle.go", "Reset", "t != nil {", "t != nil && !MUTANT {"), in("origin.go", "SetHome", "o.rewind(t)", "if !MUTANT {\no.rewind(t)\n}")}},
	{Name: "answer of an earlier home", Edits: []mutants.Edit{
		in("origin.go", "SetHome", "o.rewind(t)", "if MUTANT {\nfor i := range t.spools {\nt.spools[i].next = 0\n}\n} else {\no.rewind(t)\n}"),
	}},
	{Name: "bundle of an earlier generation", Edits: []mutants.Edit{in("sim_home_test.go", "receive", "x.b.Generation != h.gen", "x.b.Generation != h.gen && !MUTANT")}},
	{Name: "handed over without its notes", Edits: []mutants.Edit{in("handover.go", "Merge", "if boxes[box] == nil {", "if boxes[box] == nil || MUTANT {")}},
	{Name: "notes kept of a box that is gone", Edits: []mutants.Edit{in("home.go", "Drop", "delete(boxes, box)", "if !MUTANT {\ndelete(boxes, box)\n}")}},
	{Name: "handed over without one class", Edits: []mutants.Edit{in("handover.go", "Parts", "if len(boots) == 0 &&", "if MUTANT && i == 3 {\ncontinue\n}\nif len(boots) == 0 &&")}},
	{Name: "handed over without what was forgotten", Edits: []mutants.Edit{in("handover.go", "Parts", "one.floor, one.chains[i] = all.floor, boots", "one.floor, one.chains[i] = all.floor, boots\nif MUTANT {\none.floor = 0\n}")}},
	{Name: "what comes later takes the place of what came", Edits: []mutants.Edit{in("handover.go", "Merge", "ours := h.box(origin, box)", "ours := h.box(origin, box)\nif MUTANT {\n*ours = boxNotes{}\n}")}},
	{Name: "notes stay under the name of the copy", Edits: []mutants.Edit{in("handover.go", "Rename", "notes != nil {", "notes != nil && !MUTANT {")}},
	{Name: "the copy keeps its notes, too", Edits: []mutants.Edit{in("handover.go", "Rename", "if delete(boxes, from);", "if MUTANT {\ncontinue\n}\nif delete(boxes, from);")}},
	{Name: "notes that are kept count alone", Edits: []mutants.Edit{in("handover.go", "merge", "b.last, b.notAfter = max(b.last, o.last),", "if MUTANT {\no.last = 0\n}\nb.last, b.notAfter = max(b.last, o.last),")}},
	{Name: "forgotten too early", Edits: []mutants.Edit{in("home.go", "Forget", "over := b.notAfter+proto.Skew.Milliseconds() < now", "over := b.notAfter+proto.Skew.Milliseconds() < now || MUTANT")}},
	{Name: "forgotten for good", Edits: []mutants.Edit{in("home.go", "Forget", "notes.floor = max(notes.floor, b.notAfter)", "if !MUTANT {\nnotes.floor = max(notes.floor, b.notAfter)\n}")}},
}
