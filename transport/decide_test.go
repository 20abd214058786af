package transport

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	ma "github.com/multiformats/go-multiaddr"
	"pgregory.net/rapid"

	"github.com/balefire/balefire/proto"
)

var timing = Timing{}.withDefaults()

func TestHeartbeat(t *testing.T) {
	const s = time.Second
	type step struct {
		now, heard time.Duration
		busy       bool
		want       heartbeatAction
	}
	tests := []struct {
		name  string
		slack time.Duration
		steps []step
	}{
		{"a quiet connection is probed every ten seconds", 0, []step{
			{9 * s, 0, false, noAction}, {10 * s, 0, false, sendPing}, {12 * s, 11 * s, false, noAction}, {20 * s, 11 * s, false, noAction}, {21 * s, 11 * s, false, sendPing}}},
		{"three unanswered probes close it", 0, []step{
			{10 * s, 0, false, sendPing}, {20 * s, 0, false, sendPing}, {30 * s, 0, false, sendPing}, {40 * s, 0, false, giveUp}}},
		{"with frames in flight it takes seconds", 0, []step{
			{2 * s, 0, true, sendPing}, {4 * s, 0, true, sendPing}, {6 * s, 0, true, sendPing}, {8 * s, 0, true, giveUp}}},
		{"any received data restarts it (S41)", 0, []step{
			{2 * s, 0, true, sendPing}, {4 * s, 0, true, sendPing}, {6 * s, 5 * s, true, noAction}, {7 * s, 5 * s, true, sendPing}, {9 * s, 5 * s, true, sendPing}, {11 * s, 5 * s, true, sendPing}, {13 * s, 5 * s, true, giveUp}}},
		{"work after a long silence is no reason to give up", 0, []step{
			{9 * s, 0, false, noAction}, {9 * s, 0, true, sendPing}, {11 * s, 0, true, sendPing}, {12 * s, 12 * s, true, noAction}}},
		{"answers wait behind what was sent before", 5 * s, []step{
			{2 * s, 0, true, sendPing}, {4 * s, 0, true, sendPing}, {6 * s, 0, true, sendPing}, {8 * s, 0, true, sendPing}, {10 * s, 0, true, sendPing}, {12 * s, 0, true, giveUp}}},
		{"a late answer restarts it", 5 * s, []step{
			{2 * s, 0, true, sendPing}, {4 * s, 0, true, sendPing}, {6 * s, 0, true, sendPing}, {8 * s, 0, true, sendPing}, {10 * s, 9 * s, true, noAction}, {11 * s, 9 * s, true, sendPing}, {13 * s, 9 * s, true, sendPing}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var p heartbeat
			for i, st := range tt.steps {
				every := timing.Idle
				if st.busy {
					every = timing.Busy
				}
				if got := p.next(st.now, st.heard, every, tt.slack); got != st.want {
					t.Fatalf("step %d at %v: %v, want %v", i, st.now, got, st.want)
				}
			}
		})
	}
}

// TestDHTQueriesBackOff checks that the DHT is queried soon for a peer that was just lost
// and rarely for one that has been gone for long, and that a small mesh is not searched
// forever.
func TestDHTQueriesBackOff(t *testing.T) {
	if (redialState{tries: 1}).shouldAskDHT(time.Hour) {
		t.Error("the DHT is queried after one failure")
	}
	for _, tt := range []struct{ absence, within, most time.Duration }{
		{time.Minute, time.Minute, 15 * time.Second}, {time.Hour, time.Hour, maxAskPause}, {24 * time.Hour, time.Hour, maxAskPause},
	} {
		d, last, asked := redialState{tries: 2}, time.Duration(0), 0
		for now := time.Second; now <= tt.absence; now += time.Second {
			if !d.shouldAskDHT(now) {
				continue
			}
			if last > 0 && now-last > tt.most+time.Second {
				t.Errorf("lost for %v: not queried for %v", now, now-last)
			}
			if now > tt.absence-tt.within {
				asked++
			}
			d.asked, last = now, now
		}
		if limit := 30; asked == 0 || asked > limit {
			t.Errorf("lost for %v: queried %d times in the last %v", tt.absence, asked, tt.within)
		}
	}
	var spent time.Duration
	searches := 0
	for ; spent < time.Hour; searches++ {
		spent += searchPause(searches)
	}
	if searches > 7 || searchPause(0) != firstSearch || searchPause(100) != searchEvery {
		t.Errorf("%d searches in an hour in which nobody new is found", searches)
	}
}

func TestPings(t *testing.T) {
	var p pings
	done := make(chan time.Duration, 1)
	payload := p.start(time.Second, done)
	if len(payload) != pingSize {
		t.Errorf("a PING of %d bytes", len(payload))
	}
	if rtt, ok := p.finish(payload, 3*time.Second); !ok || rtt != 2*time.Second || <-done != rtt {
		t.Errorf("round trip %v, %v", rtt, ok)
	}
	if _, ok := p.finish(payload, 4*time.Second); ok {
		t.Error("a PONG counted twice")
	}
	for _, bad := range [][]byte{nil, payload[:8], make([]byte, pingSize)} {
		if _, ok := p.finish(bad, 0); ok {
			t.Errorf("a PONG without a PING counted: %d bytes", len(bad))
		}
	}
	for range 10 * maxPings {
		p.start(0, nil)
	}
	if len(p.sent) > maxPings {
		t.Errorf("%d PINGs are stored", len(p.sent))
	}
}

// TestRedial checks the redial times of S07 and S46.
func TestRedial(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := time.Hour
		r := rapid.Float64Range(0, 0.999).Draw(t, "r")
		d := timing.firstDial(now, r)
		if d.due < now || d.due > now+timing.Redial {
			t.Fatalf("first attempt after %v", d.due-now)
		}
		for range rapid.IntRange(1, 40).Draw(t, "tries") {
			now = d.due + rapid.SampledFrom([]time.Duration{0, shortDial, longDial}).Draw(t, "took")
			d.busy = true
			d = timing.afterFailure(d, now, false, r)
			pause, absent := d.due-now, now-d.lostAt
			if d.busy || pause < timing.Redial/3 || pause > timing.MaxRedial {
				t.Fatalf("pause %v", pause)
			}
			if absent <= time.Minute && pause > 2*time.Second {
				t.Fatalf("a pause of %v after %v", pause, absent)
			}
			hurried, _ := timing.wake(d, now)
			if hurried.due > max(now, hurried.started+timing.Redial) {
				t.Fatalf("wanted, and dialed in %v", hurried.due-now)
			}
		}
	})
	d := redialState{lostAt: 0, busy: true, tries: 9}
	d, end := timing.wake(d, time.Hour)
	if !d.wanted || !end {
		t.Errorf("work that arrives during a long attempt: noted %v, ends it %v", d.wanted, end)
	}
	for _, after := range []time.Duration{0, shortDial, cutEvery} {
		again := d
		again.started = time.Hour
		if _, end := timing.wake(again, time.Hour+after); end != (after == cutEvery) {
			t.Errorf("work %v after an attempt was ended: ends the next one: %v", after, end)
		}
	}
	asked := redialState{busy: true, wanted: true, tries: 3, started: time.Hour - shortDial}
	if asked = timing.afterFailure(asked, time.Hour, false, 0.999); asked.due != time.Hour || asked.tries != 0 {
		t.Errorf("after an attempt of %v during which an address came the next is made in %v", shortDial, asked.due-time.Hour)
	}
	if d, end := timing.wake(redialState{busy: true, waiting: true}, time.Hour); end || d.wanted || d.cut != 0 || !d.urgent {
		t.Errorf("work for a peer whose attempt waits for its turn: %+v, ends it %v", d, end)
	}
	if d = timing.afterFailure(d, time.Hour, true, 0.999); d.due > time.Hour+timing.Redial || d.wanted {
		t.Errorf("tried again after %v despite pending work", d.due-time.Hour)
	}
}

// TestMeetRelay checks which dials a new relay ends, or makes due.
func TestMeetRelay(t *testing.T) {
	const now = time.Hour
	tests := []struct {
		name string
		d    redialState
		ends bool
		due  time.Duration // of the next attempt, afterwards
	}{
		{"it runs, and began without a relay", redialState{busy: true, blind: true, started: now - time.Second/10}, true, now},
		{"it runs, and another one was ended a moment ago", redialState{busy: true, blind: true, started: now, cut: now - time.Second, due: now + time.Minute}, false, now + time.Minute},
		{"it runs, through a relay", redialState{busy: true, started: now - time.Second/10, due: now + time.Minute}, false, now + time.Minute},
		{"it waits for its turn", redialState{busy: true, waiting: true, blind: true, due: now + time.Minute}, false, now + time.Minute},
		{"it failed without a relay", redialState{blind: true, due: now + time.Minute}, false, now + timing.Redial/2},
		{"it failed without a relay, and is due", redialState{blind: true, due: now}, false, now},
		{"it failed, through a relay", redialState{due: now + time.Minute}, false, now + time.Minute},
	}
	for _, tt := range tests {
		d, ends := timing.meetRelay(tt.d, now, 0.5)
		if ends {
			if !d.urgent {
				t.Errorf("%s: the next one waits for its turn", tt.name)
			}
			d = timing.afterFailure(d, now, false, 0.999)
		}
		if ends != tt.ends || d.due != tt.due || d.blind {
			t.Errorf("%s: ended %v, due %v after, blind %v; want %v, %v after", tt.name, ends, d.due-now, d.blind, tt.ends, tt.due-now)
		}
		if _, again := timing.meetRelay(d, now, 0.5); again {
			t.Errorf("%s: another relay ends the next one", tt.name)
		}
	}
}

func TestLinkPause(t *testing.T) {
	for i, want := range []time.Duration{100 * time.Millisecond, 200 * time.Millisecond, 400 * time.Millisecond} {
		if got := linkPause(i+1, 1); got != want {
			t.Errorf("pause %d is %v, want %v", i+1, got, want)
		}
	}
	if got := linkPause(1000, 1); got != 10*time.Second {
		t.Errorf("the longest delay is %v", got)
	}
}

// TestWindow checks for any traffic that the sums are right and the limits hold.
func TestWindow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWindow()
		var now time.Duration
		var sizes []int
		var acked uint64
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			now += time.Duration(rapid.IntRange(0, 1e9).Draw(t, "wait"))
			for range rapid.IntRange(0, 50).Draw(t, "send") {
				if !w.open() {
					break
				}
				n := rapid.IntRange(1, 400<<10).Draw(t, "bytes")
				w.add(n, now)
				sizes = append(sizes, n)
			}
			if w.len() > 0 && rapid.Bool().Draw(t, "ack") {
				acked += uint64(rapid.IntRange(1, w.len()).Draw(t, "acked"))
				w.ack(acked, now)
			}
			sum := 0
			for _, n := range sizes[acked:] {
				sum += n
			}
			if w.bytes != sum || w.len() != len(sizes)-int(acked) || w.first() != acked+1 {
				t.Fatalf("%d frames of %d bytes from %d; want %d of %d from %d", w.len(), w.bytes, w.first(), len(sizes)-int(acked), sum, acked+1)
			}
			if w.tasksMax < minTasks || w.tasksMax > maxTasks || w.bytesMax < minBytes || w.bytesMax > maxBytes {
				t.Fatalf("limits %d, %d", w.tasksMax, w.bytesMax)
			}
		}
	})
}

// TestWindowFollowsThePath simulates a path of a given rate and latency and checks that
// the window fills it, and at most twice over.
func TestWindowFollowsThePath(t *testing.T) {
	const frameSize = 1300
	tests := []struct {
		name    string
		latency time.Duration
		rate    float64 // frames per second
		least   int
		most    int
	}{
		{"a LAN stays at the minimum", time.Millisecond, 50_000, minTasks, minTasks},
		{"a long fat path is filled", 200 * time.Millisecond, 20_000, 4_000, 2*4_000 + 600},
		{"a thin path is not flooded", 200 * time.Millisecond, 200, minTasks, minTasks},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWindow()
			var now, free time.Duration
			type sent struct {
				number uint64
				at     time.Duration // when its Ack arrives
			}
			var way []sent
			for now < 30*time.Second {
				for w.open() {
					w.add(frameSize, now)
					free = max(free, now) + time.Duration(float64(time.Second)/tt.rate)
					way = append(way, sent{w.next - 1, free + tt.latency})
				}
				now = way[0].at
				w.ack(way[0].number, now)
				way = way[1:]
			}
			if w.tasksMax < tt.least || w.tasksMax > tt.most {
				t.Errorf("window of %d frames, want %d to %d", w.tasksMax, tt.least, tt.most)
			}
		})
	}
}

func TestCheckAck(t *testing.T) {
	refusal := func(n uint64, c proto.Code) *proto.Refusal { return &proto.Refusal{Number: n, Code: c} }
	full := proto.CodeFull
	tests := []struct {
		name string
		ack  *proto.Ack
		ok   bool
	}{
		{"all", &proto.Ack{From: 10, UpTo: 20}, true},
		{"one", &proto.Ack{From: 10, UpTo: 10}, true},
		{"with refusals", &proto.Ack{From: 10, UpTo: 12, Refusals: []*proto.Refusal{refusal(10, full), refusal(12, full)}}, true},
		{"nothing", &proto.Ack{}, false},
		{"again", &proto.Ack{From: 9, UpTo: 12}, false},
		{"a gap", &proto.Ack{From: 11, UpTo: 12}, false},
		{"backwards", &proto.Ack{From: 10, UpTo: 9}, false},
		{"what was not sent", &proto.Ack{From: 10, UpTo: 21}, false},
		{"beyond counting", &proto.Ack{From: 10, UpTo: 1 << 63}, false},
		{"a refusal before it", &proto.Ack{From: 10, UpTo: 12, Refusals: []*proto.Refusal{refusal(9, full)}}, false},
		{"a refusal behind it", &proto.Ack{From: 10, UpTo: 12, Refusals: []*proto.Refusal{refusal(13, full)}}, false},
		{"a refusal twice", &proto.Ack{From: 10, UpTo: 12, Refusals: []*proto.Refusal{refusal(11, full), refusal(11, full)}}, false},
		{"refusals out of order", &proto.Ack{From: 10, UpTo: 12, Refusals: []*proto.Refusal{refusal(12, full), refusal(11, full)}}, false},
		{"a refusal that accepts", &proto.Ack{From: 10, UpTo: 12, Refusals: []*proto.Refusal{refusal(11, 0)}}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if err := checkAck(tt.ack, 10, 20); (err == nil) != tt.ok || err != nil && !errors.Is(err, ErrBadAck) {
				t.Errorf("checkAck = %v, want ok = %v", err, tt.ok)
			}
		})
	}
	if err := checkAck(&proto.Ack{From: 1, UpTo: proto.MaxGroup + 1}, 1, 1000); err == nil {
		t.Error("an Ack of more than a group")
	}
}

// TestAckFor checks the numbering: marks are not numbered, types of a newer node are
// refused, and a receiver that refuses a nonexistent message gets no Ack at all.
func TestAckFor(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		first := rapid.Uint64Range(1, 1000).Draw(t, "first")
		var group []*proto.Message
		var a Answer
		want := map[uint64]proto.Code{}
		number, index := first, uint64(0)
		for range rapid.IntRange(1, 40).Draw(t, "messages") {
			typ := rapid.SampledFrom([]proto.MessageType{
				proto.TypeData, proto.TypeResult, proto.TypeCancel, proto.TypeMark, 77}).Draw(t, "type")
			group = append(group, &proto.Message{Type: typ})
			refuse := rapid.Bool().Draw(t, "refuse")
			switch {
			case typ == 77:
				want[number] = proto.CodeUnknownVersion
			case refuse:
				a.Refusals = append(a.Refusals, &proto.Refusal{Number: index, Code: proto.CodeFull})
				if typ != proto.TypeMark {
					want[number] = proto.CodeFull
				}
			}
			if typ != 77 {
				index++
			}
			if typ != proto.TypeMark {
				number++
			}
		}
		a.Refusals = rapid.Permutation(a.Refusals).Draw(t, "order")
		ack, err := ackFor(first, group, a)
		if err != nil {
			t.Fatal(err)
		}
		if ack.GetFrom() != first || ack.GetUpTo() != number-1 || len(ack.GetRefusals()) != len(want) {
			t.Fatalf("%v; want up to %d, refused %v", ack, number-1, want)
		}
		for _, r := range ack.GetRefusals() {
			if want[r.GetNumber()] != r.GetCode() {
				t.Fatalf("frame %d refused with %v", r.GetNumber(), r.GetCode())
			}
		}
		if number > first && checkAck(ack, first, number-1) != nil && number-first <= proto.MaxGroup {
			t.Fatalf("its own Ack is refused: %v", checkAck(ack, first, number-1))
		}
		a.Refusals = append(a.Refusals, &proto.Refusal{Number: index, Code: proto.CodeFull})
		if _, err := ackFor(first, group, a); err == nil {
			t.Fatal("a refusal of a nonexistent message was ignored: its task would count as accepted")
		}
	})
}

func TestGroupBuffer(t *testing.T) {
	q, broken := newGroupBuffer(), errors.New("broken")
	go func() {
		for i := range 2000 {
			if err := q.put(t.Context(), data(i), 10_000); err != nil {
				t.Error(err)
			}
		}
		q.close(broken)
	}()
	next := 0
	for {
		group, err := q.take(t.Context(), nil)
		if err != nil {
			if !errors.Is(err, broken) || next != 2000 {
				t.Errorf("closed with %v after %d", err, next)
			}
			return
		}
		if len(group) > proto.MaxGroup || (len(group)-1)*10_000 > maxGroupBytes {
			t.Fatalf("a group of %d", len(group))
		}
		for _, m := range group {
			if m.GetId() != fmt.Sprint(next) {
				t.Fatalf("task %s at position %d", m.GetId(), next)
			}
			next++
		}
	}
}

func TestUsableAddresses(t *testing.T) {
	announced := []string{"/ip4/127.0.0.1/tcp/1", "/ip4/10.0.0.1/tcp/1", "nonsense", "/ip4/0.0.0.0/tcp/1", "/ip6/::1/udp/1/quic-v1", "/dns4/x.example/tcp/1"}
	tests := []struct {
		remote string
		want   int
	}{{"/ip4/10.0.0.9/tcp/5", 2}, {"/ip4/127.0.0.1/tcp/5", 4}}
	for _, tt := range tests {
		if got := usable(announced, ma.StringCast(tt.remote), proto.MaxAddrs); len(got) != tt.want {
			t.Errorf("from %s: %q", tt.remote, got)
		}
	}
	if got := usable(announced, ma.StringCast("/ip4/127.0.0.1/tcp/5"), 1); len(got) != 1 {
		t.Errorf("more than the limit: %q", got)
	}
}

// TestLifeSign checks that only answers show that a connection lives while some are
// pending, and that they may wait behind what was sent before.
func TestLifeSign(t *testing.T) {
	c := new(conn)
	c.lastHeard.Store(int64(9 * time.Second)) // the other side's PING
	c.work.lastAnswer.Store(int64(2 * time.Second))
	if got := c.lifeSign(); got != 9*time.Second {
		t.Errorf("at rest: %v", got)
	}
	c.inflight.Store(1)
	if got := c.lifeSign(); got != 2*time.Second {
		t.Errorf("with a frame in flight: %v", got)
	}
	c.inflight.Store(0)
	c.work.chunks.Store(3 * unknownRate)
	if got := c.lifeSign(); got != 2*time.Second {
		t.Errorf("with a body in flight: %v", got)
	}
	c.rtt.Store(int64(time.Second))
	if got := c.slack(); got != 5*time.Second {
		t.Errorf("slack %v, want 3s for the bytes and two round trips", got)
	}
}

// Fewer attempts run at once while none is answered, and they last longer. Each answer
// doubles them.
func TestUnansweredDialsAreFewer(t *testing.T) {
	s := dialSlots{most: maxDials}
	running := func() (n int) {
		for {
			if _, busy := s.tryTake(false); busy != nil {
				return n
			}
			n++
		}
	}
	end := func(err error) { s.answered(err); s.put() }
	if n := running(); n != maxDials {
		t.Errorf("%d attempts run at once, want %d", n, maxDials)
	}
	for range maxDials {
		end(fmt.Errorf("dial: %w", context.DeadlineExceeded))
	}
	if least, taken := s.take(t.Context(), false, nil); least != longDial || !taken || running() != 0 {
		t.Errorf("while none is answered an attempt lasts %v (it runs: %v), or another one may run", least, taken)
	}
	end(errors.New("refused"))
	if n := running(); n != 1 {
		t.Errorf("after a refusal %d attempts run, want 1", n)
	}
	for n, all := 1, 1; n < maxDials; {
		end(nil)
		n *= 2
		if all = all - 1 + running(); all != n {
			t.Fatalf("after an answer %d attempts run, want %d", all, n)
		}
	}
}

// An attempt that outlasts its turn does not hold back those that wait, and still counts.
func TestTurnEndsBeforeTheAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := dialSlots{most: 2}
		_, taken := s.take(t.Context(), false, nil)
		s.use(taken, time.Second, func() error {
			time.Sleep(2 * time.Second)
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.running != 0 || s.most != 1 {
				t.Errorf("after its turn %d attempts run, at most %d may", s.running, s.most)
			}
			return nil
		})
		if s.running != 0 || s.most != 2 {
			t.Errorf("after the answer %d attempts run, at most %d may", s.running, s.most)
		}
	})
}

// The attempts that wait through an outage do not begin with its end all at once.
func TestDialsThatWaitedAreSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const waiting = 40
		s := dialSlots{most: 1}
		if _, taken := s.take(t.Context(), false, nil); !taken {
			t.Fatal("no slot")
		}
		var mu sync.Mutex
		var begun []time.Time
		var all sync.WaitGroup
		for range waiting {
			all.Go(func() {
				s.take(t.Context(), false, nil)
				mu.Lock()
				begun = append(begun, time.Now())
				mu.Unlock()
				s.answered(nil)
				s.put()
			})
		}
		time.Sleep(time.Minute)
		s.answered(nil) // the link is back
		s.put()
		all.Wait()
		most := 0
		for i := range begun {
			n := 0
			for _, at := range begun[i:] {
				if at.Sub(begun[i]) <= 100*time.Millisecond {
					n++
				}
			}
			most = max(most, n)
		}
		if took := begun[waiting-1].Sub(begun[0]); most > waiting*3/4 || took > 5*time.Second {
			t.Errorf("%d of %d began within 100 ms, all within %v", most, waiting, took)
		}
	})
}

// An attempt that waits for its turn begins at once when there is work for the peer, and
// ends when a punch wants its place.
func TestAttemptsThatWait(t *testing.T) {
	a := start(t, 1, nil)
	c := proto.Contact{Peer: newTestKeys(9).Peer(), Addrs: []string{"/ip4/127.0.0.1/tcp/1"}} // refused
	for what, then := range map[string]func(){
		"work before it waits": nil,
		"work":                 func() { a.Want(c.Peer) },
		"a punch":              func() { a.redialer.end(t.Context(), c.Peer) },
	} {
		a.peers.mu.Lock()
		a.peers.get(c.Peer).dial = redialState{due: 1, lostAt: 1}
		a.peers.mu.Unlock()
		if due, _ := a.redialer.due([]proto.Contact{c}); len(due) != 1 {
			t.Fatalf("%s: not due", what)
		}
		if then == nil {
			a.Want(c.Peer)
		}
		turns, ended := new(dialTurns), make(chan struct{}) // no turn ever
		go func() {
			a.redialer.redial(t.Context(), c, turns)
			close(ended)
		}()
		if then != nil {
			eventually(t, "an attempt that waits", func() bool {
				a.peers.mu.Lock()
				defer a.peers.mu.Unlock()
				return a.peers.get(c.Peer).redial != nil
			})
			then()
		}
		select {
		case <-ended:
		case <-time.After(patience):
			t.Fatalf("%s: the attempt still waits", what)
		}
		a.peers.mu.Lock()
		if n := a.peers.get(c.Peer); n.redial != nil || n.dial.busy || n.dial.waiting || n.dial.tries != 1 || turns.present.running != 0 {
			t.Errorf("%s: afterwards %+v, %d slots are held", what, n.dial, turns.present.running)
		}
		a.peers.mu.Unlock()
	}
}

// While two nodes punch over QUIC alone, neither dials the other over TCP.
func TestPunchesBeginWithQUIC(t *testing.T) {
	a := start(t, 1, nil)
	p, other := newTestKeys(8).Peer(), newTestKeys(9).Peer()
	tcp, quic := ma.StringCast("/ip4/11.0.0.1/tcp/4001"), ma.StringCast("/ip4/11.0.0.1/udp/4001/quic-v1")
	first, second := a.dialer.quic.start(p), a.dialer.quic.start(p)
	first()
	if a.dialer.mayDial(p, tcp) || !a.dialer.mayDial(p, quic) || !a.dialer.mayDial(other, tcp) {
		t.Errorf("during a punch: TCP %v, QUIC %v; another peer %v", a.dialer.mayDial(p, tcp), a.dialer.mayDial(p, quic), a.dialer.mayDial(other, tcp))
	}
	second()
	if !a.dialer.mayDial(p, tcp) || len(a.dialer.quic.of) != 0 {
		t.Error("after it TCP is not dialed")
	}
}

// The DHT tells some plain addresses of a member and some circuits, and those on loopback
// only if there are no others.
func TestToldAddrs(t *testing.T) {
	addrs := func(s ...string) (all []ma.Multiaddr) {
		for _, a := range s {
			all = append(all, ma.StringCast(a))
		}
		return all
	}
	relay := toLibp2p(newTestKeys(9).Peer()).String()
	circuit := func(ip string) string { return "/ip4/" + ip + "/tcp/4001/p2p/" + relay + "/p2p-circuit" }
	for _, tt := range []struct{ all, want []ma.Multiaddr }{
		{nil, nil},
		{addrs("/ip4/127.0.0.1/tcp/1", circuit("1.1.1.1")), addrs("/ip4/127.0.0.1/tcp/1", circuit("1.1.1.1"))},
		{
			addrs(circuit("1.1.1.1"), circuit("1.1.1.2"), circuit("1.1.1.3"), "/ip4/127.0.0.1/tcp/1", "/ip4/1.0.0.1/tcp/1", "/ip4/1.0.0.2/tcp/1", "/ip4/1.0.0.3/tcp/1", "/ip4/1.0.0.4/tcp/1"),
			addrs("/ip4/1.0.0.1/tcp/1", "/ip4/1.0.0.2/tcp/1", "/ip4/1.0.0.3/tcp/1", circuit("1.1.1.1"), circuit("1.1.1.2")),
		},
	} {
		if got := toldAddrs(tt.all); !slices.EqualFunc(got, tt.want, ma.Multiaddr.Equal) {
			t.Errorf("of %v are told %v, want %v", tt.all, got, tt.want)
		}
	}
}

// TestAllRelaysHaveTheirTurn verifies that at rest a node asks few relays for a round trip at a
// time, and each equally often: all members may be relays.
func TestAllRelaysHaveTheirTurn(t *testing.T) {
	all := make([]*conn, 7)
	for i := range all {
		all[i] = new(conn)
	}
	var n turn
	asked := map[*conn]int{}
	for range all {
		now := n.next(all, othersAsked)
		if len(now) != othersAsked {
			t.Fatalf("%d are asked at once, want %d", len(now), othersAsked)
		}
		for _, c := range now {
			asked[c]++
		}
	}
	for _, c := range all {
		if asked[c] != othersAsked {
			t.Errorf("one is asked %d times, want %d", asked[c], othersAsked)
		}
	}
	if got := n.next(all[:2], othersAsked); len(got) != 2 || got[0] == got[1] {
		t.Errorf("of two are asked %d", len(got))
	}
	if got := n.next(nil, othersAsked); len(got) > 0 {
		t.Errorf("of none are asked %d", len(got))
	}
}
