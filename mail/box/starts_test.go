package box

import (
	"bytes"
	"testing"
	"time"

	"github.com/balefire/balefire/proto"
)

// I23: an acknowledgement of a delivery that this home did not make counts for none that has its
// number now, however often the home has started since.
func TestHandlesOfOtherMails(t *testing.T) {
	first := func(b *bench, id BoxID) Handle {
		return b.deliver(b.attach(id, 0), 1)[0].Handle
	}
	again := func(b *bench) {
		b.apply(b.s.EncodeNewBox(b.s.NewBox(), &BoxSettings{Name: "agent:desk", Kind: Mailbox}))
	}
	for name, give := range map[string]func(b *bench) Handle{
		"removed and made again at once": func(b *bench) Handle {
			again(b)
			b.mustSend(note{box: 2})
			h := first(b, 2)
			b.apply(EncodeRemoveBox(2))
			again(b)
			b.mustSend(note{box: 3})
			return h
		},
		"removed and made again later": func(b *bench) Handle {
			again(b)
			b.mustSend(note{box: 2})
			h := first(b, 2)
			b.apply(EncodeRemoveBox(2))
			b.restart()
			again(b)
			b.mustSend(note{box: 3})
			return h
		},
		"disk put back": func(b *bench) Handle {
			b.mustSend(note{}) // another box
			again(b)
			log := b.log
			b.mustSend(note{box: 2})
			h := first(b, 2)
			b.log = log
			b.restart()
			b.mustSend(note{box: 2})
			return h
		},
		"another home": func(b *bench) Handle {
			again(b)
			b.mustSend(note{box: 2})
			b.restart() // in 2
			b.s = b.replay(New(chainNotes{}), 0)
			b.s.Start(b.now, 5, &b.out)
			b.commit()
			return Handle{1, 3, 1}
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			h := give(b)
			id := b.s.names["agent:desk"]
			for n := range 3 {
				b.restart()
				if n == 1 { // from a checkpoint
					s, err := Load(bytes.NewReader(save(t, b.s)), chainNotes{})
					if err != nil {
						t.Fatal(err)
					}
					b.s = s
				}
				if code := b.settle(Settlement{Box: id, Handle: h, Op: Ack}); code != proto.CodeBadForm {
					t.Fatalf("after %d starts: %v", n+1, code)
				}
				b.want(b.attach(id, 0), 1)
			}
		})
	}
}

// A box with mail of many starts knows the newest of these; a mail of an earlier one comes
// again (I23).
func TestStartsOfABoxAreBounded(t *testing.T) {
	b := newBench(t)
	var given []Handle
	for range 2 * maxStarts {
		given = append(given, Handle{b.mustSend(note{ttl: 24 * time.Hour}), b.s.boot, 1})
		b.restart()
	}
	if n := len(b.s.boxes[1].starts); n != maxStarts {
		t.Errorf("it knows %d starts", n)
	}
	back, err := Load(bytes.NewReader(save(t, b.s)), chainNotes{})
	if err != nil || !bytes.Equal(save(t, back), save(t, b.s)) {
		t.Fatalf("they are not read back: %v", err)
	}
	for _, h := range given {
		want := proto.CodeOK
		if h.Seq > 1 && h.Seq <= maxStarts+2 { // those of 2 to 66 count as of 67
			want = proto.CodeBadForm
		}
		if code := b.settle(Settlement{Handle: h, Op: Ack}); code != want {
			t.Errorf("%v: %v, want %v", h, code, want)
		}
	}
	if b.restart(); len(b.s.boxes[1].starts) != 3 {
		t.Errorf("it knows %v", b.s.boxes[1].starts)
	}
}

// A home knows its newest starts (I23).
func TestStartsOfAHomeAreBounded(t *testing.T) {
	b := newBench(t)
	b.mustSend(note{})
	h := b.want(b.attach(1, 0), 1)[0].Handle
	for boot := range uint64(maxBoots) {
		if n := len(b.s.boots); n != int(boot)+1 {
			t.Fatalf("%d starts are known in %d", n, boot+1)
		}
		b.s.begin(boot + 2)
	}
	if _, err := Load(bytes.NewReader(save(t, b.s)), chainNotes{}); err != nil || len(b.s.boots) != maxBoots {
		t.Errorf("%d starts are known: %v", len(b.s.boots), err)
	}
	if code := b.settle(Settlement{Handle: h, Op: Ack}); code != proto.CodeBadForm {
		t.Errorf("a delivery of the first one: %v", code)
	}
	if i := b.info(); i.Waiting != 1 {
		t.Errorf("%d mails wait", i.Waiting)
	}
}

// An acknowledgment by a handle of an earlier start that is repeated before its record is on disk
// counts, as one that is repeated later does. By that of another delivery it does not.
func TestAckOfAnEarlierStartIsRepeated(t *testing.T) {
	b := newBench(t)
	b.mustSend(note{})
	x := b.attach(1, 0)
	first := b.want(x, 1)[0].Handle
	b.settle(Settlement{Handle: first, Op: Return})
	second := b.want(x, 1)[0].Handle
	b.restart()
	acks := []Settlement{{Box: 1, Handle: second, Op: Ack}, {Box: 1, Handle: second, Op: Ack}, {Box: 1, Handle: first, Op: Ack}, {Box: 1, Handle: second, Op: Return}}
	b.out.Reset()
	b.s.Settle(b.now, acks, &b.out)
	for i, want := range []proto.Code{proto.CodeOK, proto.CodeOK, proto.CodeStale, proto.CodeStale} {
		if got := b.out.Settled[i].Code; got != want {
			t.Errorf("settlement %d: %v, want %v", i, got, want)
		}
	}
	b.commit()
	if i, _ := b.s.Info(1); i.Waiting != 0 {
		t.Errorf("%d mails wait", i.Waiting)
	}
}
