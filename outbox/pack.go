package outbox

import (
	"errors"
	"fmt"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store/backlog"
)

// cancelPause is how long the wish to cancel a task waits for the task itself to
// be answered first.
const cancelPause = time.Second

// pack makes messages of taken entries and notes that they fly. Entries that
// cannot be sent now are left out and looked after.
func (l *lane) pack(items []backlog.Item) []*proto.Message {
	msgs := make([]*proto.Message, 0, len(items))
	flights := make([]flight, 0, len(items))
	var top proto.Seq
	for _, it := range items {
		msg, rec, err := l.message(it)
		switch {
		case errors.Is(err, backlog.ErrNotFound):
			continue // it ended after it was taken
		case err != nil:
			l.o.cfg.Logger.Error("cannot send; it is tried again later", "entry", it.Key, "err", err)
			l.failed(it, err.Error())
			continue
		case msg == nil:
			continue // it does not go out now
		}
		if seq := rec.Seq(); it.Key.Part == backlog.PartTask && top.Compare(seq) < 0 {
			top = seq
		}
		msgs, flights = append(msgs, msg), append(flights, flight{it, rec})
	}
	l.o.links.sending(l.peer, top)
	l.mu.Lock()
	l.flying = append(l.flying, flights...)
	l.mu.Unlock()
	return msgs
}

// message makes the message of one entry; nil when it does not go out now.
func (l *lane) message(it backlog.Item) (*proto.Message, *proto.Record, error) {
	if it.Key.Part == backlog.PartCancel {
		return l.cancelMessage(it)
	}
	st := l.o.fresh.take(it.Key)
	if st == nil || it.Version > 0 {
		var err error
		if st, err = l.o.backlog.Read(it); err != nil {
			return nil, nil, fmt.Errorf("read it: %w", err)
		}
	}
	env, err := l.envelope(it, st)
	if env == nil || err != nil {
		return nil, nil, err
	}
	payload, err := proto.Encode(nil, &proto.Envelope{Header: env.Header, Body: env.Body, Slot: env.Slot, Path: env.Path, Index: env.Index})
	if err != nil {
		return nil, nil, fmt.Errorf("encode it: %w", err)
	}
	kind := proto.TypeData
	if it.Key.Part == backlog.PartResult {
		kind = proto.TypeResult
	}
	return &proto.Message{
		Id: it.Key.ID.String(), Type: kind, Payload: payload, Signature: env.Signature,
		Timestamp: l.o.cfg.Clock.Now().UnixNano(),
	}, st.Record, nil
}

// wrapped returns the envelope of an entry, its key wrapped anew when the peer
// could not read it.
func (l *lane) wrapped(it backlog.Item, st *proto.Stored) (*proto.Envelope, error) {
	if !l.o.notes.get(it.Key).rewrap || l.o.cfg.Rewrap == nil {
		return st.Envelope, nil
	}
	env, err := l.o.cfg.Rewrap(st)
	if err != nil {
		return nil, fmt.Errorf("wrap its key anew: %w", err)
	}
	return env, nil
}

// envelope returns the envelope of an entry with its body; nil when a streamed
// body must go first.
func (l *lane) envelope(it backlog.Item, st *proto.Stored) (*proto.Envelope, error) {
	env, err := l.wrapped(it, st)
	if err != nil || st.Record.BodyBlob == "" {
		return env, err
	}
	h, err := proto.ParseHeader(env.GetHeader())
	if err != nil {
		return nil, fmt.Errorf("read its header: %w", err)
	}
	if _, _, streamed := h.Stream(); streamed {
		if l.hasBody(it) {
			return env, nil
		}
		l.wantBody(it)
		return nil, nil
	}
	body, err := l.o.cfg.Bodies.Load(st.Record.BodyBlob)
	if err != nil {
		return nil, fmt.Errorf("load its body: %w", err)
	}
	return &proto.Envelope{Header: env.Header, Body: body, Slot: env.Slot, Path: env.Path, Index: env.Index, Signature: env.Signature}, nil
}
