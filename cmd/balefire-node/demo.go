package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/balefire/balefire/cmd/balefire-node/prose"
	"github.com/balefire/balefire/datadir"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

func demoCommand(w *app) *cobra.Command {
	return &cobra.Command{
		Use: "demo [FILE]", Short: "Run two nodes in one process for a few seconds",
		Long: `Run a mesh of two nodes in this process, on loopback, in a temporary folder that
is removed at the end. One sends a file (this program itself, unless another is
given) and the other hashes it. Then the receiver is stopped, a second task and a
mail are sent, the receiver is started again, the task arrives and runs once, and
the mail waits there until it is read and acknowledged.`,
		Example:     "  balefire-node demo\n  balefire-node demo ~/holiday.mp4",
		Annotations: map[string]string{annotationWaits: "yes"},
		Args:        between(0, 1, "at most one file"),
		RunE: func(cmd *cobra.Command, args []string) error {
			path, err := os.Executable()
			if len(args) == 1 {
				path, err = args[0], nil
			}
			if err != nil {
				return err
			}
			ctx, cancel := w.withTimeout(cmd.Context())
			defer cancel()
			return w.demo(ctx, path)
		},
	}
}

// A demo prints its steps on standard output: they are its data.
type demo struct {
	w     *app
	pair  *pair
	start time.Duration
}

func (w *app) demo(ctx context.Context, path string) (err error) {
	d := &demo{w: w, start: w.clock.Mono()}
	sha := wire.HandlerSpec{Kind: "hash", Type: wire.TypeSHA256, Allow: []string{"peer:alpha"}}
	if d.pair, err = newPair(ctx, datadir.EngineNuts, w.quietLogger(), sha); err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	defer func() { err = errors.Join(err, d.pair.close()) }()
	d.tell("two nodes, alpha and beta, paired with a ticket; each has its own key and store")
	for _, act := range []func(context.Context, string) error{d.sendFile, d.addMailbox, d.offline} {
		if err := act(ctx, path); err != nil {
			return fmt.Errorf("demo: %w", err)
		}
	}
	d.tell("done")
	return nil
}

func (d *demo) tell(format string, a ...any) {
	fmt.Fprintf(d.w.out, "%6s  %s\n", formatDuration(d.w.clock.Mono()-d.start), sanitize(fmt.Sprintf(format, a...)))
}

// sendFile has the other node hash a file and shows the receipts.
func (d *demo) sendFile(ctx context.Context, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	sum := sha256.New()
	n, err := io.Copy(sum, f)
	if err != nil {
		return err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	alpha := d.pair.sender.node
	s, err := alpha.Submit(ctx, wire.Request{Target: d.pair.receiverName, Kind: "hash", Stream: f})
	if err != nil {
		return err
	}
	d.tell("alpha has %s (%s) on disk for beta: task %s", path, formatSize(n), s.ID)
	if err := d.finish(ctx, s.ID, hex.EncodeToString(sum.Sum(nil))); err != nil {
		return err
	}
	receipts, err := alpha.Views.Receipts(ctx, s.ID)
	if err != nil {
		return err
	}
	bad := verifyAll(s.ID, receipts)
	for _, r := range receipts {
		d.tell("receipt %-9s signed by %-6s %s", r.Fact, r.Node, r.Time.Local().Format("15:04:05.000"))
	}
	if bad > 0 || len(receipts) != 4 {
		return fmt.Errorf("%d receipts, %d of them invalid: four valid ones were expected", len(receipts), bad)
	}
	return nil
}

// offline sends a task while the receiver is down.
func (d *demo) offline(ctx context.Context, _ string) error {
	alpha, beta := d.pair.sender, d.pair.receiver
	if err := beta.stop(); err != nil {
		return err
	}
	d.tell("beta is stopped")
	body := []byte("sent while beta was down")
	sum := sha256.Sum256(body)
	s, err := alpha.node.Submit(ctx, wire.Request{Target: d.pair.receiverName, Kind: "hash", Body: body})
	if err != nil {
		return err
	}
	letter, err := d.sendMail(ctx)
	if err != nil {
		return err
	}
	t, err := alpha.node.Views.Task(ctx, s.ID)
	if err != nil {
		return err
	}
	d.tell("alpha has task %s on disk, it is %s", s.ID, t.State)
	if why, err := alpha.node.Explainer.Why(ctx, s.ID); err == nil {
		d.tell("why: %s", prose.Text(why.Cause))
	}
	if err := beta.start(ctx); err != nil {
		return err
	}
	d.tell("beta is started again")
	if err := d.finish(ctx, s.ID, hex.EncodeToString(sum[:])); err != nil {
		return err
	}
	if t, err = alpha.node.Views.Task(ctx, s.ID); err != nil {
		return err
	}
	receipts, err := alpha.node.Views.Receipts(ctx, s.ID)
	if err != nil {
		return err
	}
	if runs := starts(receipts); t.Attempts != 1 || runs != 1 || verifyAll(s.ID, receipts) > 0 {
		return fmt.Errorf("beta has signed %d starts of task %s in %d attempts, want one", runs, s.ID, t.Attempts)
	}
	d.tell("it arrived without help and beta ran it once: it has signed one start")
	return d.readMail(ctx, letter)
}

// demoBox is the mailbox of the receiver.
const demoBox = "desk"

// addMailbox makes a mailbox at the receiver to which the sender may write.
func (d *demo) addMailbox(ctx context.Context, _ string) error {
	_, err := d.pair.receiver.node.Mail.SetMailbox(ctx, demoBox, wire.MailboxSettings{BoxSettings: wire.BoxSettings{Allow: new([]string{"peer:alpha"})}})
	return err
}

// sendMail sends a mail while the receiver is down and returns its id.
func (d *demo) sendMail(ctx context.Context) (id string, err error) {
	m := wire.Mail{To: "agent:" + demoBox + "@" + d.pair.receiverName, Body: []byte("a mail that waited")}
	sent, errs := d.pair.sender.node.Mail.Send(ctx, []wire.Mail{m})
	if errs[0] != nil {
		return "", errs[0]
	}
	d.tell("alpha has mail %s for %s on disk, it is %s", sent[0].ID, sent[0].Box, sent[0].State)
	return sent[0].ID, nil
}

// readMail reads and acknowledges the mail at the receiver.
func (d *demo) readMail(ctx context.Context, id string) error {
	boxes := d.pair.receiver.node.Mail
	got, err := boxes.Lease(ctx, demoBox, "", wire.LeaseMail{Max: 2, Wait: wire.Wait(time.Minute), Reader: "demo"})
	if err != nil {
		return err
	}
	if len(got) != 1 || got[0].Mail.ID != id {
		return fmt.Errorf("beta was given %d mails, want mail %s alone", len(got), id)
	}
	settled, err := boxes.Settle(ctx, demoBox, "", wire.SettleMail{Ack: []string{got[0].Lease}})
	if err != nil {
		return err
	}
	if settled[0].Code != wire.SettledOK {
		return fmt.Errorf("the acknowledgment of mail %s is %s", id, settled[0].Code)
	}
	d.tell("the mail arrived too: %q from %s, read and acknowledged", got[0].Mail.Body, got[0].Mail.From)
	return nil
}

func starts(receipts []wire.Receipt) (n int) {
	for _, r := range receipts {
		if r.Fact == proto.FactStarted.String() {
			n++
		}
	}
	return n
}

// finish waits for the end of a task and compares its result.
func (d *demo) finish(ctx context.Context, id, want string) error {
	stop := d.w.showWaiting("waiting for the result")
	t, err := d.pair.sender.node.Views.Wait(ctx, id)
	stop()
	if err != nil {
		return fmt.Errorf("wait for %s, which is %s: %w", id, t.State, err)
	}
	if t.State != proto.Success.Name() {
		return fmt.Errorf("task %s is %s: %s", id, t.State, reasonOf(t))
	}
	r, _, err := d.pair.sender.node.Views.Result(ctx, id)
	if err != nil {
		return err
	}
	defer r.Close()
	var got bytes.Buffer
	if _, err := io.Copy(&got, io.LimitReader(r, 1<<10)); err != nil {
		return err
	}
	if !strings.Contains(got.String(), want) {
		return fmt.Errorf("beta's hash is %.80q, alpha's is %s", got.String(), want)
	}
	d.tell("beta computed sha256 %s…, alpha computed the same", want[:16])
	return nil
}
