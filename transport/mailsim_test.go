package transport_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport"
	"github.com/balefire/balefire/transport/transporttest"
)

// A mailModel is what one node sends to another as mail: numbered messages, sent again from
// the first that was not taken whenever a stream is lost.
type mailModel struct {
	t    *testing.T
	from int
	size func(n int) int // bytes of message n

	mu      sync.Mutex
	total   int // messages to send, numbered from 1
	sent    int // the last one that was queued on the current stream
	taken   int // the last one that was received
	streams int
	hold    chan struct{} // the receiver waits for it; nil: it takes mail at once
}

// run sends on a link until it ends.
func (m *mailModel) run(ctx context.Context, l *transport.Link) {
	for ctx.Err() == nil {
		s, err := l.Mail(ctx)
		if errors.Is(err, transport.ErrNoMail) {
			m.t.Error(err)
			return
		}
		if err != nil {
			continue // ErrLinkDown: ctx ends
		}
		m.mu.Lock()
		m.streams++
		m.sent = m.taken
		m.mu.Unlock()
		for m.sendNext(ctx, s) == nil {
		}
	}
}

// sendNext sends the next message, or waits for one.
func (m *mailModel) sendNext(ctx context.Context, s *transport.MailStream) error {
	m.mu.Lock()
	next, more := m.sent+1, m.sent < m.total
	m.mu.Unlock()
	if !more {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.Done():
			return transport.ErrLinkDown
		case <-time.After(10 * time.Millisecond): // virtual
			return nil
		}
	}
	err := s.Send(ctx, &proto.Message{Type: proto.TypeBundle, Id: strconv.Itoa(next), Payload: make([]byte, m.size(next))})
	if err == nil {
		m.mu.Lock()
		m.sent = next
		m.mu.Unlock()
	}
	return err
}

// receive checks that nothing is left out.
func (m *mailModel) receive(ctx context.Context, _ proto.PeerID, msg *proto.Message) error {
	m.mu.Lock()
	hold := m.hold
	m.mu.Unlock()
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	n, err := strconv.Atoi(msg.GetId())
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case err != nil || n > m.taken+1:
		m.t.Errorf("message %s after %d", msg.GetId(), m.taken)
	case len(msg.GetPayload()) != m.size(n):
		m.t.Errorf("message %d has %d bytes", n, len(msg.GetPayload()))
	case n == m.taken+1:
		m.taken = n
	}
	return nil
}

func (m *mailModel) add(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.total += n
}

func (m *mailModel) left() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.total - m.taken
}

func (m *mailModel) queued() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.sent
}

// streamed returns how many streams were opened.
func (m *mailModel) streamed() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.streams
}

// setHold makes the receiver wait for c; nil: for nothing.
func (m *mailModel) setHold(c chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.hold = c
}

// mailSizes are those of small and large bundles.
func mailSizes(n int) int { return []int{100, 30_000, 200_000}[n%3] }

// mailBetween makes nodes 0 and 1 send each other mail, and returns the models by sender.
func mailBetween(t *testing.T) (models [2]*mailModel, tune func(*simNode, *transport.Config)) {
	for i := range models {
		models[i] = &mailModel{t: t, from: i, size: mailSizes}
	}
	return models, func(n *simNode, cfg *transport.Config) {
		if n.id > 1 {
			return
		}
		cfg.Mail = models[1-n.id].receive
		n.onLink = func(ctx context.Context, l *transport.Link) {
			if other, _ := n.peerOf(l.Peer()); other == 1-n.id {
				models[n.id].run(ctx, l)
			}
		}
	}
}

// offenses counts those that r reports.
func offenses(t *testing.T, r *prometheus.Registry) (total float64) {
	t.Helper()
	all, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		if f.GetName() == "balefire_transport_violations_total" {
			for _, m := range f.GetMetric() {
				total += m.GetCounter().GetValue()
			}
		}
	}
	return total
}

// Mail arrives in order, both ways at once, on good and bad paths, and after a cut.
func TestMailArrivesInOrder(t *testing.T) {
	for _, loss := range []float64{0, 0.05} {
		t.Run(fmt.Sprintf("%.0f%%", loss*100), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				models, tune := mailBetween(t)
				m := newSimWith(t, 2, transporttest.Link{Latency: 20 * time.Millisecond, Mbps: 50, Loss: loss, Seed: 3}, tune)
				defer m.close()
				for _, model := range models {
					model.add(300)
				}
				done := func() bool { return models[0].left() == 0 && models[1].left() == 0 }
				time.Sleep(2 * time.Second)
				if loss == 0 && models[0].left() == 300 {
					t.Error("nothing arrived")
				}
				m.Unplug(1)
				time.Sleep(time.Minute)
				m.Heal()
				t.Logf("the rest: %v", m.await(5*time.Minute, "all mail", done))
				if models[0].streamed() < 2 {
					t.Error("the cut did not close the stream")
				}
			})
		})
	}
}

// A receiver that takes no mail for long blocks who sends it, within a bound, and nothing
// else: the same link carries tasks, and no side takes offense.
func TestSlowMailReceiverDelaysOnlyMail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		models, tune := mailBetween(t)
		mail := models[0]
		hold, reg := make(chan struct{}), prometheus.NewRegistry()
		mail.setHold(hold)
		m := newSimWith(t, 2, transporttest.Link{Latency: 20 * time.Millisecond, Mbps: 100}, func(n *simNode, cfg *transport.Config) {
			tune(n, cfg)
			if n.id == 1 {
				cfg.Registerer, cfg.OwnMetrics = reg, true
			}
		})
		defer m.close()
		mail.add(300)
		models[1].add(30) // the other way
		const inFlight = 1 << 20
		m.await(time.Minute, "the window is full", func() bool { return mail.queued() > 10 })
		time.Sleep(10 * time.Minute) // more than any deadline
		queued, bytes := mail.queued(), 0
		for n := range queued {
			bytes += mailSizes(n + 1)
		}
		if bytes < inFlight || bytes > 3*inFlight || mail.left() != 300 {
			t.Errorf("%d bytes are queued, %d of 300 messages are left", bytes, mail.left())
		}
		m.nodes[0].addTasks(1000)
		m.await(5*time.Second, "tasks beside the blocked mail", func() bool { return m.nodes[0].left() == 0 })
		if rtt, err := m.nodes[0].Ping(t.Context(), m.nodes[1].Peer()); err != nil || rtt > time.Second {
			t.Errorf("a ping takes %v, %v", rtt, err)
		}
		if models[1].left() > 0 {
			t.Error("the mail of the other side is blocked too")
		}
		mail.setHold(nil)
		close(hold)
		m.await(time.Minute, "the mail", func() bool { return mail.left() == 0 })
		if mail.streamed() != 1 || m.nodes[0].links.Load() != 1 {
			t.Errorf("%d mail streams on %d links, want one", mail.streamed(), m.nodes[0].links.Load())
		}
		if n := offenses(t, reg); n > 0 {
			t.Errorf("%v offenses", n)
		}
		m.check(1000)
	})
}

// Mail moves to a direct path with the tasks.
func TestMailMovesToDirectPath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		models, tune := mailBetween(t)
		m := newReachSimWith(t, 3, transporttest.Cone, wan, tune)
		defer m.close()
		done := func() bool { return models[0].left() == 0 && models[1].left() == 0 && m.nodes[0].left() == 0 }
		m.await(20*time.Second, "first contact", func() bool { return m.nodes[0].Connected(m.nodes[1].Peer()) })
		relayed := !m.direct(0, 1)
		m.await(30*time.Second, "a direct path", func() bool {
			for _, model := range models {
				model.add(1)
			}
			m.nodes[0].addTasks(1)
			return m.direct(0, 1) && m.direct(1, 0)
		})
		m.await(10*time.Second, "the mail", done)
		carried := m.nodes[2].Reach().Service.Bytes
		for _, model := range models {
			model.add(100)
		}
		m.await(10*time.Second, "mail on the direct path", done)
		if n := m.nodes[2].Reach().Service.Bytes - carried; n > 1<<20 {
			t.Errorf("the relay carried %d more bytes", n)
		}
		if !relayed || models[0].streamed() < 2 {
			t.Errorf("relayed at first: %v, %d mail streams", relayed, models[0].streamed())
		}
	})
}

// A node stops at once while mail is blocked on both sides; otherwise the bubble would not
// end.
func TestStopWhileMailIsBlocked(t *testing.T) {
	for stopped := range 2 {
		synctest.Test(t, func(t *testing.T) {
			models, tune := mailBetween(t)
			m := newSimWith(t, 2, transporttest.Link{Latency: 20 * time.Millisecond}, tune)
			defer m.close()
			for _, model := range models {
				model.setHold(make(chan struct{}))
				model.add(100)
			}
			m.await(time.Minute, "both are blocked", func() bool { return models[0].queued() > 10 && models[1].queued() > 10 })
			time.Sleep(time.Second)
			began := m.clock.Mono()
			m.nodes[stopped].stop()
			if took := m.clock.Mono() - began; took > time.Second {
				t.Errorf("node %d stopped after %v", stopped, took)
			}
			m.nodes[stopped].start()
			m.await(time.Minute, "another stream", func() bool { return models[1-stopped].streamed() > 1 })
		})
	}
}
