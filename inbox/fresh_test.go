package inbox

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store/backlog"
)

// brokenOpener opens nothing.
type brokenOpener struct{}

func (brokenOpener) Content(*proto.Stored) (*proto.Content, error) {
	return nil, errors.New("cannot be opened")
}

// A task that runs soon after it was accepted is not opened again, but one that was here
// before the node started is. The cache forgets both.
func TestFreshTaskIsNotOpenedAgain(t *testing.T) {
	_, spec := scripted(succeed)
	inBubble(t, Config{}, []Spec{spec}, func(f *fixture) {
		first, second := f.task(), f.task()
		f.in.parts.Opener = brokenOpener{}
		f.accept(0, first)
		f.run()
		wait(time.Second)
		f.expect(first, succeeded)
		f.restart()
		f.accept(0, second)
		f.crash()
		f.in.parts.Opener = brokenOpener{}
		f.run()
		wait(time.Second)
		if n := len(f.results.of(second.Header.ID)); n != 0 {
			t.Errorf("%d results of a task that cannot be opened", n)
		}
		if n, bytes := len(f.in.fresh.all), f.in.fresh.bytes; n != 0 || bytes != 0 {
			t.Errorf("%d tasks and %d bytes are cached", n, bytes)
		}
	})
}

// What is asked about a task is not read from the record of its job, which that changes.
func TestFreshRecordBelongsToItsJob(t *testing.T) {
	_, spec := scripted(succeed)
	inBubble(t, Config{}, []Spec{spec}, func(f *fixture) {
		f.in.parts.Ahead = func(proto.PeerID) (time.Duration, bool) { return 0, false }
		a := f.task()
		f.accept(0, a)
		cached := f.in.fresh.stored(backlog.TaskKey(a.Header.ID))
		cached.Record.NotAfterMs, cached.Record.StampMachine = 1, cached.Record.StampMachine+1
		if f.in.WaitsForClock(a.Header.ID) {
			t.Error("it waits for the clock of its origin by its cached record")
		}
	})
}

// The cache is bounded in tasks and in bytes, whatever the content consists of, and counts what
// leaves it.
func TestFreshCacheIsBounded(t *testing.T) {
	for name, content := range map[string]*proto.Content{
		"nothing": {}, "a body": {Body: make([]byte, 64<<10)}, "arguments": {Args: []string{strings.Repeat("a", 64<<10)}},
	} {
		c := &freshCache{all: map[backlog.Key]*fresh{}}
		key := func(i int) backlog.Key { return backlog.TaskKey(proto.TaskID{byte(i >> 8), byte(i)}) }
		for i := range 2 * maxFresh {
			f := &fresh{content: content}
			f.stored.Envelope = &proto.Envelope{Body: make([]byte, 100)} // compressed
			c.put(key(i), f)
			c.put(key(i), f)
		}
		size := proto.Size(content)
		if least := min(maxFreshBytes/(size+100+freshOverhead), maxFresh); len(c.all) != least || c.bytes > maxFreshBytes || c.bytes < least*size {
			t.Errorf("%s: %d tasks, %d bytes, want %d tasks", name, len(c.all), c.bytes, least)
		}
		for i := range 2 * maxFresh {
			if c.stored(key(i)) != nil != (c.take(key(i)) != nil) {
				t.Fatal("what is cached cannot be taken")
			}
		}
		if c.bytes != 0 {
			t.Errorf("%d bytes of nothing", c.bytes)
		}
	}
}
