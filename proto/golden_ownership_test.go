package proto

import pb "google.golang.org/protobuf/proto"

// goldenOwnership returns one message of each type that nodes send, or store, about which
// node may run a task.
func goldenOwnership(envelope *Envelope, stored *Stored, receipt *Receipt) map[string]pb.Message {
	claim := &Claim{Task: seq(0x20, 16), EpochBoot: 1_700_000_000, EpochCounter: 7, Token: seq(0x40, 16), BootId: seq(0x60, 16), Generation: 2}
	ruling := &Ruling{Task: seq(0x20, 16), EpochBoot: 1, EpochCounter: 2, Code: CodeMoved, Home: seq(3, 32), Generation: 4, State: Success, Token: seq(5, 16), BootId: seq(6, 16)}
	lease := &Lease{
		Task: seq(0x20, 16), Queue: "build", State: Accepted, EpochBoot: 1, EpochCounter: 2, Generation: 3, Owner: seq(4, 32),
		BootId: seq(5, 16), Token: seq(6, 16), Attempts: 1, Abandons: 2, Released: true, Cancel: true, CancelHard: true, Lost: true, Reason: "busy", Digest: seq(7, 32), NotAfterMs: 9,
		Grants: []*Granting{{EpochBoot: 1, EpochCounter: 1, Owner: seq(8, 32), TimeMs: 10, Ended: "lapsed"}}, Moves: []*Receipt{receipt},
	}
	queue := &QueueState{
		Name: "build", Generation: 3, Home: seq(1, 32), Strategy: "least_loaded", Paused: true, Concurrency: 9, NodeConcurrency: 2, Labels: []string{"os=linux"},
		Members: []*QueueMember{{Peer: seq(2, 32), Weight: 3, Priority: 4, Concurrency: 5, Draining: true}}, Kinds: []*KindLimit{{Kind: "llm", Concurrency: 2, NodeConcurrency: 1}},
		LeaseMs: 15_000, OnLostLease: "stop", SeizedFrom: seq(3, 32), ChangedMs: 8, NextHomes: []string{"12D3"},
		Deeds: []*Signed{{Details: []byte("deed"), Signature: seq(6, 64), Signer: seq(3, 32)}},
	}
	return map[string]pb.Message{
		"grant": &Grant{
			Claim: claim, Queue: "build", LeaseMs: 15_000, Mode: AtMostOnce, OnLostLease: "stop", Attempt: 2,
			LeftMs: 3, SettledBoot: 4, SettledCounter: 5, Envelope: envelope,
		},
		"granted":         &Granted{Taken: []*Taken{{Claim: claim, Code: CodeStale, Detail: "seen", SeenBoot: 1, SeenCounter: 2, RetryAfterMs: 3}}},
		"start":           &Start{Claims: []*Claim{claim}},
		"permit":          &Permit{Rulings: []*Ruling{ruling}},
		"renew":           &Renew{Number: 5, Claims: []*Claim{claim}},
		"renew_fetch":     &Renew{Number: 6, Claims: []*Claim{{Task: seq(0x20, 16), EpochBoot: 1, EpochCounter: 2, Token: seq(0x40, 16), BootId: seq(0x60, 16), Generation: 2, Fetch: true}}},
		"ended_stream":    &Outcome{State: Success, BodySize: 5 << 20, BodyDigest: seq(7, 32), LeaseToken: seq(0x40, 16), Object: &BodyRef{Name: seq(8, 32), Key: seq(9, 32), Suite: 1, Packed: true}},
		"renewed":         &Renewed{Number: 5, LeaseMs: 15_000, Rulings: []*Ruling{ruling}, SettledBoot: 1, SettledCounter: 2},
		"release":         &Release{Released: []*Released{{Claim: claim, Cause: CauseFailed, Reason: "exit 75", RetryAfterMs: 6, MaxAttempts: 1}}},
		"release_reply":   &ReleaseReply{Rulings: []*Ruling{ruling}},
		"lease_status":    &Status{Claims: []*Claim{claim}, QueueMoved: true},
		"lease_held":      &StatusReply{Held: []*Held{{Claim: claim, Phase: LeaseStarted}}},
		"handoff":         &Handoff{Lease: lease, Behind: seq(9, 16), BehindGeneration: 3, Task: stored, Blocks: []*LaneBlock{{Queue: "build", Key: "repo", Task: seq(0x20, 16)}}, ClockMs: 1_790_000_000_000},
		"handoff_queue":   &Handoff{Queue: queue},
		"committed":       &Committed{Rulings: []*Ruling{ruling}},
		"queue_states":    &QueueStates{Queues: []*QueueState{queue, {Name: "test", Allow: []string{"role:send"}, Draining: true}}},
		"lease_classed":   &Lease{Task: seq(0x20, 16), Queue: "build", Class: Critical},
		"queue_content":   &Content{Kind: "build", Queue: "build", Options: &TaskOptions{Require: []string{"gpu=yes"}, Prefer: []string{"os=linux", "fast"}}},
		"queue_asked":     &Record{State: Accepted, Kind: "build", Queue: "build", Options: &TaskOptions{Require: []string{"gpu=yes"}, Prefer: []string{"fast"}}},
		"queue_record":    &Record{State: Accepted, Kind: "build", Queue: "build"},
		"handed_off":      &HandedOff{Moved: []*Moved{{Task: seq(0x20, 16), Queue: "build", Home: seq(1, 32), Generation: 2, NotAfterMs: 3, Lease: lease, Behind: seq(5, 16), Key: "repo", Blocked: true}}},
		"queue_ask":       &QueueAsk{Number: 5, Queue: "build", Generation: 2},
		"queue_answer":    &QueueAnswer{Number: 5, Deed: &Signed{Details: []byte("deed"), Signer: seq(1, 32), Signature: seq(2, 64)}, Reason: "no"},
		"deed_confirms":   &Deed{Mesh: seq(1, 16), Queue: "build", Generation: 9, To: seq(2, 32), Root: seq(3, 32)},
		"deed_seizure":    &Deed{Mesh: seq(1, 16), Queue: "build", Generation: 9, To: seq(2, 32), Root: seq(3, 32), Seizure: 4},
		"shared_lanes":    &QueueState{Name: "build", SharedLanes: true},
		"queue_revoked":   &QueueState{Name: "build", Generation: 3, Home: seq(6, 32), Root: seq(7, 32)},
		"queue_ranked":    &QueueState{Name: "build", Generation: 3, Home: seq(6, 32), Root: seq(7, 32), Stated: 2, Seizure: 1},
		"title":           &QueueState{Name: "topic:orders", Generation: 1, Home: seq(6, 32), Kind: TitleTopic, Group: seq(7, 16), ChangedMs: 8, Removed: true},
		"lane_of_origin":  &LaneBlock{Queue: "build", Key: "repo", Origin: seq(1, 32)},
		"moved_lane":      &Moved{Task: seq(0x20, 16), Queue: "build", Key: "repo", Origin: seq(1, 32)},
		"grant_over":      &Granting{EpochBoot: 1, EpochCounter: 2, Owner: seq(1, 32), TimeMs: 3, Ended: "result", EndedMs: 4},
		"handoff_refused": &HandedOff{Refused: []*HandoffRefused{{Task: seq(0x20, 16), Generation: 2, Code: CodeFull, Reason: "no room"}}},
		"stamps":          &Record{State: Pending, Kind: "build", Target: "laptop", StampBootMs: 1, StampMachine: 2, StampDoubted: true, StampMoved: true, DueNamed: true, Options: &TaskOptions{MaxResult: 1 << 20}, SharedLane: true, Code: CodeDenied, Keeper: 1},
		"forgotten":       &Record{State: Pending, Kind: "build", Target: "laptop", SeqBoot: 3, SeqCounter: 4, FirstSeqBoot: 1, FirstSeqCounter: 2},
		"queue_moves":     &Record{State: Cancelled, Kind: "build", Target: "queue:build", MovesTo: "night"},
		"owner_lease": &OwnerLease{
			Claim: claim, Home: seq(1, 32), Queue: "build", Phase: LeaseFinished, Mode: AtLeastOnce, OnLostLease: "continue", Attempt: 1,
			NotAfterMs: 2, NotAfterBootMs: 17, Machine: 18, State: Success, Digest: seq(2, 32), Cause: CauseCrashed, Reason: "power cut", Orphan: true, GrantedBy: seq(3, 32), MaxAttempts: 2,
		},
		"timeline_ask":   &TimelineAsk{Number: 5, Task: seq(0x20, 16), Queue: "build", Limit: 512},
		"timeline_reply": &TimelineReply{Number: 5, More: true, Lines: []*TimelineLine{{Number: 6, TimeMs: 7, Kind: "granted", Task: seq(0x20, 16), Queue: "build", Peer: seq(1, 32), EpochBoot: 1, EpochCounter: 2, Cause: "a cause", Detail: "a detail", State: "FAILED", Code: "FULL"}}},
		"schedule": &Schedule{
			Queue: "build", Name: "nightly", Cron: "30 2 * * *", Zone: "Europe/Paris", Missed: MissedAll, MissedCap: 3,
			Task: &Content{Kind: "shell", Args: []string{"make"}, Delegates: [][]byte{seq(3, 32)}}, TtlMs: 4, Paused: true, MarkMs: 5, FiringMs: 6, Generation: 7,
			Going: seq(1, 32), Delegates: [][]byte{seq(2, 32)}, Gone: true, Fired: 8, Skipped: 9, Last: seq(0x20, 16), LastMs: 10, ChangedMs: 11, Problem: "full",
		},
		"schedule_moved": &Schedule{Queue: "build", Name: "nightly", Generation: 8, Delegates: [][]byte{seq(2, 32)}, Gone: true, Went: seq(3, 32), BornMs: 12},
		"scheduled":      &Scheduled{Queue: "build", Name: "nightly", Generation: 7},
		"scheduled_gone": &Scheduled{Queue: "build", Name: "nightly", Generation: 7, Gone: true},
		"lane_block":     &LaneBlock{Queue: "build", Key: "repo", Task: seq(0x20, 16)},
		"deed":           &Deed{Mesh: seq(1, 16), Queue: "build", Generation: 4, From: seq(2, 32), To: seq(3, 32), Seized: true},
		"home_mark":      &HomeMark{Home: seq(1, 32), Boot: 2, SettledBoot: 3, SettledCounter: 4},
	}
}
