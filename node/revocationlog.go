package node

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

	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/transport"
)

// revocationFile is in the folder of the keys.
const revocationFile = "revocations"

// A revocationLog keeps every revocation beside the keys too: a store that is put back
// to an older copy must not let a member in again that was revoked since.
type revocationLog struct {
	path string
	mu   sync.Mutex
}

func newRevocationLog(dir string) *revocationLog {
	return &revocationLog{path: filepath.Join(dir, identityDir, revocationFile)}
}

// read returns what the log holds, and whether it can be appended to.
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

// reconcile gives the book what only the log holds, and the log what it lacks.
func (l *revocationLog) reconcile(ctx context.Context, book *transport.Book, log *slog.Logger) error {
	kept, whole, err := l.read()
	if err != nil {
		return fmt.Errorf("revocations: %w", err)
	}
	for _, s := range kept {
		if err := book.Revoke(ctx, s); errors.Is(err, store.ErrClosed) || errors.Is(err, store.ErrFailed) {
			return fmt.Errorf("revocations: %w", err)
		} else if err != nil { // void by now, or of another mesh
			log.Debug("a revocation that is kept beside the keys counts for nothing", "err", err)
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
	return writeFile(l.path, b, 0o600)
}

// add appends s, durably.
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
		return fmt.Errorf("keep a revocation: %w", err)
	}
	before, err := f.Seek(0, io.SeekEnd)
	if err == nil {
		_, err = f.Write(b)
	}
	if err = errors.Join(err, f.Sync()); err != nil {
		err = errors.Join(err, f.Truncate(before)) // what follows half a record could not be read
	}
	if err = errors.Join(err, f.Close()); err == nil && lerr != nil {
		err = syncDir(filepath.Dir(l.path))
	}
	if err != nil {
		return fmt.Errorf("keep a revocation: %w", err)
	}
	return nil
}

// revokedSince names the members that the log of the folder knows to be revoked and the
// store s does not.
func revokedSince(cfg Config, s *store.Store) (names []string, err error) {
	keys, mesh, self, err := loadIdentity(cfg.Dir, cfg.Clock.Now())
	if err != nil {
		return nil, nil // the start says what is wrong with it
	}
	kept, _, err := newRevocationLog(cfg.Dir).read()
	if err != nil || len(kept) == 0 {
		return nil, err
	}
	book, err := transport.OpenBook(s, mesh, keys, self.Cert, cfg.Clock)
	if err != nil {
		return nil, err
	}
	known := book.Revocations()
	for _, x := range kept {
		r, err := mesh.VerifyRevocation(x)
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
