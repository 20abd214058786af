package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/balefire/balefire/disk"
	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/wire"
)

// largeBody describes a body that is not in its mail, "" if it is.
func largeBody(m wire.ReceivedMail) string {
	if m.Digest == "" {
		return ""
	}
	return formatSize(m.Size) + "   " + m.Digest + "   --body writes it"
}

// writeMailBody writes the body of a mail to standard output.
func (w *app) writeMailBody(cmd *cobra.Command, id string) error {
	c, err := w.node()
	if err != nil {
		return err
	}
	w.unlimited(cmd)
	ctx, cancel := w.withTimeout(cmd.Context())
	defer cancel()
	body, _, err := c.MailBody(ctx, id)
	if err != nil {
		return mailFailure(err)
	}
	defer body.Close()
	return w.writeResult(id, body)
}

// saveBodies writes the large bodies of deliveries to the folder of the flags. Those that it cannot
// save, and would acknowledge, are given back.
func (w *app) saveBodies(cmd *cobra.Command, r readable, f *readFlags, items []wire.DeliveredMail) (err error) {
	ctx, stop := context.WithCancelCause(cmd.Context())
	var extending sync.WaitGroup
	defer extending.Wait()
	defer stop(nil)
	for i := range items {
		d := &items[i]
		switch {
		case d.Mail.Digest == "" || f.save == "" && !f.ack:
			continue
		case f.save == "":
			err = usage("mail %s has a body of %s, which is not printed: with --ack, name the folder for it with --save", d.Mail.ID, formatSize(d.Mail.Size))
		default:
			extending.Go(func() { w.extendMail(ctx, cmd, r, d, stop) })
			err = w.saveBody(ctx, r, d, f.save)
		}
		if err != nil {
			return errors.Join(err, w.giveBack(cmd, r, f, items, i, err))
		}
	}
	return nil
}

// giveBack gives deliveries back that were not printed: why is the error of the one at failed.
func (w *app) giveBack(cmd *cobra.Command, r readable, f *readFlags, items []wire.DeliveredMail, failed int, why error) error {
	var s wire.SettleMail
	_, bad := errors.AsType[*badBodyError](why)
	for i, d := range items {
		if bad && i == failed {
			s.Nack = []wire.NackMail{{Lease: d.Lease, Reason: why.Error()[:min(len(why.Error()), box.MaxReason)]}}
			continue
		}
		back := wire.DeferMail{Lease: d.Lease}
		if i == failed {
			back.Delay = f.bodyDelay(why)
		}
		s.Defer = append(s.Defer, back)
	}
	_, err := w.settleQuietly(cmd, r, s)
	return err
}

// saveBody writes the body of a delivery to the file with the id of its mail.
func (w *app) saveBody(ctx context.Context, r readable, d *wire.DeliveredMail, dir string) error {
	file, err := w.fetchBody(ctx, r, d, dir)
	if err != nil {
		return err
	}
	path := filepath.Join(dir, d.Mail.ID)
	if err = errors.Join(file.Sync(), file.Close()); err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("save the body: %w", err), os.Remove(file.Name()))
	}
	if err := disk.SyncDir(dir); err != nil {
		return fmt.Errorf("save the body: %w", err)
	}
	w.infof("saved %s: %s", formatSize(d.Mail.Size), path)
	return nil
}

// A badBodyError is why a body cannot be read to its end, is not what its mail says, or is not there.
// It spends an attempt, so that a mail whose body never comes ends.
type badBodyError struct{ error }

func (e *badBodyError) Unwrap() error { return e.error }

// A lostBodyError is why a body could not be read now: the node was restarted, the lease of the mail
// has ended, or the node has no time or no space for it.
type lostBodyError struct {
	error
	busy bool // the node would say so again at once
}

func (e *lostBodyError) Unwrap() error { return e.error }

// comesAgain reports whether the body of a mail that is delivered again may be whole.
func comesAgain(err error) bool {
	_, bad := errors.AsType[*badBodyError](err)
	_, lost := errors.AsType[*lostBodyError](err)
	return bad || lost
}

// busyDelay is how long a mail is given back for whose body cannot be read now: others are read
// meanwhile.
const busyDelay = 30 * time.Second

// bodyDelay returns how long to defer a mail whose body could not be read.
func (f *readFlags) bodyDelay(why error) wire.Duration {
	if lost, ok := errors.AsType[*lostBodyError](why); ok && lost.busy && f.follow {
		return wire.Duration(busyDelay)
	}
	return 0
}

// fetchBody writes the body of a delivery to a new file in a folder, and checks it. The file is at
// its beginning. The error may be a [*badBodyError] or a [*lostBodyError].
func (w *app) fetchBody(ctx context.Context, r readable, d *wire.DeliveredMail, dir string) (file *os.File, err error) {
	c, err := w.node()
	if err != nil {
		return nil, err
	}
	body, _, err := c.DeliveredBody(ctx, r.box, r.sub, d.Lease)
	if err != nil {
		gone, busy := isAny(err, wire.ErrRefused, wire.ErrNotFound), !isUnreachable(err)
		err = mailFailure(err)
		if _, none := errors.AsType[*noMailError](err); none {
			return nil, err
		}
		err = fmt.Errorf("read the body of mail %s: %w", d.Mail.ID, orLost(ctx, err))
		if gone {
			return nil, &badBodyError{err}
		}
		return nil, &lostBodyError{err, busy}
	}
	defer body.Close()
	if file, err = os.CreateTemp(dir, d.Mail.ID+".*.part"); err != nil {
		return nil, fmt.Errorf("save the body: %w", err)
	}
	sum := sha256.New()
	n, err := io.Copy(io.MultiWriter(file, sum), handler.ContextReader(ctx, body))
	_, ours := errors.AsType[*fs.PathError](err) // of the file
	bad := err != nil && !ours && ctx.Err() == nil
	if got := "sha256:" + hex.EncodeToString(sum.Sum(nil)); err == nil && (n != d.Mail.Size || got != d.Mail.Digest) {
		err, bad = fmt.Errorf("it has %d bytes and the digest %s, not %d and %s", n, got, d.Mail.Size, d.Mail.Digest), true
	}
	if err == nil {
		_, err = file.Seek(0, io.SeekStart)
	}
	if err != nil {
		err = fmt.Errorf("read the body of mail %s: %w", d.Mail.ID, orLost(ctx, err))
		switch {
		case bad:
			err = &badBodyError{err}
		case errors.Is(err, errLeaseOver):
			err = &lostBodyError{error: err}
		}
		return nil, errors.Join(err, file.Close(), os.Remove(file.Name()))
	}
	return file, nil
}

var errLeaseOver = errors.New("its lease is over, and somebody else may have it")

// orLost returns errLeaseOver if that ended ctx, otherwise err.
func orLost(ctx context.Context, err error) error {
	if errors.Is(context.Cause(ctx), handler.ErrLeaseLost) {
		return errLeaseOver
	}
	return err
}
