package queue

import (
	"fmt"

	"github.com/balefire/balefire/bodies"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/ownership"
	"github.com/balefire/balefire/proto"
)

// Results encrypts and signs results on their way from an owner to a home.
type Results struct{ *Queues }

// Seal seals outcomes for a home and signs them as a group.
func (s Results) Seal(home proto.PeerID, all []ownership.SealRequest) ([]*proto.Envelope, error) {
	to, ok := s.parts.Book.KeyRecord(home)
	if !ok {
		return nil, fmt.Errorf("the sealing key of %s is not known", home.Short())
	}
	now := s.cfg.Clock.Now()
	sealed, leaves := make([]*proto.Envelope, len(all)), make([][32]byte, len(all))
	for i, x := range all {
		o := x.Outcome
		h := proto.Header{
			What: proto.WhatResult, Mesh: s.parts.Mesh.ID, ID: x.Task, Origin: s.self, Target: home,
			Seq:     proto.Seq{Boot: x.Outcome.GetEpochBoot(), Counter: x.Outcome.GetEpochCounter()},
			Created: now.UnixMilli(), NotAfter: now.Add(proto.MaxTTL).UnixMilli(),
		}
		if o.GetObject() != nil {
			name, size, lost := s.parts.Bodies.Object(x.Task, o)
			if lost != nil {
				o = lost
			} else {
				h.SetObject(name, size)
			}
		}
		plain, err := proto.Encode(nil, o)
		if err != nil {
			return nil, err
		}
		if sealed[i], _, err = s.parts.Sealer.Seal(&h, to, plain); err != nil {
			return nil, err
		}
		leaves[i] = identity.EnvelopeLeaf(sealed[i].GetHeader(), sealed[i].GetBody(), h.What)
	}
	sig, proofs := s.parts.Keys.SignGroup(leaves)
	for i, e := range sealed {
		e.Signature, e.Index, e.Path = sig, proofs[i].Index, proofs[i].Path
	}
	return sealed, nil
}

// Unseal verifies and decodes the sealed result of an owner.
func (s Results) Unseal(from proto.PeerID, m *proto.Message) (u ownership.Unsealed, err error) {
	h, o, err := s.OpenResult(from, m)
	if err != nil {
		u.Task = taskOfResult(m)
		return u, err
	}
	u = ownership.Unsealed{Task: h.ID, Outcome: o}
	if h.Streamed() {
		u.Absent = s.parts.Bodies.Missing(from, m, h.ID, o)
	}
	return u, nil
}

// taskOfResult returns the task of a sealed result, or zero if it cannot be decoded.
func taskOfResult(m *proto.Message) (id proto.TaskID) {
	env := new(proto.Envelope)
	if proto.DecodeKnown(m.GetPayload(), env) != nil {
		return id
	}
	if h, err := proto.ParseHeader(env.GetHeader()); err == nil {
		id = h.ID
	}
	return id
}

// OpenResult verifies and decodes the sealed result of an owner, except a streamed body.
func (qs *Queues) OpenResult(from proto.PeerID, m *proto.Message) (*proto.Header, *proto.Outcome, error) {
	env, o := new(proto.Envelope), new(proto.Outcome)
	if err := proto.DecodeKnown(m.GetPayload(), env); err != nil {
		return nil, nil, err
	}
	opened, err := qs.parts.Checks().Check(env)
	if err != nil {
		return nil, nil, err
	}
	h := &opened.Header
	if h.What != proto.WhatResult || h.Origin != from {
		return nil, nil, identity.BadForm("it is not a result of %s", from.Short())
	}
	if err := proto.DecodeKnown(opened.Content, o); err != nil {
		return nil, nil, err
	}
	if !h.Streamed() {
		o.Object = nil
		return h, o, identity.CheckBody(o.GetBody(), o.GetBodySize(), o.GetBodyDigest())
	}
	if err := o.GetObject().Check(h, o.GetBodySize()); err != nil {
		return nil, nil, identity.BadForm("%w", err)
	}
	if len(o.GetBody()) > 0 {
		return nil, nil, identity.BadForm("it has two bodies")
	}
	if _, err := bodies.RefOf(o.GetObject(), o.GetBodySize(), o.GetBodyDigest()); err != nil {
		return nil, nil, identity.BadForm("%w", err)
	}
	return h, o, nil
}
