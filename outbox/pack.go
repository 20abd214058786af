package outbox

import (
	"errors"
	"fmt"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store/backlog"
)

// cancelPause is how long a cancellation waits for the task itself to be answered
// first.
const cancelPause = time.Second

// pack turns taken entries into messages and records them as in flight. Entries
// that cannot be sent now are omitted and rescheduled. The payloads are appended to
// *buf.
func (ps *peerSender) pack(items []backlog.Item, buf *[]byte) []*proto.Message {
	msgs := make([]*proto.Message, 0, len(items))
	entries := make([]sentEntry, 0, len(items))
	var top proto.Seq
	for _, it := range items {
		msg, sent, err := ps.message(it, buf)
		switch {
		case errors.Is(err, backlog.ErrNotFound):
			continue // ended after it was taken
		case err != nil:
			ps.o.cfg.Logger.Error("cannot send; will retry later", "entry", it.Key, "err", err)
			ps.retryLater(it, err.Error())
			continue
		case msg == nil:
			continue // not sent now
		}
		if seq := sent.rec.Seq(); it.Key.Part == backlog.PartTask && top.Compare(seq) < 0 {
			top = seq
		}
		msgs, entries = append(msgs, msg), append(entries, sent)
	}
	ps.o.links.noteSending(ps.peer, top)
	ps.mu.Lock()
	ps.inflight = append(ps.inflight, entries...)
	ps.mu.Unlock()
	return msgs
}

// message builds the message of one entry; nil if it is not sent now.
func (ps *peerSender) message(it backlog.Item, buf *[]byte) (m *proto.Message, sent sentEntry, err error) {
	sent.item = it
	if it.Key.Part == backlog.PartCancel {
		m, sent.rec, err = ps.cancelMessage(it)
		return m, sent, err
	}
	var st *proto.Stored
	if sent.cached = ps.o.submitted.take(it.Key); sent.cached != nil && it.Version == 0 {
		st, sent.cached.Stored = sent.cached.Stored, nil // the body is not needed until the answer
	} else if st, err = ps.o.backlog.Read(it); err != nil {
		return nil, sent, fmt.Errorf("read it: %w", err)
	} else {
		sent.cached = nil
	}
	sent.rec = st.Record
	env, err := ps.envelope(it, st)
	if env == nil || err != nil {
		return nil, sent, err
	}
	from, signature := len(*buf), env.Signature
	env.Signature = nil // on the wire it is in the message
	out, err := proto.Encode(*buf, env)
	if err != nil {
		return nil, sent, fmt.Errorf("encode it: %w", err)
	}
	*buf = out
	return &proto.Message{
		Id: it.Key.ID.String(), Type: messageType(it), Payload: out[from:len(out):len(out)], Signature: signature,
		Timestamp: ps.o.cfg.Clock.Now().UnixNano(),
	}, sent, nil
}

func messageType(it backlog.Item) proto.MessageType {
	if it.Key.Part == backlog.PartResult {
		return proto.TypeResult
	}
	return proto.TypeData
}

// rewrapped returns the envelope of an entry, with its key wrapped again if the
// peer could not read it.
func (ps *peerSender) rewrapped(it backlog.Item, st *proto.Stored) (*proto.Envelope, error) {
	if !ps.o.deliveries.get(it.Key).rewrap || ps.o.cfg.Rewrap == nil {
		return st.Envelope, nil
	}
	env, err := ps.o.cfg.Rewrap(st)
	if err != nil {
		return nil, fmt.Errorf("wrap its key again: %w", err)
	}
	return env, nil
}

// envelope returns the envelope of an entry with its body; nil if a streamed body
// must be sent first.
func (ps *peerSender) envelope(it backlog.Item, st *proto.Stored) (*proto.Envelope, error) {
	env, err := ps.rewrapped(it, st)
	if err != nil || st.Record.BodyBlob == "" {
		return env, err
	}
	h, err := proto.ParseHeader(env.GetHeader())
	if err != nil {
		return nil, fmt.Errorf("read its header: %w", err)
	}
	if h.Streamed() {
		if ps.bodyArrived(it) {
			return env, nil
		}
		ps.queueBody(it)
		return nil, nil
	}
	body, err := ps.o.cfg.Bodies.Load(st.Record.BodyBlob)
	if err != nil {
		return nil, fmt.Errorf("load its body: %w", err)
	}
	return &proto.Envelope{Header: env.Header, Body: body, Slot: env.Slot, Path: env.Path, Index: env.Index, Signature: env.Signature}, nil
}
