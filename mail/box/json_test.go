package box

import (
	"slices"
	"testing"
)

// A box for JSON gives nobody a mail with another body; one that is not in the letter is not read.
func TestNotJSON(t *testing.T) {
	b := newBench(t)
	b.mustSend(note{body: "text"})
	b.apply(EncodeBox(1, &BoxSettings{Name: "agent:ceo", Kind: Mailbox, JSON: true}))
	for _, n := range []note{{body: `{"a":[1,"x"]}`}, {body: " 7\n"}, {object: 1}} {
		b.mustSend(n)
	}
	if n := b.info().Waiting; n != 4 {
		t.Errorf("%d mails wait, want 4", n)
	}
	for i, body := range []string{"", "text", `{"a":1} {"b":2}`, `{"a":1`, "\xff"} {
		seq := b.mustSend(note{body: body})
		dead := slices.Collect(b.s.DeadLetters(1, 0, 0))
		if !slices.Equal(b.ends(), []MailState{Dead}) || len(b.out.Bounces) != 1 || len(dead) != i+1 || dead[i].Seq != seq || dead[i].Cause.String() != "not_json" || dead[i].At != b.now.Wall {
			t.Errorf("%q: ends %v, dead %+v", body, b.ends(), dead)
		}
	}
	if n := b.info().Waiting; n != 4 {
		t.Errorf("%d mails wait, want 4", n)
	}
	b.apply(EncodeBox(1, &BoxSettings{Name: "agent:ceo", Kind: Mailbox}))
	b.mustSend(note{body: "text"})
	if n := b.info().Waiting; n != 5 {
		t.Errorf("%d mails wait in a box for all, want 5", n)
	}
}

// In a topic for JSON a mail with another body is a dead letter of each subscription that reads its
// subject.
func TestNotJSONInATopic(t *testing.T) {
	b := newBench(t)
	topic := b.s.NewBox()
	b.apply(EncodeBox(topic, &BoxSettings{Name: "topic:orders", Kind: Topic, JSON: true}))
	for id, filter := range map[SubID]string{1: "eu.>", 2: "us.>"} {
		b.apply(EncodeSub(topic, id, &SubSettings{Name: filter[:2], Filter: filter}, Start{}))
	}
	b.mustSend(note{box: topic, subject: "eu.x", body: "text"})
	for id, want := range map[SubID]int{1: 1, 2: 0} {
		if dead := slices.Collect(b.s.DeadLetters(topic, id, 0)); len(dead) != want {
			t.Errorf("subscription %d has the dead letters %+v", id, dead)
		}
	}
}
