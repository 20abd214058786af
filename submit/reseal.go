package submit

import (
	"fmt"

	"github.com/balefire/balefire/addressbook"
	"github.com/balefire/balefire/bodies"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/outbox"
	"github.com/balefire/balefire/proto"
)

// Sealing seals drafts and their bodies, and opens what this node sealed.
type Sealing struct {
	Book   *addressbook.Book
	Sealer *identity.Sealer
	Bodies *bodies.Store
}

// Open returns the header and the sealed content of a task whose home is this node.
func (s *Sealing) Open(st *proto.Stored) (h proto.Header, plain []byte, err error) {
	if h, err = proto.ParseHeader(st.GetEnvelope().GetHeader()); err != nil {
		return h, nil, err
	}
	env := &proto.Envelope{Header: st.Envelope.Header, Body: st.Envelope.Body}
	if name := st.GetRecord().GetBodyBlob(); name != "" && !h.Streamed() {
		if env.Body, err = s.Bodies.Get(name, proto.MaxSealed); err != nil {
			return h, nil, err
		}
	}
	plain, err = identity.OpenWith([32]byte(st.GetKey()), env, &h)
	return h, plain, err
}

// key returns the current sealing key of a target.
func (s *Sealing) key(target proto.PeerID) (identity.KeyRecord, error) {
	to, ok := s.Book.KeyRecord(target)
	if !ok {
		return to, fmt.Errorf("the sealing key of %s is not known", target.Short())
	}
	return to, nil
}

// Rewrap wraps the content key of an envelope for its target's current key.
func (s *Sealing) Rewrap(st *proto.Stored) (*proto.Envelope, error) {
	h, err := proto.ParseHeader(st.GetEnvelope().GetHeader())
	if err != nil {
		return nil, err
	}
	to, err := s.key(h.Target)
	if err != nil {
		return nil, err
	}
	slot, err := s.Sealer.WrapKey(st.Envelope.Header, to, [32]byte(st.GetKey()))
	if err != nil {
		return nil, err
	}
	st.Envelope.Slot = slot
	return st.Envelope, nil
}

// Reseal seals a task of this home again, with the sequence and the times of its
// record. A body that is an object stays as it is.
func (s *Sealing) Reseal(st *proto.Stored) (d *outbox.Draft, done func(), err error) {
	h, plain, err := s.Open(st)
	if err != nil {
		return nil, nil, err
	}
	to, err := s.key(h.Target)
	if err != nil {
		return nil, nil, err
	}
	rec, done := st.GetRecord(), func() {}
	h.Seq, h.Created, h.NotAfter = rec.Seq(), rec.GetCreatedMs(), rec.GetNotAfterMs()
	old := rec.GetBodyBlob() // it stays until the record names the new one
	d = &outbox.Draft{Record: &proto.Record{BodyBlob: old}, Header: h}
	if d.Envelope, d.Key, err = s.Sealer.Seal(&d.Header, to, plain); err != nil {
		return nil, nil, err
	}
	d.Leaf = identity.EnvelopeLeaf(d.Envelope.Header, d.Envelope.Body, h.What)
	if old == "" || h.Streamed() {
		return d, done, nil
	}
	if d.Record.BodyBlob, err = s.Bodies.Put(d.Envelope.Body, false); err != nil {
		return nil, nil, err
	}
	d.Envelope.Body = nil
	return d, func() {
		s.Bodies.Release(d.Record.BodyBlob)
		s.Bodies.Drop(old)
	}, nil
}
