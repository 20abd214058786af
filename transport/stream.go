package transport

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/protocol"
	msmux "github.com/multiformats/go-multistream"

	"github.com/balefire/balefire/proto"
)

// A stream is one libp2p stream with its deadlines. Data received on it counts as a sign
// of life of its connection.
//
// Reading between two frames waits forever (the heartbeat monitors the connection), but a
// frame must be complete within a time after its first byte: otherwise a peer that sends
// a byte per second could hold memory for days.
type stream struct {
	network.Stream
	rw            io.ReadWriter // the stream, or the protocol negotiation wrapped around it
	conn          *conn
	rd            *proto.Reader
	timing        Timing
	betweenFrames bool // the next read may wait forever
	late          bool // the next read begins the time of a frame whose first bytes came with the one before it
	idleTimeout   time.Duration
	own           bool // opened by this node: what is received answers it
	work          bool // opened by the other side to send work
	bulk          int  // bytes received since the last sign of life
	out           []byte
	ctl           bool          // PINGs go over it
	unblocked     chan struct{} // closed when unblock resets the stream
	ended         sync.Once     // closes it
}

// errSlow is returned for a frame that is not complete in time.
var errSlow = errors.New("transport: a frame was not completed in time")

// openStream opens a stream of the protocol on this connection. The negotiation is sent
// with the first bytes: an other side that does not support the protocol is noticed at
// the first read.
func openStream(ctx context.Context, c *conn, p protocol.ID, max int, t Timing) (*stream, error) {
	ctx, cancel := context.WithTimeout(network.WithNoDial(ctx, "the connection is there"), t.Hello)
	defer cancel()
	s, err := c.raw.NewStream(ctx)
	if err != nil {
		return nil, fmt.Errorf("open %s to %s: %w", p, c.peer.Short(), err)
	}
	if err := s.SetProtocol(p); err != nil {
		s.Reset()
		return nil, fmt.Errorf("open %s to %s: %w", p, c.peer.Short(), err)
	}
	st := newStream(s, msmux.NewMSSelect(s, p), c, max, t)
	st.ctl = p == streamCtl
	st.own = !st.ctl // on which both sides ask
	return st, nil
}

func newStream(s network.Stream, rw io.ReadWriter, c *conn, max int, t Timing) *stream {
	st := &stream{Stream: s, rw: rw, conn: c, timing: t, unblocked: make(chan struct{})}
	st.rd = proto.NewReader(readerFunc(st.read), max)
	return st
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func (s *stream) read(p []byte) (int, error) {
	if s.betweenFrames {
		s.betweenFrames = false
		if err := s.SetReadDeadline(s.idleDeadline()); err != nil {
			return 0, err
		}
		n, err := s.rw.Read(p)
		s.touch(n)
		if err == nil {
			err = s.SetReadDeadline(time.Now().Add(s.timing.Frame))
		}
		return n, err
	}
	if s.late {
		s.late = false
		if err := s.SetReadDeadline(time.Now().Add(s.timing.Frame)); err != nil {
			return 0, err
		}
	}
	n, err := s.rw.Read(p)
	s.touch(n)
	if isTimeout(err) {
		err = fmt.Errorf("%w: %w", errSlow, err)
	}
	return n, err
}

// idleDeadline returns when the next frame must have begun: never, unless idleTimeout is
// set.
func (s *stream) idleDeadline() time.Time {
	if s.idleTimeout == 0 {
		return time.Time{}
	}
	return time.Now().Add(s.idleTimeout)
}

func (s *stream) touch(n int) {
	if n > 0 {
		s.conn.touch()
		s.conn.work.received.Add(uint64(n))
		if s.work {
			s.conn.work.incoming.Add(uint64(n))
		}
	}
	if s.bulk += n; s.own || s.bulk >= bulkBytes {
		s.bulk = 0
		s.conn.answer()
	}
}

// bulkBytes is how many received bytes count like an answer: answers may wait behind them.
const bulkBytes = 16 << 10

// next reads a frame into m. It waits for its first byte indefinitely, or for
// s.idleTimeout if set.
func (s *stream) next(m *proto.Message) error {
	s.betweenFrames = s.rd.Buffered() == 0
	s.late = !s.betweenFrames
	return s.rd.Next(m)
}

// A write is split into pieces, each with its own time, also over a narrow link.
const (
	writeSize    = 16 << 10
	writeTimeout = 30 * time.Second
)

// write writes b in pieces, each with its own deadline, and no faster than the path carries
// them.
func (s *stream) write(b []byte) error { return s.writePaced(b, writeTimeout) }

// writePaced is write with this time for each piece; 0: any.
func (s *stream) writePaced(b []byte, limit time.Duration) error {
	paced := len(b) > firstPiece && !s.ctl && s.conn.hasCtl.Load()
	w := pacedWrite{conn: s.conn, stop: s.unblocked, limit: cmp.Or(limit, writeTimeout)}
	for sent, most := 0, math.MaxInt; len(b) > 0; {
		if paced {
			most = s.conn.pace.size(s.conn.longestRTT())
		}
		if sent >= most {
			if err := w.wrote(); err != nil {
				return err
			}
			sent = 0
			continue
		}
		n := min(len(b), writeSize, most-sent)
		if limit > 0 {
			if err := s.SetWriteDeadline(time.Now().Add(limit)); err != nil {
				return err
			}
		}
		if _, err := s.rw.Write(b[:n]); err != nil {
			return err
		}
		b = b[n:]
		sent += n
	}
	return nil
}

// send writes one frame.
func (s *stream) send(m *proto.Message) error {
	b, err := proto.AppendFrame(s.out[:0], m)
	if err != nil {
		return err
	}
	if cap(b) <= 2*proto.MaxFrame {
		s.out = b
	}
	return s.write(b)
}

// unblock resets s when ctx is done, so that pending reads and writes return. The caller
// must call stop.
func (s *stream) unblock(ctx context.Context) (stop func() bool) {
	return context.AfterFunc(ctx, func() {
		s.ended.Do(func() { close(s.unblocked) })
		s.Reset()
	})
}

// expect reads one message of this type and returns its payload.
func (s *stream) expect(typ proto.MessageType) ([]byte, error) {
	var m proto.Message
	if err := s.next(&m); err != nil {
		return nil, err
	}
	if m.GetType() != typ {
		return nil, fmt.Errorf("%w: message type %d instead of %d", ErrProtocol, m.GetType(), typ)
	}
	return m.GetPayload(), nil
}
