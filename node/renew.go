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
	identityFirst = time.Minute         // after the start: other members are connected by then
	identityEvery = time.Hour           // interval between checks of keys and certificate
	lapsedEvery   = time.Minute         // the same once the certificate has expired
	sealingLife   = 7 * 24 * time.Hour  // age at which a sealing key is replaced
	renewBefore   = 30 * 24 * time.Hour // time before its expiry at which a certificate is renewed
)

// keepIdentity creates a new sealing key every week, removes keys that have nothing left
// to open, and renews the certificate before it expires: on a schedule, and as soon as
// an admin is connected.
func (n *Node) keepIdentity(ctx context.Context) error {
	t := time.NewTimer(identityFirst)
	defer t.Stop()
	var last string // error logged last
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-n.adminConnected:
		case <-t.C:
			t.Reset(n.untilNextCheck())
			if err := n.rotate(); err != nil {
				n.log.Error("could not update the sealing keys; will retry", "err", err)
			}
		}
		err := n.renewSelf(ctx)
		if err != nil && ctx.Err() == nil && err.Error() != last {
			n.log.Warn("could not renew this node's certificate; will retry", "err", err)
		}
		last = fmt.Sprint(err)
	}
}

// untilNextCheck returns the time until the next regular check of keys and certificate.
func (n *Node) untilNextCheck() time.Duration {
	if n.cfg.Clock.Now().After(n.book.Self().Member.NotAfter) {
		return lapsedEvery
	}
	return identityEvery
}

// adminMayRenew triggers a check of this node's certificate if p, which has connected,
// may renew it.
func (n *Node) adminMayRenew(p proto.PeerID) {
	if m, ok := n.book.Renewable(p); !ok || !m.HasRole(identity.RoleAdmin) {
		return
	}
	select {
	case n.adminConnected <- struct{}{}:
	default: // a check is already pending
	}
}

// rotate creates a new sealing key when it is due, and announces it to the peers.
func (n *Node) rotate() error {
	now := n.cfg.Clock.Now()
	current := n.keys.SealingKey()
	if now.Sub(current.NotBefore) >= sealingLife {
		// The suite stays the same, because bodies streamed to the old key are decrypted
		// with it.
		if err := n.keys.Rotate(current.Suite, now); err != nil {
			return err
		}
		n.log.Info("created a new sealing key", "number", n.keys.SealingKey().Seq)
		n.net.BroadcastHello()
	}
	removed, err := n.keys.Expire(now)
	if removed > 0 {
		n.log.Info("removed old sealing keys", "count", removed)
	}
	return err
}

// renewSelf asks the connected admins, one by one, for a new certificate if this node's
// own expires soon.
func (n *Node) renewSelf(ctx context.Context) error {
	self, now := n.book.Self().Member, n.cfg.Clock.Now()
	if self.NotAfter.Sub(now) >= renewBefore {
		return nil
	}
	request := &proto.JoinRequest{Name: self.Name, Certificate: self.Cert, KeyRecord: n.keys.KeyRecord()}
	reply, err := n.renew(ctx, n.keys.Peer(), request) // a node with the root key needs no other one
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

// installCertificate installs a new certificate: first in the file, then for the peers.
func (n *Node) installCertificate(old identity.Member, cert *proto.Signed) error {
	self, err := n.mesh.VerifyMember(cert, n.cfg.Clock.Now())
	switch {
	case err != nil:
		return fmt.Errorf("the new certificate: %w", err)
	case self.Peer != old.Peer || self.Name != old.Name || !self.NotAfter.After(old.NotAfter):
		return fmt.Errorf("the new certificate, for %s until %s, does not continue the old one", self.Name, self.NotAfter)
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

// renew answers a member that presents its certificate; the connection has proven its
// identity. The new certificate states the same for another year.
func (n *Node) renew(ctx context.Context, from proto.PeerID, r *proto.JoinRequest) (*proto.JoinReply, error) {
	now := n.cfg.Clock.Now()
	m, err := n.mesh.VerifyMember(r.GetCertificate(), now)
	if err != nil && !m.Grace && !(from == n.keys.Peer() && errors.Is(err, identity.ErrExpired)) { // this node renews its own with the root key
		return nil, fmt.Errorf("renewal: %w", err)
	}
	known, ok := n.book.Get(from)
	if from == n.keys.Peer() {
		known, ok = n.book.Self(), true
	}
	switch {
	case m.Peer != from:
		return nil, errors.New("renewal: the certificate belongs to another node")
	case n.book.Blocked(from):
		return nil, transport.ErrBlocked
	case n.book.Revoked(from):
		return nil, transport.ErrRevoked
	case !ok:
		return nil, errors.New("renewal: the node is not known here: send a hello first")
	case known.Member.NotBefore.After(m.NotBefore):
		return nil, errors.New("renewal: a newer certificate of this node is known")
	case !bytes.Equal(known.Member.Cert.GetDetails(), r.GetCertificate().GetDetails()):
		// A hello checks a certificate against the revocations, including those of its
		// issuer.
		return nil, errors.New("renewal: another certificate of this node is known: send a hello with this one first")
	case r.GetName() != "" && r.GetName() != m.Name:
		return nil, fmt.Errorf("renewal: the name %s cannot be changed", m.Name)
	case m.NotAfter.Sub(now) >= renewBefore:
		return nil, fmt.Errorf("renewal: the certificate is valid until %s, for more than %d days", m.NotAfter.Format(time.DateOnly), renewBefore/(24*time.Hour))
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
