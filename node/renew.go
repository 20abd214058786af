package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport"
)

const (
	identityFirst = time.Minute         // after the start: who is to be asked is met by then
	identityEvery = time.Hour           // between two looks at key and certificate
	lapsedEvery   = time.Minute         // likewise, once the certificate has ended
	sealingLife   = 7 * 24 * time.Hour  // of a sealing key, until the next is made
	renewBefore   = 30 * 24 * time.Hour // the end of a certificate
)

// keepIdentity makes a new sealing key every week, removes those that have
// nothing left to open, and has the certificate renewed before it ends: at its hours,
// and as soon as an admin is connected.
func (n *Node) keepIdentity(ctx context.Context) error {
	t := time.NewTimer(identityFirst)
	defer t.Stop()
	var last string // what the log has been told
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-n.adminConnected:
		case <-t.C:
			t.Reset(n.untilNextCheck())
			if err := n.rotate(); err != nil {
				n.log.Error("the sealing keys cannot be kept; it is tried again", "err", err)
			}
		}
		err := n.renewSelf(ctx)
		if err != nil && ctx.Err() == nil && err.Error() != last {
			n.log.Warn("this node's certificate could not be renewed; it is tried again", "err", err)
		}
		last = fmt.Sprint(err)
	}
}

// untilNextCheck returns when key and certificate are looked at again without a reason.
func (n *Node) untilNextCheck() time.Duration {
	if n.cfg.Clock.Now().After(n.book.Self().Member.NotAfter) {
		return lapsedEvery
	}
	return identityEvery
}

// adminMayRenew has this node's certificate looked at when p, who is connected, may renew it.
func (n *Node) adminMayRenew(p proto.PeerID) {
	if m, ok := n.book.Renewable(p); !ok || !m.HasRole(identity.RoleAdmin) {
		return
	}
	select {
	case n.adminConnected <- struct{}{}:
	default: // it is about to be
	}
}

// rotate makes the next sealing key when it is time, and tells the neighbours.
func (n *Node) rotate() error {
	now := n.cfg.Clock.Now()
	current := n.keys.SealingKey()
	if now.Sub(current.NotBefore) >= sealingLife {
		// The suite stays: bodies that were streamed to the old key are read with it.
		if err := n.keys.Rotate(current.Suite, now); err != nil {
			return err
		}
		n.log.Info("a new sealing key was made", "number", n.keys.SealingKey().Seq)
		n.net.BroadcastHello()
	}
	removed, err := n.keys.Expire(now)
	if removed > 0 {
		n.log.Info("old sealing keys were removed", "count", removed)
	}
	return err
}

// renewSelf asks the connected admins, one after the other, for a new certificate
// when this node's own ends soon.
func (n *Node) renewSelf(ctx context.Context) error {
	self, now := n.book.Self().Member, n.cfg.Clock.Now()
	if self.NotAfter.Sub(now) >= renewBefore {
		return nil
	}
	request := &proto.JoinRequest{Name: self.Name, Certificate: self.Cert, KeyRecord: n.keys.KeyRecord()}
	reply, err := n.renew(ctx, n.keys.Peer(), request) // who has the root key needs nobody
	if err == nil {
		return n.installCertificate(self, reply.GetCertificate())
	}
	var errs []error
	for _, p := range n.book.List() {
		if !p.Member.HasRole(identity.RoleAdmin) || p.Peer == n.keys.Peer() || !n.net.Connected(p.Peer) {
			continue
		}
		reply, err := n.net.RequestRenewal(ctx, p.Peer, request)
		switch {
		case err != nil:
			errs = append(errs, err)
		case reply.GetRefusal() != "":
			errs = append(errs, fmt.Errorf("%s refuses: %s", p.Label(), reply.GetRefusal()))
		default:
			return n.installCertificate(self, reply.GetCertificate())
		}
	}
	if len(errs) == 0 {
		return errors.New("no node with the role admin is connected")
	}
	return errors.Join(errs...)
}

// installCertificate takes a new certificate: into the file first, then before the peers.
func (n *Node) installCertificate(old identity.Member, cert *proto.Signed) error {
	self, err := n.mesh.VerifyMember(cert, n.cfg.Clock.Now())
	switch {
	case err != nil:
		return fmt.Errorf("the new certificate: %w", err)
	case self.Peer != old.Peer || self.Name != old.Name || !self.NotAfter.After(old.NotAfter):
		return fmt.Errorf("the new certificate is of %s until %s: it does not continue the old one", self.Name, self.NotAfter)
	}
	m, err := readMembership(n.cfg.Dir)
	if err != nil {
		return err
	}
	if m.Certificate, err = proto.Encode(nil, cert); err != nil {
		return err
	}
	m.AfterGrace = false
	if err := m.write(n.cfg.Dir); err != nil {
		return err
	}
	if err := n.book.Enroll(n.mesh, cert); err != nil {
		return err
	}
	n.log.Info("this node's certificate was renewed", "until", self.NotAfter)
	n.net.BroadcastHello()
	return nil
}

// renew answers a member that shows its certificate: who it is was proven by the
// connection. The new one says the same of it, for another year.
func (n *Node) renew(ctx context.Context, from proto.PeerID, r *proto.JoinRequest) (*proto.JoinReply, error) {
	now := n.cfg.Clock.Now()
	m, err := n.mesh.VerifyMember(r.GetCertificate(), now)
	if err != nil && !m.Grace && !(from == n.keys.Peer() && errors.Is(err, identity.ErrExpired)) { // itself it renews with the root key
		return nil, fmt.Errorf("renewal: %w", err)
	}
	known, ok := n.book.Get(from)
	if from == n.keys.Peer() {
		known, ok = n.book.Self(), true
	}
	switch {
	case m.Peer != from:
		return nil, errors.New("renewal: the certificate is of another node")
	case n.book.Blocked(from):
		return nil, transport.ErrBlocked
	case n.book.Revoked(from):
		return nil, transport.ErrRevoked
	case !ok:
		return nil, errors.New("renewal: the node is not known here: say hello first")
	case known.Member.NotBefore.After(m.NotBefore):
		return nil, errors.New("renewal: a newer certificate of this node is known")
	case !bytes.Equal(known.Member.Cert.GetDetails(), r.GetCertificate().GetDetails()):
		// A hello is where a certificate is held against revocations, its issuer's too.
		return nil, errors.New("renewal: another certificate of this node is known: say hello with this one first")
	case r.GetName() != "" && r.GetName() != m.Name:
		return nil, fmt.Errorf("renewal: the name stays %s", m.Name)
	case m.NotAfter.Sub(now) >= renewBefore:
		return nil, fmt.Errorf("renewal: the certificate is good until %s, which is more than %d days", m.NotAfter.Format(time.DateOnly), renewBefore/(24*time.Hour))
	}
	cert, err := n.issue(identity.Member{Peer: from, Name: m.Name, Roles: slices.Clone(m.Roles)})
	if err != nil {
		return nil, fmt.Errorf("renewal: %w", err)
	}
	if from != n.keys.Peer() {
		if err := n.book.Learn(ctx, &proto.KnownPeer{Certificate: cert, KeyRecord: r.GetKeyRecord(), Addrs: known.Addrs}); err != nil {
			return nil, fmt.Errorf("renewal: %w", err)
		}
		if err := n.audit(ctx, "peer.renew", from.String()); err != nil {
			return nil, err
		}
	}
	return &proto.JoinReply{Certificate: cert, Root: n.mesh.Root}, nil
}
