// Package addressbook keeps what this node knows about the others: certificate, sealing
// key, addresses, the highest boot number, and which certificates were revoked. What a
// peer states is checked against the mesh before it is stored, and stored before it
// counts; a restart or a clock that was set back neither admits a peer nor loses one.
package addressbook

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
)

// Errors of the address book.
var (
	// ErrUnknownPeer is returned for a name or id that no known peer has.
	ErrUnknownPeer = errors.New("unknown peer")
	// ErrAmbiguous is returned for a name or a part of an id that several peers have.
	ErrAmbiguous = errors.New("ambiguous peer")
	// ErrOldBoot is returned for a peer whose boot number decreased.
	ErrOldBoot = errors.New("addressbook: the boot number decreased")
	// ErrTwin is returned for a peer whose key is in use on two nodes.
	ErrTwin = errors.New("addressbook: the same key is in use twice")
	// ErrOldKey is returned for a key record older than the known one.
	ErrOldKey = errors.New("addressbook: an older key record")
	// ErrBookFull is returned for an unknown peer when the book has MaxPeers peers.
	ErrBookFull = errors.New("addressbook: the address book is full")
	// ErrBlocked is returned for a peer that an operator blocked here.
	ErrBlocked = errors.New("addressbook: the peer is blocked")
	// ErrNoMember is returned by a book whose node is in no mesh yet.
	ErrNoMember = errors.New("addressbook: this node is in no mesh yet; join one with a ticket")
)

// bookPrefix is the key prefix of a peer in the bucket Peers; the id follows.
const bookPrefix = 'p'

// MaxPeers bounds the known peers, at some KiB each, so that a malicious admin, or a
// stolen admin key, cannot fill the memory of every node with made-up members.
const MaxPeers = 4096

// bookTimeout bounds a write that a hello waits for.
const bookTimeout = 5 * time.Second

// seenEvery is how often the hellos of a peer that state nothing new are noted: a member may
// repeat its hello without end, and a write costs an fsync.
const seenEvery = time.Minute

// Multiaddrs reads addresses, which the book keeps as text.
type Multiaddrs interface {
	// Usable returns the addresses that can lead to peer p, at most proto.MaxAddrs. here:
	// p is known to be on this machine, so that local addresses are accepted.
	Usable(p proto.PeerID, addrs []string, here bool) []string
	// Loopback reports whether an address leads to its own machine.
	Loopback(addr string) bool
}

// A Book is the address book: every node that was introduced to this one, with its
// certificate, sealing key, addresses and highest boot number. Reads are served from
// memory.
type Book struct {
	store *store.Store
	keys  *identity.Keys
	clock clock.Clock
	multi Multiaddrs

	writing sync.Mutex // held from read to write, so that entries never revert

	mu      sync.RWMutex
	mesh    identity.Mesh
	self    *Peer                  // its cert is nil before Enroll
	entries map[proto.PeerID]*Peer // values are immutable
	revoked identity.Revocations
	boot    uint64 // of this node; 0: not set yet
	bootID  proto.BootID
}

// Open reads the book stored in s. A node that is not in a mesh yet passes a zero
// mesh and a nil certificate, and calls [Book.Enroll] after joining one.
func Open(s *store.Store, mesh identity.Mesh, keys *identity.Keys, cert *proto.Signed, clk clock.Clock, multi Multiaddrs) (*Book, error) {
	b := &Book{store: s, keys: keys, clock: clk, multi: multi, self: &Peer{Peer: keys.Peer()}}
	if cert != nil {
		if err := b.enroll(mesh, cert); err != nil {
			return nil, err
		}
	}
	if err := b.load(); err != nil {
		return nil, fmt.Errorf("open the address book: %w", err)
	}
	return b, nil
}

// load reads all records again and verifies them for the current mesh.
func (b *Book) load() error {
	entries := make(map[proto.PeerID]*Peer)
	for pair, err := range b.store.All(store.Peers, []byte{bookPrefix}, []byte{bookPrefix + 1}) {
		if err != nil {
			return err
		}
		p, err := proto.PeerIDFrom(pair.Key[1:])
		if err != nil {
			return fmt.Errorf("%w: %w", errRecord, err)
		}
		if entries[p], err = decodePeer(p, pair.Val, b.mesh, b.clock.Now()); err != nil {
			return err
		}
	}
	b.mu.Lock()
	b.entries = entries
	b.mu.Unlock()
	return b.loadRevocations()
}

// Enroll makes this node a member, after a join or with a renewed certificate. The caller
// stores both on disk.
func (b *Book) Enroll(mesh identity.Mesh, cert *proto.Signed) error {
	b.writing.Lock()
	defer b.writing.Unlock()
	if err := b.enroll(mesh, cert); err != nil {
		return err
	}
	return b.load()
}

func (b *Book) enroll(mesh identity.Mesh, cert *proto.Signed) error {
	m, err := mesh.VerifyMember(cert, b.clock.Now())
	if !genuine(err) { // the clock may be wrong
		return fmt.Errorf("own certificate: %w", err)
	}
	if m.Peer != b.keys.Peer() {
		return fmt.Errorf("own certificate: it belongs to %s, this node is %s", m.Peer, b.keys.Peer())
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mesh = mesh
	b.self = &Peer{Peer: m.Peer}
	b.self.setCertificate(m, cert)
	return nil
}

// Count returns the number of known peers.
func (b *Book) Count() int { b.mu.RLock(); defer b.mu.RUnlock(); return len(b.entries) }

// SetBoot sets the boot number and id of this start, for the hello.
func (b *Book) SetBoot(boot uint64, id proto.BootID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.boot, b.bootID = boot, id
}

// Hello returns this node's hello, or nil before it is in a mesh and SetBoot was called.
func (b *Book) Hello() *proto.Hello {
	b.mu.RLock()
	defer b.mu.RUnlock()
	if b.self.cert == nil || b.boot == 0 {
		return nil
	}
	return &proto.Hello{Certificate: b.self.cert, KeyRecord: b.keys.KeyRecord(), Boot: b.boot, BootId: bytes.Clone(b.bootID[:])}
}

// byTheClocks returns err, which refuses the hello h because of the time of a statement,
// with the difference of the clocks if that explains it.
func (b *Book) byTheClocks(h *proto.Hello, err error) error {
	ahead := time.UnixMilli(h.GetClockMs()).Sub(b.clock.Now()).Round(time.Second)
	if h.GetClockMs() == 0 || ahead.Abs() < proto.ClockNoise || !errors.Is(err, identity.ErrExpired) && !errors.Is(err, identity.ErrNotYet) {
		return err
	}
	way := "ahead of"
	if ahead < 0 {
		way = "behind"
	}
	return fmt.Errorf("the clock of the refused node is %s %s that of the other: %w: %w", ahead.Abs(), way, identity.ErrClocks, err)
}

// Admit checks a hello and stores what it states: a genuine certificate of this mesh (a
// recently expired one is accepted, to have it renewed), a key record, and a boot number
// that did not decrease.
func (b *Book) Admit(h *proto.Hello, from proto.PeerID) error {
	if from == b.keys.Peer() {
		return fmt.Errorf("%w: this node's own", ErrTwin)
	}
	ctx, cancel := context.WithTimeout(context.Background(), bookTimeout)
	defer cancel()
	return b.change(ctx, from, func(p *Peer) error {
		if p.Blocked {
			return ErrBlocked
		}
		if err := b.check(p, h.GetCertificate(), h.GetKeyRecord(), true); err != nil {
			return b.byTheClocks(h, err)
		}
		if err := checkBoot(p, h); err != nil {
			return err
		}
		p.Boot = h.GetBoot()
		if now := b.clock.Now(); now.Sub(p.LastSeen).Abs() >= seenEvery {
			p.LastSeen = now
		}
		if len(h.GetAddrs()) > 0 { // a machine that is between two networks has none
			p.Addrs = h.GetAddrs()
		}
		copy(p.BootID[:], h.GetBootId())
		return nil
	})
}

// checkBoot compares a hello with the highest known boot number. A lower one means a disk
// that was rolled back together with a clock set back, or an old copy of the node: what
// it granted under those numbers is not what is known here.
func checkBoot(p *Peer, h *proto.Hello) error {
	switch {
	case len(h.GetBootId()) != len(p.BootID) || h.GetBoot() == 0:
		return errors.New("the hello contains no boot number")
	case h.GetBoot() < p.Boot:
		return fmt.Errorf("%w from %d to %d: correct the clock of that machine and restart its node", ErrOldBoot, p.Boot, h.GetBoot())
	case h.GetBoot() == p.Boot && !bytes.Equal(h.GetBootId(), p.BootID[:]):
		return fmt.Errorf("%w: stop one of the two nodes and create a new key for it", ErrTwin)
	}
	return nil
}

// sameDetails reports whether two records have the same content.
func sameDetails(a, b *proto.Signed) bool { return bytes.Equal(a.GetDetails(), b.GetDetails()) }

// check verifies and stores statements of p. direct: the peer itself sent them; then an
// older key record is ignored.
func (b *Book) check(p *Peer, cert, key *proto.Signed, direct bool) error {
	now := b.clock.Now()
	b.mu.RLock()
	mesh, enrolled := b.mesh, b.self.cert != nil
	b.mu.RUnlock()
	if !enrolled {
		return ErrNoMember
	}
	m, err := mesh.VerifyMember(cert, now)
	untimely := errors.Is(err, identity.ErrExpired) || errors.Is(err, identity.ErrNotYet)
	if err != nil && !untimely {
		return err
	}
	switch { // before the time: whose certificate it is does not depend on a clock
	case m.Peer != p.Peer:
		return fmt.Errorf("the certificate belongs to %s", m.Peer)
	case b.isRevoked(m):
		return ErrRevoked
	case !sameDetails(p.cert, cert) && b.issuerRevoked(mesh, cert):
		return fmt.Errorf("%w: the certificate of the admin who issued it", ErrRevoked)
	case errors.Is(err, identity.ErrNotYet) && sameDetails(p.cert, cert): // accepted before the clock was set back
	case err != nil && !m.Grace:
		return err
	}
	k, err := identity.VerifyKeyRecord(key, p.Peer, now)
	if !acceptable(err) && !(genuine(err) && sameDetails(p.key, key)) {
		return err
	}
	if k.Seq < p.KeyRecord.Seq && !direct {
		return fmt.Errorf("%w: sequence %d, known is %d", ErrOldKey, k.Seq, p.KeyRecord.Seq)
	}
	if k.Seq >= p.KeyRecord.Seq {
		p.KeyRecord, p.key = k, key
	}
	if newer(m, p.Member) {
		p.setCertificate(m, cert)
	}
	return nil
}

// newer reports whether certificate m replaces old: the one that was issued later wins.
func newer(m, old identity.Member) bool { return old.Cert == nil || !m.NotBefore.Before(old.NotBefore) }

// Learn stores an introduction by an inviter or another member.
func (b *Book) Learn(ctx context.Context, k *proto.KnownPeer) error { return b.LearnWith(ctx, k, nil) }

// LearnWith is Learn with an additional change in the same batch: either both happen or
// neither. An introduction of this node itself writes nothing. If what also requires does
// not hold, the error is [store.ErrConflict].
func (b *Book) LearnWith(ctx context.Context, k *proto.KnownPeer, also func(*store.Batch)) error {
	b.mu.RLock()
	m, err := b.mesh.VerifyMember(k.GetCertificate(), b.clock.Now())
	b.mu.RUnlock()
	if err != nil && !m.Grace {
		return fmt.Errorf("introduction: %w", err)
	}
	if m.Peer == b.keys.Peer() {
		return nil
	}
	addrs := b.multi.Usable(m.Peer, k.GetAddrs(), b.allowLoopback())
	err = b.changeWith(ctx, m.Peer, also, func(p *Peer) error {
		if err := b.check(p, k.GetCertificate(), k.GetKeyRecord(), false); err != nil {
			return err
		}
		if p.LastSeen.IsZero() {
			p.Addrs = addrs // second-hand: the peer's own statement is better
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("introduction of %s: %w", m.Peer, err)
	}
	return nil
}

// Block rejects a peer until Unblock, whether or not it is known. It does not close
// existing connections.
func (b *Book) Block(ctx context.Context, id proto.PeerID) error { return b.setBlocked(ctx, id, true) }

// Unblock admits a peer again, if its certificate is valid.
func (b *Book) Unblock(ctx context.Context, id proto.PeerID) error {
	return b.setBlocked(ctx, id, false)
}

func (b *Book) setBlocked(ctx context.Context, id proto.PeerID, blocked bool) error {
	if id == b.keys.Peer() {
		return errors.New("addressbook: a node cannot block itself")
	}
	return b.change(ctx, id, func(p *Peer) error {
		p.Blocked = blocked
		return nil
	})
}

// Forget removes a peer and all that is known about it, including its boot number.
func (b *Book) Forget(ctx context.Context, id proto.PeerID) error {
	b.writing.Lock()
	defer b.writing.Unlock()
	if b.find(id) == nil {
		return fmt.Errorf("%w: %s", ErrUnknownPeer, id)
	}
	var batch store.Batch
	batch.Delete(store.Peers, bookKey(id))
	batch.After(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.entries, id)
	})
	if err := b.store.Apply(ctx, &batch); err != nil {
		return fmt.Errorf("address book: %w", err)
	}
	return nil
}

// change updates a peer's entry, on disk first.
func (b *Book) change(ctx context.Context, id proto.PeerID, decide func(*Peer) error) error {
	return b.changeWith(ctx, id, nil, decide)
}

// changeWith is change with an additional change in the same batch; nil for none.
func (b *Book) changeWith(ctx context.Context, id proto.PeerID, also func(*store.Batch), decide func(*Peer) error) error {
	b.writing.Lock()
	defer b.writing.Unlock()
	p := Peer{Peer: id, Added: b.clock.Now()}
	old := b.find(id)
	if old != nil {
		p = old.clone()
	} else if n := b.Count(); n >= MaxPeers {
		return fmt.Errorf("%w (%d peers): forget some (peers forget), and revoke the admin that admits too many", ErrBookFull, n)
	}
	if err := decide(&p); err != nil {
		return err
	}
	val, err := p.encode()
	if err != nil {
		return fmt.Errorf("address book: %w", err)
	}
	if old != nil && also == nil {
		if was, err := old.encode(); err == nil && bytes.Equal(was, val) {
			return nil
		}
	}
	var batch store.Batch
	batch.Put(store.Peers, bookKey(id), val)
	batch.After(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.entries[id] = &p
	})
	if also != nil {
		also(&batch)
	}
	if err := b.store.Apply(ctx, &batch); err != nil {
		return fmt.Errorf("address book: %w", err)
	}
	return nil
}

func bookKey(p proto.PeerID) []byte { return append([]byte{bookPrefix}, p[:]...) }
