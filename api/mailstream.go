package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"
	"github.com/danielgtaylor/huma/v2"
	"golang.org/x/sync/semaphore"

	"github.com/balefire/balefire/mail"
	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/mailbox"
	"github.com/balefire/balefire/wire"
)

const (
	maxInFlight   = 8 << 20 // bytes of mail of one connection that is not on disk yet
	maxUnanswered = 1024    // requests of one connection
	deliverStep   = 128     // mails in one message
)

// A mailStream is a connection of a program that sends and reads mail. The reading goroutine
// does what it is asked for, in order; one waits until mail is on disk, and one answers, in this
// order; each session has one that delivers, and each request one that waits for the reply; one
// writes.
//
//	read ─▶ do ─▶ broker        waiting ─▶ store ─▶ stored ─▶ answer ─┬▶ out ─▶ write
//	              session ─▶ deliver ─────────────────────────────────┘
type mailStream struct {
	boxes *mailbox.Boxes
	conn  *websocket.Conn
	form  streamForm
	out   *streamWriter

	waiting  chan unanswered
	stored   chan unanswered // with mail that is on disk or refused
	inFlight *semaphore.Weighted
	requests *semaphore.Weighted // that wait for their replies
	work     sync.WaitGroup

	mu       sync.Mutex
	sessions map[uint32]*streamSession
}

// A streamForm is how requests and answers are written.
type streamForm interface {
	// requests calls do with each request of a message.
	requests(msg []byte, do func(*streamRequest) error) error
	// appendAnswer appends the encoding of an answer to dst.
	appendAnswer(dst []byte, a *streamAnswer) []byte
}

// A streamRequest is one request. Its bytes are valid while it is done.
type streamRequest struct {
	op           byte // one of package wire
	ref, session uint32
	mails        []wire.Mail
	size         int     // bytes of the documents of mails
	refused      []error // of mails that could not be read
	letters      []mailbox.Letter
	read         wire.ReadMail
	settle       []mail.Settlement
	leases       []string // of settle, in the form that is not in frames
	credit       uint64
	ask          func(context.Context, *mailbox.Boxes) (streamReply, error) // of a request
}

// A streamAnswer is an answer, or what a session has.
type streamAnswer struct {
	op       byte
	ref      uint32 // request or session
	outcomes []mailbox.Outcome
	reader   *mailbox.Reader
	given    []mail.Delivery
	asked    []box.Op // what each settlement was
	leases   []string
	settled  []mail.Settled
	reply    streamReply
	err      error
}

// An unanswered request waits for the disk, or for the home of what it settles.
type unanswered struct {
	answer   streamAnswer
	size     int64   // of what it has in flight
	refused  []error // as of its request
	queued   *mailbox.Queued
	settling mailbox.Settling // if answer has a reader, and no error
}

// A streamSession is a session of a connection.
type streamSession struct {
	reader  *mailbox.Reader
	stopped bool // by its client
}

// A closing is why the node closes a connection.
type closing struct {
	code   websocket.StatusCode
	reason string
}

func (c *closing) Error() string { return c.reason }

var (
	errTooSlow   = &closing{websocket.StatusTryAgainLater, fmt.Sprintf("too slow: %d MiB were not read for %s", maxUnsent>>20, slowAfter)}
	errStopping  = &closing{websocket.StatusServiceRestart, "the node is stopping"}
	errStreamEnd = errors.New("the client closed the connection")
)

// notAllowed is the end of a connection whose client does what it may not do.
func notAllowed(format string, a ...any) error {
	return &closing{websocket.StatusPolicyViolation, fmt.Sprintf(format, a...)}
}

func (s *Server) routeMailStream() {
	s.mux.HandleFunc("GET /v1/mail/stream", s.streamMail)
	o := op("GET", "/v1/mail/stream", "mailStream", "mail", "Send and read mail over a WebSocket")
	o.Description = "The subprotocol " + wire.MailDocuments + " has JSON documents, " + wire.MailFrames + " binary frames; docs/protocol.md describes both. " +
		"Mail is sent in batches, and read in sessions, each of which is given no more mails than it has credit for until it settles them. " +
		"A connection that breaks gives back what it has not settled. The node closes with 1008 for what is not allowed, 1012 when it stops and 1013 if the client is too slow. " +
		"A request from a web page of another machine is denied."
	o.Parameters = []*huma.Param{
		{Name: "Sec-WebSocket-Protocol", In: "header", Description: "the subprotocol", Required: true, Schema: &huma.Schema{Type: "string", Enum: []any{wire.MailFrames, wire.MailDocuments}}},
	}
	o.Responses = map[string]*huma.Response{"101": {Description: "The connection is a WebSocket"}}
	s.api.OpenAPI().AddOperation(&o)
}

// streamMail serves one connection until it ends.
func (s *Server) streamMail(w http.ResponseWriter, r *http.Request) {
	offered := strings.FieldsFunc(strings.Join(r.Header.Values("Sec-WebSocket-Protocol"), ","), func(c rune) bool { return c == ',' || c == ' ' })
	switch {
	case !localOrigin(r.Header):
		writeProblem(w, problem(wire.CodeDenied, "origin %.200q: only pages of this machine may connect", r.Header.Get("Origin")))
		return
	case !strings.EqualFold(r.Header.Get("Upgrade"), "websocket"):
		writeProblem(w, problem(wire.CodeInvalid, "this route is a WebSocket"))
		return
	case !slices.Contains(offered, wire.MailFrames) && !slices.Contains(offered, wire.MailDocuments):
		writeProblem(w, problem(wire.CodeInvalid, "subprotocols %.200q: offer %s or %s", offered, wire.MailFrames, wire.MailDocuments))
		return
	}
	if streams, ok := r.Context().Value(streamsKey{}).(*sync.WaitGroup); ok {
		streams.Add(1)
		defer streams.Done()
	}
	conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{wire.MailFrames, wire.MailDocuments}, InsecureSkipVerify: true}) // the origin was checked
	if err != nil {
		return // it was answered
	}
	m := &mailStream{
		boxes: s.mail, conn: conn, form: new(binaryForm), sessions: map[uint32]*streamSession{},
		waiting: make(chan unanswered, maxUnanswered/2), stored: make(chan unanswered, maxUnanswered/2), inFlight: semaphore.NewWeighted(maxInFlight), requests: semaphore.NewWeighted(wire.MaxMailRequests),
	}
	typ := websocket.MessageBinary
	if conn.Subprotocol() == wire.MailDocuments {
		m.form, typ = jsonForm{}, websocket.MessageText
	}
	// A hijacked request outlives the base context of its server only until it is told to stop.
	ctx, end := context.WithCancelCause(context.WithoutCancel(r.Context()))
	if serving, ok := r.Context().Value(stopKey{}).(context.Context); ok {
		defer context.AfterFunc(serving, func() { end(errStopping) })()
	}
	m.out = newStreamWriter(end, typ)
	m.run(ctx, end, typ)
}

// localOrigin reports whether a request comes from a program, or from a page of this machine.
func localOrigin(h http.Header) bool {
	for _, origin := range h.Values("Origin") {
		u, err := url.Parse(origin)
		if err != nil {
			return false
		}
		if ip := net.ParseIP(u.Hostname()); u.Hostname() != "localhost" && !ip.IsLoopback() {
			return false
		}
	}
	return true
}

// run serves the connection until ctx is done, which end does with a reason.
func (m *mailStream) run(ctx context.Context, end context.CancelCauseFunc, typ websocket.MessageType) {
	m.conn.SetReadLimit(-1) // readMessage has a limit
	m.work.Go(func() { m.store(ctx) })
	m.work.Go(func() { m.answer(ctx) })
	m.work.Go(func() { m.out.write(m.conn) })
	m.work.Go(func() { m.close(ctx) })
	end(m.read(ctx, typ))
	m.work.Wait()
	m.out.stop()
	cause := context.Cause(ctx)
	broke := cause != errStreamEnd && cause != error(errStopping)
	for _, x := range m.sessions {
		_ = x.reader.Close(context.WithoutCancel(ctx), broke) // a broker that has ended does not mind
	}
}

// close closes the connection when ctx is done, with the reason.
func (m *mailStream) close(ctx context.Context) {
	<-ctx.Done()
	m.out.stop()
	c, ok := errors.AsType[*closing](context.Cause(ctx))
	if !ok {
		_ = m.conn.CloseNow() // the client has closed it, or is gone
		return
	}
	_ = m.conn.Close(c.code, c.reason[:min(len(c.reason), 120)])
}

// read does what the client asks for, until the connection is closed.
func (m *mailStream) read(ctx context.Context, typ websocket.MessageType) error {
	var buf []byte
	for {
		t, r, err := m.conn.Reader(context.Background()) // close ends it
		if err == nil {
			buf, err = readMessage(r, buf[:0])
		}
		switch c := websocket.CloseStatus(err); {
		case c == websocket.StatusNormalClosure || c == websocket.StatusGoingAway || c == websocket.StatusNoStatusRcvd:
			return errStreamEnd
		case err != nil:
			return err
		case t != typ:
			return notAllowed("a %s", map[websocket.MessageType]string{websocket.MessageText: "text message: the subprotocol is binary", websocket.MessageBinary: "binary message: the subprotocol is text"}[t])
		}
		if err := m.form.requests(buf, func(q *streamRequest) error { return m.do(ctx, q) }); err != nil {
			if _, ok := errors.AsType[*closing](err); !ok {
				err = notAllowed("%v", err)
			}
			return err
		}
	}
}

// readMessage reads a message of limited size.
func readMessage(r io.Reader, buf []byte) ([]byte, error) {
	for {
		if len(buf) == cap(buf) {
			buf = slices.Grow(buf, max(len(buf), 16<<10))
		}
		n, err := r.Read(buf[len(buf):min(cap(buf), wire.MaxMailMessage+1)])
		buf = buf[:len(buf)+n]
		switch {
		case len(buf) > wire.MaxMailMessage:
			return buf, notAllowed("a message of more than %d bytes", wire.MaxMailMessage)
		case err == io.EOF:
			return buf, nil
		case err != nil:
			return buf, err
		}
	}
}

// do does what a request asks for. An error ends the connection.
func (m *mailStream) do(ctx context.Context, q *streamRequest) error {
	switch q.op {
	case wire.OpSend:
		return m.send(ctx, q)
	case wire.OpRead:
		return m.begin(ctx, q)
	case wire.OpSettle:
		return m.settle(ctx, q)
	case wire.OpCredit:
		if q.credit > wire.MaxMailCredit {
			return notAllowed("credit %d: must be from 0 to %d", q.credit, wire.MaxMailCredit)
		}
		if x := m.session(q.session); x != nil {
			_ = x.reader.AddCredit(ctx, int(q.credit)) // a broker that has ended ends the session
		}
	case wire.OpStop:
		if x := m.session(q.session); x != nil {
			m.mu.Lock()
			x.stopped = true
			m.mu.Unlock()
			_ = x.reader.Close(ctx, false)
		}
	case wire.OpRequest:
		return m.request(ctx, q)
	case wire.OpPing:
		m.out.add(m.form, &streamAnswer{op: wire.OpPong, ref: q.ref})
	}
	return nil
}

func (m *mailStream) session(n uint32) *streamSession {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.sessions[n]
}

// send queues mail.
func (m *mailStream) send(ctx context.Context, q *streamRequest) error {
	size := int64(q.size)
	for i := range q.letters {
		size += int64(len(q.letters[i].Letter))
	}
	if err := m.inFlight.Acquire(ctx, size); err != nil {
		return context.Cause(ctx)
	}
	u := unanswered{answer: streamAnswer{op: wire.OpSent, ref: q.ref}, size: size, refused: q.refused}
	if q.mails == nil {
		u.queued = m.boxes.QueueLetters(q.letters)
	} else {
		u.queued = m.boxes.QueueMails(q.mails)
	}
	return pass(ctx, m.waiting, u)
}

func pass(ctx context.Context, to chan<- unanswered, u unanswered) error {
	select {
	case to <- u:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// store waits until mail is on disk, in order. It waits for no other node.
func (m *mailStream) store(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case u := <-m.waiting:
			if u.queued != nil {
				u.answer.outcomes = u.queued.Wait(ctx)
				for i, err := range u.refused {
					if err != nil {
						u.answer.outcomes[i].Err = err
					}
				}
				m.inFlight.Release(u.size)
			}
			_ = pass(ctx, m.stored, u) // or the connection has ended
		}
	}
}

// answer answers requests, in order, when what they ask for is done.
func (m *mailStream) answer(ctx context.Context) {
	var u unanswered // once for all: its answer is on the heap
	for {
		select {
		case <-ctx.Done():
			return
		case u = <-m.stored:
			if u.answer.reader != nil && u.answer.err == nil {
				u.answer.settled, u.answer.err = u.answer.reader.Settled(ctx, u.settling)
			}
			m.out.add(m.form, &u.answer)
			if u.queued != nil {
				u.queued.Free()
			}
		}
	}
}

// settle queues what the client did with deliveries. Without a ref only its refusal is answered.
func (m *mailStream) settle(ctx context.Context, q *streamRequest) error {
	u := unanswered{answer: streamAnswer{op: wire.OpSettled, ref: q.ref, leases: q.leases}}
	x := m.session(q.session)
	if x == nil {
		u.answer.err = fmt.Errorf("%w: there is no session %d", wire.ErrNotFound, q.session)
	} else {
		u.answer.reader = x.reader
		u.settling, u.answer.err = x.reader.QueueSettle(q.settle)
	}
	if q.ref == 0 && u.answer.err == nil {
		return nil
	}
	u.answer.asked = make([]box.Op, len(q.settle))
	for i, x := range q.settle {
		u.answer.asked[i] = x.Op
	}
	return pass(ctx, m.waiting, u)
}

// begin begins a session.
func (m *mailStream) begin(ctx context.Context, q *streamRequest) error {
	m.mu.Lock()
	used, open := m.sessions[q.session] != nil, len(m.sessions)
	m.mu.Unlock()
	switch {
	case q.read.Credit > wire.MaxMailCredit || q.read.Credit == 0:
		return notAllowed("credit %d: must be from 1 to %d", q.read.Credit, wire.MaxMailCredit)
	case q.session == 0:
		return notAllowed("a read without session: give it a number")
	case used:
		return notAllowed("session %d has begun", q.session)
	case open == wire.MaxMailSessions:
		return notAllowed("more than %d sessions", wire.MaxMailSessions)
	}
	r, err := m.boxes.Read(ctx, q.read.Box, q.read.Subscription, wire.LeaseMail{Max: int(q.read.Credit), Reader: q.read.Reader, Priority: int(q.read.Priority)})
	if err != nil {
		m.out.add(m.form, &streamAnswer{op: wire.OpEnd, ref: q.session, err: err})
		return nil
	}
	n, x := q.session, &streamSession{reader: r} // q belongs to the caller, who uses it again
	m.mu.Lock()
	m.sessions[n] = x
	m.mu.Unlock()
	m.work.Go(func() { m.deliver(ctx, n, x) })
	return nil
}

// deliver sends the mail of a session.
func (m *mailStream) deliver(ctx context.Context, n uint32, x *streamSession) {
	a := streamAnswer{op: wire.OpDelivered, ref: n, reader: x.reader}
	var buf []byte
	for {
		var err error
		if a.given, buf, err = x.reader.NextLetters(ctx, deliverStep, a.given[:0], buf[:0]); ctx.Err() != nil {
			return // run closes the reader
		}
		if err != nil {
			m.end(ctx, n, x, err)
			return
		}
		if len(a.given) > 0 {
			m.out.add(m.form, &a)
		}
	}
}

// end ends a session that has no more mail: its client stopped it, its box was removed, or
// its broker has failed.
func (m *mailStream) end(ctx context.Context, n uint32, x *streamSession, err error) {
	_ = x.reader.Close(ctx, false)
	m.mu.Lock()
	delete(m.sessions, n)
	if x.stopped {
		err = nil
	}
	m.mu.Unlock()
	m.out.add(m.form, &streamAnswer{op: wire.OpEnd, ref: n, err: err})
}

// leaseTime returns a lease as milliseconds that a frame has room for.
func leaseTime(d time.Duration) uint32 { return uint32(min(d.Milliseconds(), 1<<32-1)) }
