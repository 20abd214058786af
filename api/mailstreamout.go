package api

import (
	"context"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/balefire/balefire/wire"
)

const (
	maxUnsent = 4 << 20          // bytes for one connection
	slowAfter = 10 * time.Second // with so many of which none is read, it is closed
)

// A streamWriter writes to a connection what several goroutines have for it. While there are
// maxUnsent bytes it lets them wait.
type streamWriter struct {
	typ  websocket.MessageType
	slow *time.Timer // ends the connection; it runs while there are maxUnsent bytes

	mu      sync.Mutex
	changed sync.Cond // something was added or written, or it was stopped
	buf     []byte    // answers
	ends    []int     // of the answers in buf
	unsent  int       // bytes in buf, and of those that are being written
	stopped bool
}

func newStreamWriter(end context.CancelCauseFunc, typ websocket.MessageType) *streamWriter {
	w := &streamWriter{typ: typ, slow: time.AfterFunc(slowAfter, func() { end(errTooSlow) })}
	w.slow.Stop()
	w.changed.L = &w.mu
	return w
}

// stop ends all that waits for the writer.
func (w *streamWriter) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopped = true
	w.slow.Stop()
	w.changed.Broadcast()
}

// add adds an answer. It does not keep it.
func (w *streamWriter) add(form streamForm, a *streamAnswer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.unsent >= maxUnsent && !w.stopped {
		w.changed.Wait()
	}
	if w.stopped {
		return
	}
	before := len(w.buf)
	w.buf = form.appendAnswer(w.buf, a)
	w.ends = append(w.ends, len(w.buf))
	if w.unsent += len(w.buf) - before; w.unsent >= maxUnsent {
		w.slow.Reset(slowAfter)
	}
	w.changed.Broadcast()
}

// write writes until the writer is stopped. An error needs no word: the goroutine that reads
// has one, too.
func (w *streamWriter) write(conn *websocket.Conn) {
	var buf []byte
	var ends []int
	for {
		w.mu.Lock()
		for len(w.buf) == 0 && !w.stopped {
			w.changed.Wait()
		}
		if w.stopped {
			w.mu.Unlock()
			return
		}
		buf, w.buf = w.buf, buf[:0]
		ends, w.ends = w.ends, ends[:0]
		w.mu.Unlock()
		for start, i := 0, 0; i < len(ends); i++ {
			if i+1 < len(ends) && w.typ == websocket.MessageBinary && ends[i+1]-start <= wire.MaxMailMessage {
				continue // frames may share a message
			}
			if conn.Write(context.Background(), w.typ, buf[start:ends[i]]) != nil { // its close ends it
				return
			}
			w.written(ends[i] - start)
			start = ends[i]
		}
	}
}

// written notes that the client has read, or has room for, n more bytes.
func (w *streamWriter) written(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.unsent -= n
	switch {
	case w.stopped:
	case w.unsent < maxUnsent:
		w.slow.Stop()
	default:
		w.slow.Reset(slowAfter)
	}
	w.changed.Broadcast()
}
