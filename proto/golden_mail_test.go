package proto

import pb "google.golang.org/protobuf/proto"

// goldenMail returns one message of each type about mail.
func goldenMail() map[string]pb.Message {
	letter, err := AppendLetter(nil, &Letter{Class: High, ID: MailID(seq(0x20, 16)), Created: 1_700_000_000_000, NotAfter: 1_700_604_800_000, Key: []byte("order-7"), Body: []byte("body")})
	if err != nil {
		panic(err)
	}
	letters := append(letter[:len(letter):len(letter)], letter...)
	return map[string]pb.Message{
		"bundle": &Bundle{
			Number: 300, Box: "agent:ceo@alpha", Chain: High, PrevBoot: 1_700_000_000, PrevNumber: 7,
			Runs: []*Run{{Boot: 1_700_000_000, First: 9, Count: 1}, {Boot: 1_700_000_001, First: 1, Count: 1}}, Letters: letters, Receipt: true, Generation: 3,
		},
		"bundled": &Bundled{
			Number: 300, Code: CodeFull, Detail: "the box is full", RetryAfterMs: 500, Boot: 1_700_000_000, UpToNumber: 9,
			Skipped: []*Skipped{{Boot: 1_700_000_000, Number: 9, Code: CodeDenied, Detail: "not allowed"}}, Time: 1_700_000_000_123, Signature: seq(3, 64), Unsigned: []byte{1},
		},
		"bundled_moved": &Bundled{Number: 301, Code: CodeMoved, Home: seq(5, 32), Generation: 4},
		"open":          &Open{Session: 1, Box: "topic:orders", Subscription: "billing", Priority: -1, Credit: 256, Reader: "w1", Room: 1 << 20, Boot: 1_795_212_606, Received: 7},
		"open_end":      &Open{Session: 1, Box: "agent:desk", Credit: 1, End: ReadLeave},
		"opened":        &Opened{Session: 1, Resumed: true},
		"opened_end":    &Opened{Session: 1, Ended: true},
		"opened_moved":  &Opened{Session: 1, Code: CodeMoved, Detail: "handed over", Home: seq(5, 32), Generation: 4},
		"deliver": &Deliver{
			Session: 1, Boot: 1_795_212_606, Letters: letters,
			Deliveries: []*Delivery{{Seq: 88_121, Number: 4, Attempt: 1, LeaseMs: 30_000, Origin: seq(5, 32)}, {Seq: 88_122, Number: 5, Attempt: 2, Redelivered: true, LeaseMs: 1}},
		},
		"settle": &Settle{Ref: 2, Box: "topic:orders", Subscription: "billing", Settlements: []*Settlement{
			{Seq: 88_121, Boot: 1_795_212_606, Delivery: 4, Verb: SettleAck},
			{Seq: 88_122, Boot: 1_795_212_606, Delivery: 5, Verb: SettleNack, DelayMs: 30_000, Reason: "rate limit"},
		}},
		"settled":        &Settled{Ref: 2, Unsettled: []*Unsettled{{Index: 1, Code: CodeStale}}, Extended: []*Extended{{Index: 2, LeaseMs: 30_000}}},
		"settled_inline": &Settled{Ref: 2, Extended: []*Extended{{LeaseMs: 60_000, Inline: true}}},
		"box_part_first": &BoxPart{Box: "agent:desk", Handover: seq(7, 16), Generation: 3, Number: 1, Settings: []byte("settings")},
		"box_part":       &BoxPart{Box: "agent:desk", Handover: seq(7, 16), Generation: 3, Number: 2, Records: [][]byte{[]byte("a"), []byte("b")}, Origins: [][]byte{seq(5, 32)}, Last: true},
		"box_part_drop":  &BoxPart{Box: "agent:desk", Handover: seq(7, 16), Generation: 3, Dropped: true},
		"box_taken":      &BoxTaken{Box: "agent:desk", Handover: seq(7, 16), Number: 2, Code: CodeFull, Detail: "the node has too much mail", State: CopyParts},
		"settled_denied": &Settled{Ref: 2, Code: CodeDenied, Detail: "not allowed"},
	}
}
