package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/balefire/balefire/wire"
)

// A mailLoad is mail to send over one connection and to read over others. A mail is done when
// every reader's acknowledgement is on disk, or without readers when the mail is.
type mailLoad struct {
	Form    string        // inFrames or inDocuments
	Socket  string        // of the node that it is sent to; empty: another process sends it
	To      string        // the box, as a sender names it
	Batch   int           // mails in one request
	Size    int           // bytes of the random body, at least mailHead
	Relaxed bool          // answered before the fsync
	From    string        // socket of the node where it is read
	Box     string        // the box, as a reader names it
	Subs    []string      // one reader for each, which is given every mail: "" is that of a mailbox
	Warm    int           // mails before the measurement starts
	Mails   int           // mails that are measured
	Limit   time.Duration // limit of the measurement if there are fewer; 0: none
	Flying  int           // mails sent and not done yet; 0: they are sent when they are due
	Offered int           // mails a second that are due
	Profile string        // file of a CPU profile of the measurement; empty: none
}

func (l *mailLoad) all() int { return l.Warm + l.Mails }

// A mailReport is what a report of mail has in addition. Times of an offered load count from
// when a mail was due.
type mailReport struct {
	P999           time.Duration // until a mail is delivered
	Sent50, Sent99 time.Duration // until the sender has the answer that it is on disk
	First, Last    time.Time     // when a mail was delivered
}

// mailHead is what a body begins with: number of the mail, and when it was sent or due.
const mailHead = 16

// joined is how many batches may be sent in one message: half of what the node takes.
func (l *mailLoad) joined() int {
	const head = 128 // bytes of a letter without its body, and of its frame
	return max(1, wire.MaxMailMessage/2/(l.Batch*(l.Size+head)))
}

// A mailRun is a load of mail in progress.
type mailRun struct {
	mailLoad
	start time.Time  // when the first mail is due
	due   chan int64 // Unix nanoseconds of each batch that has no answer

	mu       sync.Mutex
	changed  sync.Cond // one of the fields below
	meter    meter
	begun    bool
	warm     int // mails done when the measurement began
	sent     int
	stopped  bool // nothing more is sent
	answered int
	acked    []int // of each reader
	done     int
	bad      int
	problem  string
	failed   error
	answers  []time.Duration
	given    []time.Duration
	mail     mailReport
}

// loadMail sends and reads l and reports the result. The measurement starts when the warm-up
// mails are done, which is reported to the parent, and ends when all are.
func (c *child) loadMail(l mailLoad) (response, error) {
	r := &mailRun{mailLoad: l, meter: meter{c: c, profile: l.Profile}, acked: make([]int, len(l.Subs)), due: make(chan int64, 1<<16)}
	r.changed.L = &r.mu
	r.answers, r.given = make([]time.Duration, 0, l.Mails/max(l.Batch, 1)+1), make([]time.Duration, 0, l.Mails*len(l.Subs))
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var work sync.WaitGroup
	run := func(f func() error) {
		work.Go(func() {
			if err := f(); err != nil {
				r.fail(err)
			}
		})
	}
	for i, sub := range l.Subs {
		form := newMailForm(l.Form)
		conn, err := dialMail(ctx, l.From, form)
		if err == nil {
			err = r.begin(conn, form, sub)
		}
		if err != nil {
			return response{}, err
		}
		run(func() error { return r.read(conn, form, i) })
	}
	r.mu.Lock()
	r.start = time.Now()
	if r.Warm == 0 {
		r.measure()
	}
	r.mu.Unlock()
	if l.Socket == "" {
		r.expect()
	} else {
		form := newMailForm(l.Form)
		conn, err := dialMail(ctx, l.Socket, form)
		if err != nil {
			return response{}, err
		}
		run(func() error { return r.send(conn, form) })
		run(func() error { return r.read(conn, newMailForm(l.Form), -1) })
	}
	r.wait()
	out := r.report()
	cancel() // closes the connections
	work.Wait()
	return response{Report: out}, errors.Join(r.failed, r.meter.finish())
}

// dialMail connects to the stream of mail until ctx is done.
func dialMail(ctx context.Context, socket string, form mailForm) (*websocket.Conn, error) {
	h := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}
	protocol, _, _ := form.dial()
	conn, _, err := websocket.Dial(ctx, "ws://node/v1/mail/stream", &websocket.DialOptions{HTTPClient: h, Subprotocols: []string{protocol}})
	if err != nil {
		return nil, err
	}
	conn.SetReadLimit(8 * wire.MaxMailMessage)
	context.AfterFunc(ctx, func() { _ = conn.CloseNow() })
	return conn, nil
}

func (r *mailRun) begin(conn *websocket.Conn, form mailForm, sub string) error {
	_, typ, _ := form.dial()
	msg, err := form.appendRead(nil, r.Box, sub)
	if err != nil {
		return err
	}
	return conn.Write(context.Background(), typ, msg)
}

// expect lets the run be complete when all mails of another process are done.
func (r *mailRun) expect() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sent, r.stopped = r.all(), true
}

func (r *mailRun) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failed == nil && !r.complete() {
		r.failed = err
	}
	r.changed.Broadcast()
}

// wait waits until all mails that were sent are done, or the run has failed.
func (r *mailRun) wait() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for !r.complete() && r.failed == nil {
		r.changed.Wait()
	}
}

func (r *mailRun) complete() bool { return r.stopped && r.done+r.bad >= r.sent }

// measure starts the measurement. mu is held.
func (r *mailRun) measure() {
	r.begun, r.warm = true, r.done
	r.meter.start()
	if r.Limit > 0 {
		time.AfterFunc(r.Limit, func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.stopped = true
			r.changed.Broadcast()
		})
	}
}

func (r *mailRun) report() report {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := r.meter.report(r.done - r.warm)
	out.Bad, out.Mail = r.bad, r.mail
	out.Mail.Sent50, out.Mail.Sent99 = quantile(r.answers, .5), quantile(r.answers, .99)
	out.P50, out.P99, out.Mail.P999 = quantile(r.given, .5), quantile(r.given, .99), quantile(r.given, .999)
	if r.bad > 0 && r.failed == nil {
		r.failed = fmt.Errorf("%d of %d mails were refused or not delivered once: %s", r.bad, r.sent, r.problem)
	}
	return out
}

// send sends until there is no more, or it is told to stop.
func (r *mailRun) send(conn *websocket.Conn, form mailForm) error {
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.stopped = true
		r.changed.Broadcast()
	}()
	_, typ, join := form.dial()
	bodies := make([][]byte, r.Batch)
	for i := range bodies {
		bodies[i] = make([]byte, r.Size)
		rand.Read(bodies[i])
	}
	var msg []byte
	for n := 0; ; {
		batches := r.next(n)
		if batches == 0 {
			return nil
		}
		for i := range batches {
			due := r.dueAt(n)
			for j, b := range bodies {
				binary.BigEndian.PutUint64(b, uint64(n+j))
				binary.BigEndian.PutUint64(b[8:], uint64(due))
			}
			var err error
			if msg, err = form.appendSend(msg, &r.mailLoad, bodies); err != nil {
				return err
			}
			n += r.Batch
			r.due <- due
			if join && i+1 < batches {
				continue
			}
			if err := conn.Write(context.Background(), typ, msg); err != nil {
				return err
			}
			msg = msg[:0]
		}
	}
}

// dueAt returns when the n-th mail is due, in Unix nanoseconds: now if there is no rate.
func (r *mailRun) dueAt(n int) int64 {
	if r.Flying > 0 {
		return time.Now().UnixNano()
	}
	return r.start.Add(r.after(n)).UnixNano()
}

func (r *mailRun) after(n int) time.Duration {
	return time.Duration(float64(n) / float64(r.Offered) * float64(time.Second))
}

// next waits until a batch may be sent that begins with the n-th mail, and returns how many
// may: 0 if there is no more.
func (r *mailRun) next(n int) int {
	if r.Flying == 0 {
		time.Sleep(time.Until(r.start.Add(r.after(n))))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	may := r.joined()
	if r.Flying == 0 {
		late := time.Since(r.start) - r.after(n)
		may = min(may, 1+int(late.Seconds()*float64(r.Offered))/r.Batch)
	} else {
		for n+r.Batch-r.done > r.Flying && !r.stopped && r.failed == nil {
			r.changed.Wait()
		}
		may = min(may, (r.Flying-n+r.done)/r.Batch)
	}
	may = min(may, (r.all()-n)/r.Batch)
	if r.stopped || r.failed != nil || may <= 0 {
		return 0
	}
	r.sent = n + may*r.Batch
	return may
}

// read takes what arrives on a connection: that of a reader, or with -1 that of the sender.
func (r *mailRun) read(conn *websocket.Conn, form mailForm, reader int) error {
	_, typ, _ := form.dial()
	var buf bytes.Buffer
	var out []byte
	var a arrived
	seen := make([]bool, r.all())
	for {
		_, in, err := conn.Reader(context.Background())
		if err == nil {
			buf.Reset()
			_, err = buf.ReadFrom(in)
		}
		a = arrived{sent: a.sent[:0], bodies: a.bodies[:0]}
		if err == nil {
			err = form.read(buf.Bytes(), &a)
		}
		if err != nil {
			return err // or the run is over
		}
		r.note(&a, reader, seen)
		if len(a.bodies) == 0 {
			continue
		}
		if out, err = form.appendAcks(out[:0]); err == nil {
			err = conn.Write(context.Background(), typ, out)
		}
		if err != nil {
			return err
		}
	}
}

// note notes what arrived. seen has the mails that this reader was given before.
func (r *mailRun) note(a *arrived, reader int, seen []bool) {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, n := range a.sent {
		r.answered += n
		if due := <-r.due; r.begun {
			r.answers = append(r.answers, time.Duration(now.UnixNano()-due))
		}
	}
	if r.bad += a.refused; a.refused > 0 {
		r.problem = a.problem
	}
	for _, b := range a.bodies {
		r.deliver(b, now, seen)
	}
	r.done = r.answered
	if reader >= 0 {
		r.acked[reader] += a.settled - a.stale
	}
	if r.bad += a.stale; a.stale > 0 {
		r.problem = "an acknowledgement did not count"
	}
	if len(r.acked) > 0 {
		r.done = r.acked[0]
		for _, n := range r.acked {
			r.done = min(r.done, n)
		}
	}
	if !r.begun && r.done >= r.Warm {
		r.measure()
	}
	r.changed.Broadcast()
}

func (r *mailRun) deliver(body []byte, now time.Time, seen []bool) {
	n := binary.BigEndian.Uint64(body)
	if n >= uint64(len(seen)) || seen[n] {
		r.bad, r.problem = r.bad+1, fmt.Sprintf("mail %d was delivered twice, or never sent", n)
		return
	}
	seen[n] = true
	if r.mail.First.IsZero() {
		r.mail.First = now
	}
	r.mail.Last = now
	if r.begun {
		r.given = append(r.given, time.Duration(now.UnixNano()-int64(binary.BigEndian.Uint64(body[8:]))))
	}
}
