package main

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/balefire/balefire/datadir"
)

// The baseline is NATS JetStream with the same guarantee: acknowledged messages are synced.
// One process is the server, one publishes and consumes.
const (
	natsStream  = "TASKS"
	natsSubject = "tasks"
)

// broker runs a NATS server that keeps its stream in dir. It syncs every message, or by
// default every two minutes.
func (c *child) broker(dir string, always bool) (response, error) {
	s, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true,
		JetStream: true, StoreDir: dir, SyncAlways: always,
	})
	if err != nil {
		return response{}, err
	}
	go s.Start()
	c.stops = append(c.stops, func() error { s.Shutdown(); s.WaitForShutdown(); return nil })
	if !s.ReadyForConnections(20 * time.Second) {
		return response{}, errors.New("the NATS server does not start")
	}
	return response{Text: s.ClientURL()}, nil
}

// A flow is a number of messages to publish, consume and acknowledge.
type flow struct {
	URL    string
	Warm   int // before the measurement starts
	Tasks  int // that are measured
	Limit  time.Duration
	Flying int // published and not yet acknowledged by the consumer
	Size   int
}

// flow publishes a message whenever one has been consumed and acknowledged. A
// message counts when the server has confirmed its publication and its consumer
// has sent the acknowledgement.
func (c *child) flow(f flow) (response, error) {
	nc, err := nats.Connect(f.URL)
	if err != nil {
		return response{}, err
	}
	defer nc.Close()
	js, err := nc.JetStream(nats.PublishAsyncMaxPending(2 * f.Flying))
	if err != nil {
		return response{}, err
	}
	if _, err := js.AddStream(&nats.StreamConfig{Name: natsStream, Subjects: []string{natsSubject}, Storage: nats.FileStorage, Retention: nats.WorkQueuePolicy}); err != nil {
		return response{}, err
	}
	in := make(chan *nats.Msg, 4*f.Flying)
	if _, err := js.ChanSubscribe(natsSubject, in, nats.Durable("worker"), nats.ManualAck(), nats.AckWait(time.Hour), nats.MaxAckPending(4*f.Flying)); err != nil {
		return response{}, err
	}
	p := &flowRun{flow: f, c: c, js: js, room: make(chan struct{}, f.Flying), body: make([]byte, f.Size)}
	rand.Read(p.body)
	var wg sync.WaitGroup
	var sent error
	wg.Go(func() { sent = p.publish() })
	taken := p.consume(in)
	p.over.Store(true)
	wg.Wait()
	return response{Report: p.report}, errors.Join(sent, taken)
}

// A flowRun is a flow in progress.
type flowRun struct {
	flow
	c    *child
	js   nats.JetStreamContext
	room chan struct{} // has a token for each message in flight
	body []byte
	over atomic.Bool

	begin  time.Time
	first  usage
	report report
}

func (p *flowRun) publish() error {
	for n := 0; n < p.Warm+p.Tasks; n++ {
		select {
		case p.room <- struct{}{}:
		case <-time.After(100 * time.Millisecond):
			if p.over.Load() {
				return nil
			}
			n--
			continue
		}
		if _, err := p.js.PublishAsync(natsSubject, p.body); err != nil {
			return fmt.Errorf("publish: %w", err)
		}
	}
	select {
	case <-p.js.PublishAsyncComplete():
	case <-time.After(20 * time.Second):
		return errors.New("publish: the server has stopped confirming")
	}
	return nil
}

func (p *flowRun) consume(in <-chan *nats.Msg) error {
	for n := range p.Warm + p.Tasks {
		if n == p.Warm {
			_ = p.c.out.Encode(response{Event: "begin"})
			p.begin, p.first = time.Now(), measure()
		}
		select {
		case m := <-in:
			if err := m.Ack(); err != nil {
				return fmt.Errorf("acknowledge: %w", err)
			}
			<-p.room
		case <-time.After(10 * time.Second):
			return errors.New("consume: no message arrives")
		}
		if n < p.Warm {
			continue
		}
		p.report.Tasks++
		if time.Since(p.begin) > p.Limit {
			break
		}
	}
	p.report.Elapsed, p.report.Usage = time.Since(p.begin), measure().since(p.first)
	return nil
}

// A figure is a rate that is compared with that of NATS.
type figure struct {
	what   string
	engine string
	slow   time.Duration // added to each fsync
	slots  string
	rate   float64
	least  float64 // of NATS
}

// leastOf returns the least ratio to NATS that is wanted of an engine: with a slower disk
// Pebble may have a tenth less.
func leastOf(engine string, slow time.Duration, ratio float64) float64 {
	if engine == datadir.EnginePebble && slow > 0 {
		return ratio * 9 / 10
	}
	return ratio
}

// nats measures NATS JetStream and compares it with balefire.
func (p *plan) nats(t *table) error {
	t.title = "Compared with NATS JetStream"
	t.intro = fmt.Sprintf("nats-server 2.15.2, file store, `sync_interval: always`, in a separate process; another process publishes and consumes. A message counts when it is published with confirmation, consumed and acknowledged; %d are in flight. "+
		"It is compared with the rates of the tables above: accepted tasks, which are sealed, signed and on disk at two nodes, and whole tasks, which have run and whose signed results are on disk at their home.", flying)
	t.head = []string{"fsync", "tasks", "store", "slots", "tasks/s", "NATS messages/s", "ratio", "target", "", "NATS CPU a message"}
	t.bounds = "NATS syncs every message separately; balefire syncs everything that was queued during the last fsync together."
	for _, slow := range []time.Duration{0, extra} {
		r, err := p.always(slow)
		if err != nil {
			return err
		}
		p.compared(t, slow, r)
	}
	return nil
}

// rivalLeast is the least number of messages of NATS that is compared with: 500 are stored in
// less than a tenth of a second, or before the measurement begins, which says nothing.
const rivalLeast = 2000

// always measures NATS that syncs every message, once in a run for each disk speed.
func (p *plan) always(slow time.Duration) (r result, err error) {
	if r, ok := p.rivals[slow]; ok {
		return r, nil
	}
	n := 20_000
	if slow > 0 {
		n = 4_000
	}
	r, err = p.median(func() (result, error) {
		return p.passed(rival{slow: slow, always: true, flying: flying}, max(n/p.scale, rivalLeast))
	})
	if err == nil {
		fmt.Fprintf(p.log, "       NATS +%v: %.0f/s; CPU %.0f us a message; others used %.1f cores\n", slow, r.rate(), r.cpu(), r.others())
		p.rivals[slow] = r
	}
	return r, err
}

// compared adds the rows that compare the figures of one disk speed with NATS.
func (p *plan) compared(t *table, slow time.Duration, nats result) {
	cost := us(nats.cpu()) + " us"
	n := len(t.rows)
	for _, f := range p.figures {
		if f.slow != slow {
			continue
		}
		cells := []any{disk(slow), f.what, f.engine, f.slots, rate(f.rate), rate(nats.rate())}
		cells = append(cells, ratio(f.rate/nats.rate(), leastOf(f.engine, slow, f.least))...)
		t.row(append(cells, cost)...)
	}
	if len(t.rows) == n {
		t.row(disk(slow), "not in this run", "", "", "", rate(nats.rate()), "", "", "", cost)
	}
}

// A rival is NATS JetStream in a process of its own.
type rival struct {
	slow   time.Duration // added to each fsync
	always bool          // every message is synced
	flying int           // messages in flight
}

// passed measures NATS with n messages, a quarter more as warm-up.
func (p *plan) passed(v rival, n int) (r result, err error) {
	dir, err := p.folder()
	if err != nil {
		return r, err
	}
	defer os.RemoveAll(dir)
	b, err := spawn("broker", v.slow)
	if err != nil {
		return r, err
	}
	err = with("rival", func(c *proc) error {
		url, err := b.ask(request{Do: "broker", Path: dir, On: v.always}, nil)
		if err != nil {
			return err
		}
		f := flow{URL: url.Text, Warm: n / 4, Tasks: n, Limit: longest, Flying: v.flying, Size: bodySize}
		r, err = measured(c, request{Do: "flow", Flow: f}, "", b)
		return err
	})
	return r, errors.Join(err, b.end())
}
