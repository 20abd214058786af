package mail

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store/ledger"
)

// subscribe begins to read a new subscription of a topic.
func (f *fixture) subscribe(topic, sub string, from box.Start, credit int) *Session {
	f.t.Helper()
	if err := f.SetSub(f.t.Context(), topic, box.SubSettings{Name: sub}, from); err != nil {
		f.t.Fatal(err)
	}
	s, err := f.Read(f.t.Context(), Reading{Box: topic, Subscription: sub, Reader: sub, Credit: credit})
	if err != nil {
		f.t.Fatal(err)
	}
	return s
}

// takeNext reads and acknowledges the next mail of a subscription, within a minute.
func (f *fixture) takeNext(s *Session, topic, sub string) string {
	ctx, cancel := context.WithTimeout(f.t.Context(), time.Minute)
	defer cancel()
	got, err := s.Next(ctx, 1)
	if err != nil {
		f.t.Errorf("%s: %v", sub, err)
		return ""
	}
	if done, err := f.Settle(ctx, topic, sub, []Settlement{{Handle: got[0].Handle, Op: box.Ack}}); err != nil || done[0].Code != proto.CodeOK {
		f.t.Errorf("%s: %+v, %v", sub, done, err)
	}
	l, err := proto.ParseLetter(got[0].Letter)
	if err != nil {
		f.t.Error(err)
		return ""
	}
	text, _, _ := strings.Cut(string(l.Body), ":")
	return text
}

// A subscription that begins with the first of many old mails, which only the disk still has, does
// not disturb one that reads what is new: while a read of the disk takes any time, each new mail is
// delivered and acknowledged. The one that was behind then gets every mail, in order.
func TestCatchUpDisturbsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const topic, old, fresh = "topic:orders", 1200, 50
		f := newFixtureOn(t, Config{}, ledger.Config{Segment: 2 << 20, Ring: 256 << 10, Reserve: -1})
		defer func() { f.stop() }()
		reading, release := make(chan struct{}), make(chan struct{})
		held := false // the reads of old mail are those of one goroutine
		f.late = &lateLog{read: func(record []byte) {
			if bytes.Contains(record, []byte("old ")) && !held {
				held = true
				close(reading)
				<-release
			}
		}}
		f.restart()
		if err := f.SetBox(t.Context(), box.BoxSettings{Name: topic, Kind: box.Topic}); err != nil {
			t.Fatal(err)
		}
		padding := ":" + strings.Repeat("x", 1<<10)
		for i := range old {
			f.send(topic, fmt.Sprint("old ", i)+padding)
		}
		live := f.subscribe(topic, "live", box.Start{}, 4)
		behind := f.subscribe(topic, "behind", box.Start{At: box.StartFirst}, 16)
		caughtUp := make(chan struct{})
		go func() {
			defer close(caughtUp)
			for i := range old + fresh {
				want := fmt.Sprint("old ", i)
				if i >= old {
					want = fmt.Sprint("new ", i-old)
				}
				if got := f.takeNext(behind, topic, "behind"); got != want {
					t.Errorf("%q is behind's mail %d, want %q", got, i, want)
					return
				}
			}
		}()
		<-reading
		for i := range fresh {
			f.send(topic, fmt.Sprint("new ", i)+padding)
			if got, want := f.takeNext(live, topic, "live"), fmt.Sprint("new ", i); got != want {
				t.Errorf("%q is the live mail %d, want %q", got, i, want)
			}
		}
		close(release)
		<-caughtUp
	})
}
