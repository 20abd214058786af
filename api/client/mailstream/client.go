package mailstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"slices"
	"syscall"
	"time"

	"github.com/coder/websocket"

	"github.com/balefire/balefire/api/client"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// A Client connects to one node. It is safe for concurrent use.
type Client struct {
	socket string
	http   *http.Client
}

// New returns a client for the socket at path. It connects on first use.
func New(socket string) *Client {
	return &Client{socket, &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}}
}

const (
	firstRetry = 50 * time.Millisecond // wait before a connection is made again
	lastRetry  = 5 * time.Second
)

// dial connects to the node.
func (c *Client) dial(ctx context.Context) (*websocket.Conn, error) {
	conn, _, err := websocket.Dial(ctx, "ws://node/v1/mail/stream", &websocket.DialOptions{HTTPClient: c.http, Subprotocols: []string{wire.MailFrames}})
	switch {
	case err == nil:
		conn.SetReadLimit(2 * wire.MaxMailMessage)
		return conn, nil
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return nil, fmt.Errorf("%w at %s: start one with balefire-node run", client.ErrNodeDown, c.socket)
	}
	return nil, fmt.Errorf("connect to the node at %s: %w", c.socket, err)
}

// readMessage appends the next message of a connection to buf.
func readMessage(conn *websocket.Conn, buf []byte) ([]byte, error) {
	_, r, err := conn.Reader(context.Background())
	if err != nil {
		return buf, err
	}
	for {
		if len(buf) == cap(buf) {
			buf = slices.Grow(buf, max(len(buf), 16<<10))
		}
		n, err := r.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		switch {
		case err == io.EOF:
			return buf, nil
		case err != nil:
			return buf, err
		}
	}
}

// backoff waits before the next connection, longer each time.
func backoff(ctx context.Context, wait *time.Duration) error {
	t := time.NewTimer(*wait)
	defer t.Stop()
	*wait = min(2**wait, lastRetry)
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// letterRoom is the room for what a letter usually has besides its body.
const letterRoom = proto.LetterFixed + 140

// encode makes the letter of a mail. It has a number if number is not zero.
func encode(m *wire.Mail, number proto.Produced) (wire.FramedMail, error) {
	raw, err := letter(m, number, time.Now())
	if err != nil {
		return wire.FramedMail{}, fmt.Errorf("%w: %w", wire.ErrInvalid, err)
	}
	return wire.FramedMail{To: []byte(m.To), Letter: raw}, nil
}

func letter(m *wire.Mail, number proto.Produced, now time.Time) ([]byte, error) {
	id := proto.NewMailID(now)
	if m.Producer != "" || m.Number != 0 || m.ID != "" {
		var errNumber, errID error
		number, errNumber = proto.ParseProduced(m.Producer, m.Number)
		if id, errID = proto.ParseMailID(m.ID); errNumber != nil || errID != nil {
			return nil, errors.Join(errNumber, errID)
		}
	}
	class, err := proto.ParseClass(m.Class)
	if err != nil {
		return nil, err
	}
	labels, err := proto.MakeLabels(m.Labels)
	if err != nil {
		return nil, err
	}
	switch {
	case m.Stream != nil:
		return nil, errors.New("a mail with a stream is sent alone: use SendMail of package client")
	case m.To == "" || len(m.To) > 255:
		return nil, fmt.Errorf("to has %d bytes", len(m.To))
	case m.Hops < 0 || m.Hops > 255:
		return nil, fmt.Errorf("hops %d", m.Hops)
	case m.Delay < 0 || m.Delay > 0 && !m.At.IsZero():
		return nil, errors.New("delay is negative, or at is given too")
	}
	ttl := time.Duration(m.TTL)
	if ttl == 0 {
		ttl = proto.DefaultTTL
	}
	l := proto.Letter{
		Class: class, ID: id, Produced: number, Created: now.UnixMilli(), NotAfter: now.Add(ttl).UnixMilli(), Hops: uint8(m.Hops), Labels: labels, Body: m.Body,
		Subject: []byte(m.Subject), Key: []byte(m.Key), Dedupe: []byte(m.Dedupe), ReplyTo: []byte(m.ReplyTo), Correlation: []byte(m.Correlation),
		Type: []byte(m.Type), ContentType: []byte(m.ContentType), Sender: []byte(m.Sender), BounceTo: []byte(m.BounceTo), Traceparent: []byte(m.Trace),
	}
	if m.Delay > 0 {
		l.NotBefore = now.Add(time.Duration(m.Delay)).UnixMilli()
	} else if m.At.After(now) {
		l.NotBefore = m.At.UnixMilli()
	}
	if l.Flags, err = proto.ParseLetterFlags(m.Relaxed, m.Receipt, m.Notify); err != nil {
		return nil, err
	}
	return proto.AppendLetter(make([]byte, 0, letterRoom+len(m.Body)), &l)
}

// Sent is the result of a mail that is on the disk of the node.
type Sent struct {
	ID    string
	Seq   uint64 // in its box; 0: the box is on another node, or it is Known without a dedupe key
	Known bool   // it, or a mail with its dedupe key, was there before; this is the first one
}

func sentOf(r wire.FramedResult) (Sent, error) {
	if err := problem(r.Code, r.Detail); err != nil {
		return Sent{}, err
	}
	return Sent{proto.MailID(r.ID).String(), r.Seq, r.Known}, nil
}

// problem returns the error with a code, nil without one.
func problem(code wire.Code, detail string) error {
	if code == "" {
		return nil
	}
	return &wire.Problem{Code: code, Title: string(code), Detail: detail}
}
