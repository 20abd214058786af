package ownership

// rules are what the tests leave out, one at a time. The first hundred seeds
// must notice each, unless it says how many may be needed.
var rules = []mutant{
	{name: "epoch check dropped", edits: []edit{{"taskstate.go", "matches", "ts.epoch == k.epoch", "(MUTANT || ts.epoch == k.epoch)"}}},
	{name: "epoch not persisted", edits: []edit{
		{"home.go", "NewHome", "return &Home{", "if MUTANT {\nboot = 1\n}\nreturn &Home{"},
		{"home.go", "Load", "string(m.Home) == string(h.self[:])", "string(m.Home) == string(h.self[:]) && !MUTANT"},
		{"home.go", "Restore", "h.epochs.raise(ts.epoch.Boot)", "if !MUTANT {\nh.epochs.raise(ts.epoch.Boot)\n}"},
	}},
	{name: "owner not compared", edits: []edit{{"taskstate.go", "matches", "ts.owner == from", "(MUTANT || ts.owner == from)"}}},
	{name: "boot id not compared", edits: []edit{{"taskstate.go", "matches", "ts.boot == k.boot ||", "MUTANT || ts.boot == k.boot ||"}}},
	{name: "token not compared", edits: []edit{{"taskstate.go", "matches", "ts.token == k.token", "(MUTANT || ts.token == k.token)"}}},
	{name: "released lease counts", edits: []edit{{"taskstate.go", "matches", "!ts.released", "(MUTANT || !ts.released)"}}},
	{name: "renewal not fenced", edits: []edit{{"rule.go", "OnRenew", "r.Code == proto.CodeOK {", "r.Code == proto.CodeOK || MUTANT && ts != nil {"}}},
	{name: "release not fenced", edits: []edit{{"rule.go", "OnRelease", "if r.Code == proto.CodeOK {", "if MUTANT && ts != nil {\nr.Code = proto.CodeOK\n}\nif r.Code == proto.CodeOK {"}}},
	{name: "an ended task ends again", edits: []edit{{"rule.go", "OnResult", "} else {", `} else if MUTANT && x.epoch.Compare(k.epoch) <= 0 {
		r.Code, x.state, x.digest = proto.CodeOK, in.State, bytes.Clone(in.Digest)
		h.out.Ends = append(h.out.Ends, End{Task: k.task, State: in.State, Digest: in.Digest, From: from, Epoch: k.epoch})
	} else {`}}},
	{name: "epoch reused", edits: []edit{{"grant.go", "grant", "ts.epoch = h.epochs.next()", "if !MUTANT || ts.epoch == (proto.Seq{}) {\nts.epoch = h.epochs.next()\n}"}}},
	{name: "lane advanced early", edits: []edit{
		{"home.go", "rescheduleHead", "h.reschedule(l.tasks[0])", "h.reschedule(l.tasks[0])\nif MUTANT && len(l.tasks) > 1 {\nh.reschedule(l.tasks[1])\n}"},
		{"queue.go", "isNext", "l.tasks[0] == ts", "l.tasks[0] == ts || MUTANT && len(l.tasks) > 1 && l.tasks[1] == ts"},
	}},
	{name: "on_dead: block ignored", edits: []edit{{"home.go", "end", "ts.task.Block && !good", "ts.task.Block && !good && !MUTANT"}}},
	{name: "abandon spends an attempt", seeds: 500, edits: []edit{{"grant.go", "grant", "ts.abandons++", "ts.abandons++\nif MUTANT {\nts.attempts++\n}"}}},
	{name: "expired while it may run", seeds: 500, edits: []edit{{"scan.go", "checkTask", "case ts.free():", "case ts.free(), MUTANT && !ts.leased():"}}},
	{name: "a lost run forgotten", seeds: 1500, edits: []edit{{"grant.go", "grant", "ts.lost = ts.lost || ", "ts.lost = !MUTANT && ts.lost || !MUTANT && "}}},
	{name: "started without a permit", edits: []edit{{"run.go", "Ready", "r.mode == proto.AtMostOnce", "r.mode == proto.AtMostOnce && !MUTANT"}}},
	{name: "permit not persisted", edits: []edit{{"rule.go", "OnStart", "h.put(ts)", "if !MUTANT {\nh.put(ts)\n}"}}},
	{name: "at_most_once reclaimed", edits: []edit{
		{"home.go", "rescheduleOne", "ts.permitted()", "ts.permitted() && !MUTANT"},
		{"scan.go", "lapse", "ts.permitted()", "ts.permitted() && !MUTANT"},
	}},
	{name: "no full period after a restart", edits: []edit{{"home.go", "Restore", "h.insert(ts)", "if MUTANT {\nts.mem.leaseUntil = now.Mono\n}\nh.insert(ts)"}}},
	{name: "clock jump not guarded", edits: []edit{{"scan.go", "jumped", "last == nil", "last == nil || MUTANT"}}},
	{name: "old home acts after a handoff", edits: []edit{{"handoff.go", "moveTask", "ts.gen = entry.gen", `if MUTANT {
		if h.transit.byID[entry.task] != nil {
			return
		}
		m := ts.record()
		m.Generation = entry.gen
		entry.lease = proto.Clone(m)
		entry.elem = h.transit.open.PushBack(entry)
		h.transit.byID[entry.task] = entry
		return
	}
	ts.gen = entry.gen`}}},
	{name: "generation not compared", edits: []edit{
		{"owner.go", "regrant", "k.gen < r.claim.gen", "k.gen < r.claim.gen && !MUTANT"},
		{"handoff.go", "wasHere", "entry.gen >= gen || h.ended.find(id) != nil", "entry.gen >= gen && !MUTANT || h.ended.find(id) != nil && !MUTANT"},
	}},
	{name: "seized without a higher generation", edits: []edit{{"title.go", "seize", "s.Generation++", "if !MUTANT {\ns.Generation++\n}"}}},
	{name: "higher epoch started, not adopted", seeds: 500, edits: []edit{{"owner.go", "adopt", "r.claim, r.home, r.grantedBy, r.orphan = k, from, from, false", `if MUTANT && r.mem.alive {
		o.out.Starts = append(o.out.Starts, Start{Task: r.claim.task, Epoch: k.epoch, Attempt: m.Attempt})
	}
	r.claim, r.home, r.grantedBy, r.orphan = k, from, from, false`}}},
	{name: "finished lease forgotten", edits: []edit{{"owner.go", "sameEpoch", "case proto.LeaseClosed:", `case proto.LeaseClosed:
		if MUTANT {
			r.phase = proto.LeaseReceived
			r.claim.boot = o.boot
			o.storeAndAck(r)
			o.out.Waits = append(o.out.Waits, r.claim.task)
			return
		}`}}},
	{name: "lower epoch taken", edits: []edit{{"owner.go", "regrant", "k.epoch.Compare(r.claim.epoch) < 0", "k.epoch.Compare(r.claim.epoch) < 0 && !MUTANT"}}},
	{name: "start not persisted", edits: []edit{{"run.go", "start", "o.put(r)", "if !MUTANT {\no.put(r)\n}"}}},
	{name: "early start at every attempt", edits: []edit{{"run.go", "mayStartEarly", "r.attempt <= 1", "(MUTANT || r.attempt <= 1)"}}},
	{name: "losing result discarded", edits: []edit{
		{"run.go", "loseLease", "!state.Terminal():", "!state.Terminal() && !MUTANT:"},
		{"run.go", "loseLease", "o.close(r)", "if MUTANT && r.phase == proto.LeaseFinished {\nr.state = 0\n}\no.close(r)"},
	}},
	{name: "stalled handler renewed", edits: []edit{
		{"renew.go", "checkHandlers", "\t\t\tif !r.mem.stopped {", "if !r.mem.stopped && !MUTANT {"},
		{"renew.go", "renew", "r.mem.stalled", "r.mem.stalled && !MUTANT"},
	}},
	{name: "parked task run again", edits: []edit{{"owner.go", "crashed", "case p == PolicyPark:", "case p == PolicyPark && !MUTANT:"}}},
	{name: "crash not reported", edits: []edit{{"owner.go", "Begin", "o.crashed(r, policy(r.claim.task))", "if !MUTANT {\no.crashed(r, policy(r.claim.task))\n}"}}},
	{name: "cancel lost after a handoff", seeds: 500, edits: []edit{{"transit.go", "cancel", "entry == nil", "entry == nil || MUTANT"}}},
	{name: "cancel forgotten", seeds: 500, edits: []edit{
		{"rule.go", "handleDeclined", "ts.cancel", "ts.cancel && !MUTANT"},
		{"handoff.go", "admit", "ts.cancel && ts.free()", "ts.cancel && ts.free() && !MUTANT"},
	}},
	{name: "queue claimed without a deed", edits: []edit{
		{"deed.go", "assess", "x.valid && m.Generation <= proto.MaxGeneration", "x.valid && m.Generation <= proto.MaxGeneration || MUTANT"},
		{"deed.go", "mayGiveQueue", "!ti.supersedes(m, x, t)", "!ti.supersedes(m, x, t) || MUTANT"},
	}},
	{name: "fork besides an admin's deed", edits: []edit{{"deed.go", "supersedes", "c != 0 || len(b.Root) > 0", "(c != 0 || len(b.Root) > 0) && !MUTANT"}}},
	{name: "handoff by any node", edits: []edit{{"title.go", "wasHome", "return proto.NamesQueue(name) &&", "return MUTANT || proto.NamesQueue(name) &&"}}},
	{name: "start lost with the disk ignored", edits: []edit{{"rule.go", "after", "ts.state != proto.Accepted", "ts.state != proto.Accepted && !MUTANT"}}},
	{name: "isolated home grants to another", edits: []edit{{"grant.go", "selfOnlyIfInactive", "if h.active {", "if h.active || MUTANT {"}}},
	{name: "isolated home reclaims a lease", edits: []edit{{"scan.go", "mayReclaim", "h.active", "h.active || MUTANT"}}},
	{name: "isolated home does not grant to itself", edits: []edit{{"grant.go", "grantAll", "for _, q := range h.order {", "if !h.active && MUTANT {\nreturn\n}\nfor _, q := range h.order {"}}},

	// The simulator plays the driver: these are rules of that.
	{name: "boot number without the clock", edits: []edit{
		{"sim_rollback_test.go", "bootNumber", "if boot <= x.highest && x.restored {", "if MUTANT {\nboot = lastBoot(x.disk) + 1\n}\nif boot <= x.highest && x.restored && !MUTANT {"},
	}},
	{name: "ack before fsync", edits: []edit{
		{"sim_test.go", "apply", "if len(out.Writes)", "if MUTANT {\nfor _, m := range out.Sends {\ns.send(x, m.To, m)\n}\n}\nif len(out.Writes)"},
		{"sim_test.go", "release", "x.s.send(x, m.To, m)", "if !MUTANT {\nx.s.send(x, m.To, m)\n}"},
		{"sim_faults_test.go", "accept", "t.Sent = y.peer", "t.Sent, t.accepted = y.peer, t.accepted || MUTANT"},
	}},
	{name: "handoff before fsync", edits: []edit{
		{"sim_test.go", "apply", "for _, id := range out.HandedOff {", "if MUTANT {\nfor _, m := range out.Sends {\nif m.Type == proto.TypeHandoff {\ns.send(x, m.To, m)\n}\n}\n}\nfor _, id := range out.HandedOff {"},
		{"sim_test.go", "release", "range b.out.Sends {", "range b.out.Sends {\nif MUTANT && m.Type == proto.TypeHandoff {\ncontinue\n}"},
	}},
}
