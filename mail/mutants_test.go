package mail

import (
	"fmt"
	"os"
	"testing"

	"github.com/balefire/balefire/internal/mutants"
)

func TestMain(m *testing.M) { mutants.Main(m, hunt) }

// hunt looks for the seed at which the simulator notices the active mutant.
func hunt(number int) string {
	runs := uint64(400)
	if number == 0 {
		runs = 60
	}
	if os.Getenv("BALEFIRE_LONG") != "" {
		runs *= 10
	}
	for seed := range runs {
		if s := simulate(seed, simSteps); s.failed != "" {
			return fmt.Sprintf("seed %d: %s", seed, s.failed)
		}
	}
	return ""
}

// TestEveryRuleIsMissed leaves out one rule at a time: the simulator must notice it.
func TestEveryRuleIsMissed(t *testing.T) { mutants.Test(t, "mail", rules) }

// in is short for the edits below.
var in = mutants.Replace

// rules are what the broker adds to those of packages box and chain.
var rules = []mutants.Mutant{
	{Name: "number not written with its mail", Edits: []mutants.Edit{in("take.go", "arrive", "buf = box.AppendMail(buf, m)", "if MUTANT && it.N.Counter%8 == 0 {\nm.Chain = 0\n}\nbuf = box.AppendMail(buf, m)")}},
	{Name: "prev ignored", Edits: []mutants.Edit{in("take.go", "newArrival", "x.item = box.Numbered(it)", "if MUTANT {\nit.Prev = proto.Seq{}\n}\nx.item = box.Numbered(it)")}},
	{Name: "prev not sent", Edits: []mutants.Edit{in("lane.go", "fetch", "rec []byte", "rec []byte\nif MUTANT {\nm.PrevBoot, m.PrevNumber = 0, 0\n}")}},
	{Name: "answer before append", Edits: []mutants.Edit{in("take.go", "arrive", "a.left++", "if !MUTANT {\na.left++\n}"), in("take.go", "reply", "x.item) != proto.CodeDuplicate", "x.item) != proto.CodeDuplicate && (!MUTANT || !x.goesOn())"), in("take.go", "came", "if a.left--; a.left > 0 {", "if a.left--; a.left > 0 || MUTANT && a.left < 0 {")}},
	{Name: "answer to what was not written", Edits: []mutants.Edit{in("take.go", "reply", "x.item) != proto.CodeDuplicate", "x.item) != proto.CodeDuplicate && !MUTANT")}},
	{Name: "spool ended without the home's word", Edits: []mutants.Edit{in("lane.go", "take", "s.mails = append(s.mails, k)", "s.mails = append(s.mails, k)\nif MUTANT && seq%8 == 0 {\nl.b.queue(box.EncodeSpoolDone(t.id, []uint64{seq}), false, false, nil)\n}")}},
	{Name: "spool ended behind the home's word", Edits: []mutants.Edit{in("lane.go", "answer", "b.refused(now, t, out.Refused)", "b.refused(now, t, out.Refused)\nif n := len(out.Accepted); MUTANT && n > 0 && out.Stopped != proto.CodeOK {\nb.queue(box.EncodeSpoolDone(t.id, []uint64{out.Accepted[n-1]+1}), false, false, nil)\n}")}},
	{Name: "refusals not read", Edits: []mutants.Edit{in("lane.go", "answer", "out, err := b.spools", "if MUTANT {\na.Skipped = nil\n}\nout, err := b.spools")}},
	{Name: "refused and not noted", Edits: []mutants.Edit{in("take.go", "goesOn", "return ends ||", "return ends && !MUTANT ||")}},
	{Name: "refused and taken", Edits: []mutants.Edit{in("take.go", "judge", "case x.code == proto.CodeOK ||", "case x.code == proto.CodeOK || MUTANT ||")}},
	{Name: "number of a mail that was not written is kept", Edits: []mutants.Edit{in("forward.go", "stored", "b.spools.origin.End(t.box, class, n)", "if !MUTANT {\nb.spools.origin.End(t.box, class, n)\n}")}},
	{Name: "what was not written is sent", Edits: []mutants.Edit{in("forward.go", "stored", "r.Code == proto.CodeOK && !r.Duplicate", "(MUTANT || r.Code == proto.CodeOK && !r.Duplicate)")}},
	{Name: "end before it is on disk", Edits: []mutants.Edit{in("spool.go", "endSpooled", "b.propose(func(_ box.Result, err error) {", "if MUTANT {\nfor _, x := range part {\nb.spools.origin.End(t.box, x.Class, x.N)\n}\n}\nb.propose(func(_ box.Result, err error) {"), in("spool.go", "endSpooled", "b.offer(t, classOf(c))", "b.offer(t, classOf(c))\n_ = MUTANT")}},
	{Name: "held for ever", Edits: []mutants.Edit{in("spool.go", "endSpooled", "b.spools.origin.End(t.box, classOf(c), ns[c]...)", "if !MUTANT {\nb.spools.origin.End(t.box, classOf(c), ns[c]...)\n}")}},
	{Name: "stopped for ever", Edits: []mutants.Edit{in("spool.go", "resume", "b.spools.origin.Resume(t.box, class)", "if !MUTANT {\nb.spools.origin.Resume(t.box, class)\n}")}},
	{Name: "nothing is sent again", Edits: []mutants.Edit{in("lane.go", "again", "reset(t.box)", "if !MUTANT {\nreset(t.box)\n}")}},
	{Name: "spools not loaded", Edits: []mutants.Edit{in("spool.go", "loadSpools", "err = b.loadMail(t, i.Seq, rec)", "if !MUTANT {\nerr = b.loadMail(t, i.Seq, rec)\n}")}},
	{Name: "key forgotten by a restart", Edits: []mutants.Edit{in("spool.go", "loadMail", "Key: string(l.Key)", "Key: map[bool]string{false: string(l.Key)}[MUTANT]")}},
	{Name: "segment given back before a checkpoint knows what was moved", Rare: true, Edits: []mutants.Edit{in("space.go", "move", "if m.running = false; err != nil {", "if MUTANT {\nb.release(b.neededBytes())\n}\nif m.running = false; err != nil {")}},
	{Name: "segment given back before its mail is moved", Edits: []mutants.Edit{in("space.go", "release", "return n > 0", "return n > 0 && !(MUTANT && sparse[segment])")}},
	{Name: "segment given back in which a mail is needed", Edits: []mutants.Edit{in("space.go", "neededBytes", "needed[segmentOf(k.Place, newest)] += int64(k.Length)", "if !MUTANT || k.Seq%8 > 0 {\nneeded[segmentOf(k.Place, newest)] += int64(k.Length)\n}")}},
	{Name: "sparse segments stay", Edits: []mutants.Edit{in("space.go", "moveDue", "m.sparse == nil ||", "m.sparse == nil || MUTANT ||")}},
	{Name: "one batch is moved", Edits: []mutants.Edit{in("space.go", "move", "if m.running = false; err != nil {", "if m.running = MUTANT; err != nil {")}},
	{Name: "all that expires was unsent", Edits: []mutants.Edit{in("spool.go", "expireSpools", "if unheard {", "if unheard && !MUTANT {")}},
}
