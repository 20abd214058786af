package pairing

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/balefire/balefire/addressbook"
	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/datadir"
	"github.com/balefire/balefire/disk"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/transport"
)

// revocationFile is in the folder of the keys.
const revocationFile = "revocations"

// A revocationLog stores every revocation a second time, next to the keys: a store
// restored from an older copy must not readmit a member that was revoked since.
type revocationLog struct {
	path string
	mu   sync.Mutex
}

func newRevocationLog(dir string) *revocationLog {
	return &revocationLog{path: filepath.Join(dir, datadir.Identity, revocationFile)}
}

// read returns the revocations in the log, and whether the log can be appended to.
func (l *revocationLog) read() ([]*proto.Signed, bool, error) {
	b, err := os.ReadFile(l.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, true, nil
	}
	if err != nil {
		return nil, false, err
	}
	all, whole := identity.ReadRevocations(b)
	return all, whole, nil
}

// reconcile adds the revocations in the log to the book and the missing ones to the log.
func (l *revocationLog) reconcile(ctx context.Context, book *addressbook.Book, log *slog.Logger) error {
	kept, whole, err := l.read()
	if err != nil {
		return fmt.Errorf("revocations: %w", err)
	}
	for _, s := range kept {
		if err := book.Revoke(ctx, s); errors.Is(err, store.ErrClosed) || errors.Is(err, store.ErrFailed) {
			return fmt.Errorf("revocations: %w", err)
		} else if err != nil { // no longer valid, or of another mesh
			log.Debug("ignoring an invalid revocation in the log next to the keys", "err", err)
		}
	}
	all := book.Revocations()
	if whole && len(kept) == len(all) {
		return nil
	}
	var b []byte
	for _, s := range all {
		if b, err = identity.AppendRevocation(b, s); err != nil {
			return err
		}
	}
	return disk.WriteFile(l.path, b)
}

// add durably appends s.
func (l *revocationLog) add(s *proto.Signed) error {
	b, err := identity.AppendRevocation(nil, s)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	_, lerr := os.Lstat(l.path)
	f, err := os.OpenFile(l.path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("store a revocation: %w", err)
	}
	before, err := f.Seek(0, io.SeekEnd)
	if err == nil {
		_, err = f.Write(b)
	}
	if err = errors.Join(err, f.Sync()); err != nil {
		err = errors.Join(err, f.Truncate(before)) // records after a partial one could not be read
	}
	if err = errors.Join(err, f.Close()); err == nil && lerr != nil {
		err = disk.SyncDir(filepath.Dir(l.path))
	}
	if err != nil {
		return fmt.Errorf("store a revocation: %w", err)
	}
	return nil
}

// RevokedSince names the members that are revoked in the log of the node in dir and not
// in the store s.
func RevokedSince(dir string, s *store.Store, clk clock.Clock) (names []string, err error) {
	own, err := Load(dir, clk.Now())
	if err != nil {
		return nil, nil // the start of the node reports the error
	}
	kept, _, err := newRevocationLog(dir).read()
	if err != nil || len(kept) == 0 {
		return nil, err
	}
	book, err := addressbook.Open(s, own.Mesh, own.Keys, own.Self.Cert, clk, transport.Multiaddrs{})
	if err != nil {
		return nil, err
	}
	known := book.Revocations()
	for _, x := range kept {
		r, err := own.Mesh.VerifyRevocation(x)
		if err != nil || slices.ContainsFunc(known, func(k *proto.Signed) bool { return bytes.Equal(k.GetDetails(), x.GetDetails()) }) {
			continue
		}
		name := fmt.Sprintf("the certificate %x", r.Serial)
		if !r.Peer.IsZero() {
			name = r.Peer.String()
		}
		if p, ok := book.Get(r.Peer); ok {
			name = p.Label()
		}
		names = append(names, name)
	}
	return names, nil
}

// A Directory is the member directory of gossip. It disconnects a member that is revoked.
type Directory struct {
	*addressbook.Book
	pairing *Pairing
}

// Directory returns what gossip knows the members from.
func (p *Pairing) Directory() Directory { return Directory{p.Book, p} }

// Revoke stores a revocation and closes the connections to the revoked member, also if the log
// next to the keys cannot be written.
func (d Directory) Revoke(ctx context.Context, s *proto.Signed) error {
	if err := d.Book.Revoke(ctx, s); err != nil {
		return err
	}
	for _, x := range d.List() { // includes a peer that is not connected yet because its hello is in progress
		if d.Revoked(x.Peer) {
			d.pairing.net.Disconnect(x.Peer)
		}
	}
	return d.pairing.revocations.add(s)
}

// Member returns the entry of a peer in the mesh. It ignores a local block: members
// compare their liveness state, and would never agree if a block hid a member.
func (d Directory) Member(p proto.PeerID) (identity.Member, bool) { return d.Enrolled(p) }
