package datadir

import (
	"archive/tar"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"filippo.io/age"

	"github.com/balefire/balefire/disk"
	"github.com/balefire/balefire/wire"
)

// A sealed snapshot is one file: a tar archive of the folder of a plain snapshot,
// encrypted for one key in the age format (age-encryption.org/v1). Without the key
// nobody can read the file, and every change to it is detected.

// snapshotPart is the folder of a copy while it is sealed or opened. It is in the node's
// folder, which nobody else can read.
const snapshotPart = "snapshot.part"

// NewSnapshotKey creates a key pair for sealed snapshots: public seals, private opens
// them.
func NewSnapshotKey() (public, private string, err error) {
	id, err := age.GenerateX25519Identity()
	if err != nil {
		return "", "", err
	}
	return id.Recipient().String(), id.String(), nil
}

// Snapshot writes a consistent copy of the store and of the ledger to dir, which must not
// exist. The folder gets its name once the copy is complete.
func (d *Dir) Snapshot(dir string) (err error) {
	d.snapshots.Lock()
	defer d.snapshots.Unlock()
	if parent := filepath.Dir(dir); !isThere(parent) {
		return fmt.Errorf("%w: %s does not exist: mount or create it first", wire.ErrRefused, parent)
	}
	part := dir + ".part"
	if err := os.RemoveAll(part); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(part)) }()
	if err := d.copyTo(part); err != nil {
		return err
	}
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		return cmp.Or(err, fmt.Errorf("snapshot: %s: %w", dir, fs.ErrExist))
	}
	if err := os.Rename(part, dir); err != nil {
		return err
	}
	return disk.SyncDir(filepath.Dir(dir))
}

// isThere reports whether there is something at path, as far as this process may see.
func isThere(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

// copyTo writes a copy of the store to dir, which must not exist, and one of the ledger, if
// there is one, below it. The ledger is not older than the store: the start of the node that
// made its newest records is in both.
func (d *Dir) copyTo(dir string) error {
	if err := d.Store.Snapshot(dir); err != nil {
		return err
	}
	l := d.ledger.Load()
	if l == nil {
		return nil
	}
	if err := os.Mkdir(filepath.Join(dir, Ledger), 0o700); err != nil {
		return err
	}
	return errors.Join(l.Snapshot(filepath.Join(dir, Ledger, ownLedger)), disk.SyncDir(dir))
}

// SealedSnapshot writes a copy of the store and of the ledger to file, which only the private key of toKey
// can open.
func (d *Dir) SealedSnapshot(ctx context.Context, file, toKey string) (err error) {
	to, err := age.ParseX25519Recipient(toKey)
	switch {
	case strings.HasPrefix(toKey, "AGE-SECRET-KEY-"):
		return fmt.Errorf("%w: to_key is a private key: give the public one that balefire-node store key printed with it", wire.ErrInvalid)
	case err != nil:
		return fmt.Errorf("%w: to_key %.80q is not a public key or has a typing error: a public key has 62 characters and begins with age1; balefire-node store key FILE creates a key pair and prints the public key", wire.ErrInvalid, toKey)
	}
	d.snapshots.Lock()
	defer d.snapshots.Unlock()
	part := filepath.Join(d.path, snapshotPart)
	if err := os.RemoveAll(part); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(part)) }()
	if err := d.copyTo(part); err != nil {
		return err
	}
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("%w: the node cannot write %s: %w: name a file in an existing folder that belongs to the node's user", wire.ErrRefused, file, err)
	}
	if err := errors.Join(sealTree(ctx, f, part, to), f.Sync(), f.Close()); err != nil {
		return errors.Join(err, os.Remove(file))
	}
	return disk.SyncDir(filepath.Dir(file))
}

// sealTree writes the regular files below dir to w, encrypted.
func sealTree(ctx context.Context, w io.Writer, dir string, to age.Recipient) error {
	sealed, err := age.Encrypt(w, to)
	if err != nil {
		return err
	}
	archive := tar.NewWriter(sealed)
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return errors.Join(err, ctx.Err())
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		info, err := f.Stat()
		if err == nil {
			err = archive.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: filepath.ToSlash(name), Size: info.Size(), Mode: 0o600, Format: tar.FormatPAX})
		}
		if err == nil {
			_, err = io.Copy(archive, f)
		}
		return errors.Join(err, ctx.Err())
	})
	return errors.Join(err, archive.Close(), sealed.Close())
}

// unsealTree extracts a sealed snapshot into dir, which must not exist.
func unsealTree(dir string, sealed io.Reader, private string) error {
	id, err := age.ParseX25519Identity(private)
	if err != nil {
		return fmt.Errorf("%w: the key is not a private key of a snapshot: such a key begins with AGE-SECRET-KEY-1 and was written by balefire-node store key", wire.ErrInvalid)
	}
	plain, err := age.Decrypt(sealed, id)
	if _, other := errors.AsType[*age.NoIdentityMatchError](err); other {
		return fmt.Errorf("%w: the snapshot was sealed for another key, or its header was changed", wire.ErrInvalid)
	}
	if err != nil {
		return fmt.Errorf("%w: not a sealed snapshot: %w", wire.ErrInvalid, err)
	}
	if err := unpackTree(dir, plain); err != nil {
		return fmt.Errorf("%w: the snapshot is truncated or was changed: %w", wire.ErrInvalid, err)
	}
	return nil
}

// unpackTree extracts an archive into dir. It reads the archive to its end, because only
// then is it known to be complete.
func unpackTree(dir string, r io.Reader) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	archive := tar.NewReader(r)
	for {
		h, err := archive.Next()
		if err == io.EOF {
			_, err = io.Copy(io.Discard, r)
			return err
		}
		if err != nil {
			return err
		}
		name := filepath.FromSlash(h.Name)
		if h.Typeflag != tar.TypeReg || !filepath.IsLocal(name) {
			return fmt.Errorf("it contains %.100q, which no snapshot does", h.Name)
		}
		if err := root.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			return err
		}
		f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, archive)
		if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
			return err
		}
	}
}

// openSnapshot returns the folder of a snapshot, after decrypting it with the private
// key if it is sealed, and a function that removes the decrypted copy.
func openSnapshot(cfg Config, snapshot, private string) (dir string, drop func() error, err error) {
	drop = func() error { return nil }
	info, err := os.Stat(snapshot)
	switch {
	case err != nil:
		return "", drop, fmt.Errorf("restore: %w", err)
	case info.IsDir() && private != "":
		return "", drop, fmt.Errorf("%w: %s is a folder and not sealed: omit the key", wire.ErrInvalid, snapshot)
	case info.IsDir():
		return snapshot, drop, nil
	case private == "":
		return "", drop, fmt.Errorf("%w: %s is a sealed snapshot: give its private key with --key-file", wire.ErrInvalid, snapshot)
	}
	dir = filepath.Join(cfg.Dir, snapshotPart)
	drop = func() error { return os.RemoveAll(dir) }
	if err := drop(); err != nil {
		return "", drop, err
	}
	f, err := os.Open(snapshot)
	if err != nil {
		return "", drop, fmt.Errorf("restore: %w", err)
	}
	defer f.Close()
	if err := unsealTree(dir, f, private); err != nil {
		return "", func() error { return nil }, errors.Join(fmt.Errorf("restore: %s: %w", snapshot, err), drop())
	}
	return dir, drop, nil
}
