package node

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"filippo.io/age"
)

// A sealed snapshot is one file: a tar archive of the folder that a plain one is, as the
// age format encrypts it (age-encryption.org/v1) for one key. Who has the file alone
// reads nothing, and no change of it goes unseen.

// snapshotPart is where a copy stands while it is sealed, or opened: in the node's folder,
// which nobody else reads.
const snapshotPart = "snapshot.part"

// NewSnapshotKey makes a key for sealed snapshots: public seals, private opens them.
func NewSnapshotKey() (public, private string, err error) {
	id, err := age.GenerateX25519Identity()
	if err != nil {
		return "", "", err
	}
	return id.Recipient().String(), id.String(), nil
}

// sealedSnapshot writes a copy of the store into file, which only the private part of
// toKey opens.
func (n *Node) sealedSnapshot(ctx context.Context, file, toKey string) (err error) {
	to, err := age.ParseX25519Recipient(toKey)
	if err != nil {
		return fmt.Errorf("%w: to_key %.80q is no public key: it begins with age1; balefire-node store key makes one: %w", ErrInvalid, toKey, err)
	}
	part := filepath.Join(n.cfg.Dir, snapshotPart)
	if err := os.RemoveAll(part); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(part)) }()
	if err := n.storage.store.Snapshot(part); err != nil {
		return err
	}
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("%w: the node cannot write %s: %w: name a file whose folder is there and belongs to the node's user", ErrRefused, file, err)
	}
	if err := errors.Join(sealTree(ctx, f, part, to), f.Sync(), f.Close()); err != nil {
		return errors.Join(err, os.Remove(file))
	}
	return syncDir(filepath.Dir(file))
}

// sealTree writes the regular files below dir to w.
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

// unsealTree opens a sealed snapshot into dir, which is new.
func unsealTree(dir string, sealed io.Reader, private string) error {
	id, err := age.ParseX25519Identity(private)
	if err != nil {
		return fmt.Errorf("%w: the key is no private key of a snapshot: it begins with AGE-SECRET-KEY-1; balefire-node store key wrote it", ErrInvalid)
	}
	plain, err := age.Decrypt(sealed, id)
	if _, other := errors.AsType[*age.NoIdentityMatchError](err); other {
		return fmt.Errorf("%w: the snapshot was sealed for another key, or its beginning was changed", ErrInvalid)
	}
	if err != nil {
		return fmt.Errorf("%w: it is no sealed snapshot: %w", ErrInvalid, err)
	}
	if err := unpackTree(dir, plain); err != nil {
		return fmt.Errorf("%w: the snapshot is cut short, or was changed: %w", ErrInvalid, err)
	}
	return nil
}

// unpackTree writes what is in an archive below dir, and reads it to its end: only then
// it is known to be whole.
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
			return fmt.Errorf("%.100q is in it, which no snapshot has", h.Name)
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

// openSnapshot returns the folder of a snapshot, which is opened with the private key if
// it is sealed, and what removes what was made for that.
func openSnapshot(cfg Config, snapshot, private string) (dir string, drop func() error, err error) {
	drop = func() error { return nil }
	info, err := os.Stat(snapshot)
	switch {
	case err != nil:
		return "", drop, fmt.Errorf("restore: %w", err)
	case info.IsDir() && private != "":
		return "", drop, fmt.Errorf("%w: %s is a folder, which no key opens: leave the key out", ErrInvalid, snapshot)
	case info.IsDir():
		return snapshot, drop, nil
	case private == "":
		return "", drop, fmt.Errorf("%w: %s is a file, a sealed snapshot: give the key that opens it by --key-file", ErrInvalid, snapshot)
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
