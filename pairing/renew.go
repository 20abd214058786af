package pairing

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/balefire/balefire/addressbook"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
)

// The times of what [Pairing.Run] does.
const (
	CheckFirst  = time.Minute         // after the start: other members are connected by then
	CheckEvery  = time.Hour           // between checks of keys and certificate
	LapsedEvery = time.Minute         // the same once the certificate has expired
	SealingLife = 7 * 24 * time.Hour  // age at which a sealing key is replaced
	RenewBefore = 30 * 24 * time.Hour // time before its expiry at which a certificate is renewed
	CompareFor  = 5 * time.Minute     // how long a restored node looks for an admin, in running time
)

// keepIdentity creates a new sealing key every week, removes keys that have nothing left
// to open, and renews the certificate before it expires: on a schedule, and as soon as
// an admin is connected.
func (p *Pairing) keepIdentity(ctx context.Context) {
	t := time.NewTimer(CheckFirst)
	defer t.Stop()
	var last string // error logged last
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.adminConnected:
		case <-t.C:
			t.Reset(p.untilNextCheck())
			if err := p.RotateKeys(); err != nil {
				p.Logger.Error("could not update the sealing keys; will retry", "err", err)
			}
		}
		err := p.renewSelf(ctx)
		if err != nil && ctx.Err() == nil && err.Error() != last {
			p.Logger.Warn("could not renew this node's certificate; will retry", "err", err)
		}
		last = fmt.Sprint(err)
	}
}

// untilNextCheck returns the time until the next regular check of keys and certificate.
func (p *Pairing) untilNextCheck() time.Duration {
	now, self := p.Clock.Now(), p.Book.Self().Member
	if now.After(self.NotAfter) || now.Add(identity.EarlyGrace).Before(self.NotBefore) {
		return LapsedEvery
	}
	return CheckEvery
}

// PeerConnected triggers a check of this node's certificate if peer may renew it.
func (p *Pairing) PeerConnected(peer proto.PeerID) {
	if !p.isAdmin(peer) {
		return
	}
	select {
	case p.adminConnected <- struct{}{}:
	default: // a check is already pending
	}
}

// RotateKeys creates a new sealing key when it is due, and announces it to the peers;
// keys that have nothing left to open are removed.
func (p *Pairing) RotateKeys() error {
	if p.Clock.Doubted() { // a key of a wrong time would be refused, and none may be removed
		return nil
	}
	now := p.Clock.Now()
	current := p.Keys.SealingKey()
	if now.Sub(current.NotBefore) >= SealingLife || fromFuture(current, now) {
		// The suite stays the same, because bodies streamed to the old key are decrypted
		// with it.
		if err := p.Keys.Rotate(current.Suite, now); err != nil {
			return err
		}
		p.Logger.Info("created a new sealing key", "number", p.Keys.SealingKey().Seq)
		p.net.BroadcastHello()
	}
	removed, err := p.Keys.Expire(now)
	if removed > 0 {
		p.Logger.Info("removed old sealing keys", "count", removed)
	}
	return err
}

// fromFuture reports whether a sealing key was made under a clock that was so far ahead that
// peers refuse it until its time has come.
func fromFuture(key identity.KeyRecord, now time.Time) bool {
	return key.NotBefore.Sub(now) > identity.EarlyGrace
}

// renewSelf asks the connected admins, one by one, for a new certificate if this node's
// own expires soon.
func (p *Pairing) renewSelf(ctx context.Context) error {
	self, now := p.Book.Self().Member, p.Clock.Now()
	switch {
	case p.Clock.Doubted():
		return nil
	case now.Add(identity.EarlyGrace).Before(self.NotBefore):
		return p.reissueSelf(self)
	case self.NotAfter.Sub(now) >= RenewBefore:
		return nil
	}
	request := &proto.JoinRequest{Name: self.Name, Certificate: self.Cert, KeyRecord: p.Keys.KeyRecord()}
	reply, err := p.renew(ctx, p.Keys.Peer(), request) // a node with the root key needs no other one
	if err == nil {
		return p.installCertificate(self, reply.GetCertificate())
	}
	var errs []error
	for _, x := range p.Book.List() {
		if !x.Member.HasRole(identity.RoleAdmin) || !p.net.Connected(x.Peer) {
			continue
		}
		reply, err := p.net.RequestRenewal(ctx, x.Peer, request)
		switch {
		case err != nil:
			errs = append(errs, err)
		case reply.GetRefusal() != "":
			errs = append(errs, fmt.Errorf("%s refuses: %s", x.Label(), reply.GetRefusal()))
		default:
			err := p.installCertificate(self, reply.GetCertificate())
			if err == nil {
				return nil
			}
			errs = append(errs, fmt.Errorf("%s: %w", x.Label(), err))
		}
	}
	if len(errs) == 0 {
		return errors.New("no node with the role admin is connected")
	}
	return errors.Join(errs...)
}

// installCertificate installs a new certificate: first in the file, then for the peers.
func (p *Pairing) installCertificate(old identity.Member, cert *proto.Signed) error {
	self, err := p.Mesh.VerifyMember(cert, p.Clock.Now())
	switch {
	case err != nil:
		return fmt.Errorf("the new certificate: %w", err)
	case self.Peer != old.Peer || self.Name != old.Name || !self.NotAfter.After(old.NotAfter):
		return fmt.Errorf("the new certificate, for %s until %s, does not continue the old one", self.Name, self.NotAfter)
	}
	m, err := readMembership(p.Dir)
	if err != nil {
		return err
	}
	if m.Certificate, err = proto.Encode(nil, cert); err != nil {
		return err
	}
	wasAfter := m.AfterGrace
	switch m.AfterGrace = p.Clock.Now().After(old.NotAfter.Add(identity.MemberGrace)); {
	case !m.AfterGrace:
		m.Until = time.Time{}
	case !wasAfter:
		m.Until = old.NotAfter
	}
	return p.useCertificate(m, cert, self.NotAfter)
}

// reissueSelf replaces the certificate of a node that issued it to itself, with the root key
// of the mesh, under a clock that was far ahead. The clock is believed now.
func (p *Pairing) reissueSelf(self identity.Member) error {
	m, err := readMembership(p.Dir)
	root, now := p.root(), p.Clock.Now()
	if err != nil || !m.AfterGrace || root == nil {
		return err
	}
	cert, err := root.IssueMember(identity.Member{Peer: self.Peer, Name: self.Name, Roles: self.Roles}, now)
	if err != nil {
		return err
	}
	again, err := p.Mesh.VerifyMember(cert, now)
	if err != nil || again.NotAfter.Before(m.Until) { // then this clock is as wrong as that one was
		return err
	}
	if m.Certificate, err = proto.Encode(nil, cert); err != nil {
		return err
	}
	return p.useCertificate(m, cert, again.NotAfter)
}

// useCertificate stores m with a new certificate, and announces it to the peers.
func (p *Pairing) useCertificate(m membership, cert *proto.Signed, until time.Time) error {
	if err := m.write(p.Dir); err != nil {
		return err
	}
	if err := p.Book.Enroll(p.Mesh, cert); err != nil {
		return err
	}
	p.Logger.Info("this node's certificate was renewed", "until", until)
	p.net.BroadcastHello()
	return nil
}

// renew answers a member that presents its certificate; the connection has proven its
// identity. The new certificate states the same for another year.
func (p *Pairing) renew(ctx context.Context, from proto.PeerID, r *proto.JoinRequest) (*proto.JoinReply, error) {
	now := p.Clock.Now()
	m, err := p.Mesh.VerifyMember(r.GetCertificate(), now)
	if err != nil && !m.Grace && !(from == p.Keys.Peer() && errors.Is(err, identity.ErrExpired)) { // this node renews its own with the root key
		return nil, fmt.Errorf("renewal: %w", err)
	}
	known, ok := p.Book.Get(from)
	if from == p.Keys.Peer() {
		known, ok = p.Book.Self(), true
	}
	switch {
	case m.Peer != from:
		return nil, errors.New("renewal: the certificate belongs to another node")
	case p.Book.Blocked(from):
		return nil, addressbook.ErrBlocked
	case p.Book.Revoked(from):
		return nil, addressbook.ErrRevoked
	case !ok:
		return nil, errors.New("renewal: the node is not known here: send a hello first")
	case known.Member.NotBefore.After(m.NotBefore) && sameStatement(known.Member, m) && known.Member.NotAfter.Sub(now) >= RenewBefore:
		return &proto.JoinReply{Certificate: known.Member.Cert, Root: p.Mesh.Root}, nil // the answer with it was lost
	case known.Member.NotBefore.After(m.NotBefore):
		return nil, errors.New("renewal: a newer certificate of this node is known")
	case !bytes.Equal(known.Member.Cert.GetDetails(), r.GetCertificate().GetDetails()):
		// A hello checks a certificate against the revocations, including those of its
		// issuer.
		return nil, errors.New("renewal: another certificate of this node is known: send a hello with this one first")
	case r.GetName() != "" && r.GetName() != m.Name:
		return nil, fmt.Errorf("renewal: the name %s cannot be changed", m.Name)
	case m.NotAfter.Sub(now) >= RenewBefore:
		return nil, fmt.Errorf("renewal: the certificate is valid until %s, for more than %d days", m.NotAfter.Format(time.DateOnly), RenewBefore/(24*time.Hour))
	}
	cert, err := p.issue(identity.Member{Peer: from, Name: m.Name, Roles: slices.Clone(m.Roles)})
	if err != nil {
		return nil, fmt.Errorf("renewal: %w", err)
	}
	if from != p.Keys.Peer() {
		if err := p.Book.Learn(ctx, &proto.KnownPeer{Certificate: cert, KeyRecord: r.GetKeyRecord(), Addrs: known.Addrs}); err != nil {
			return nil, fmt.Errorf("renewal: %w", err)
		}
		if err := p.Audit(ctx, "peer.renew", from.String()); err != nil {
			return nil, err
		}
	}
	return &proto.JoinReply{Certificate: cert, Root: p.Mesh.Root}, nil
}

// sameStatement reports whether two certificates of a node differ in their validity at most.
func sameStatement(a, b identity.Member) bool {
	return a.Name == b.Name && slices.Equal(a.Roles, b.Roles)
}
