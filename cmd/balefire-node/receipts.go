package main

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/balefire/balefire/api/client"
	"github.com/balefire/balefire/cmd/balefire-node/prose"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

func taskReceipts(w *app) *cobra.Command {
	var verify bool
	c := &cobra.Command{
		Use: "receipts ID|@FILE", Short: "Show the signed receipts of a task",
		Long: `Show the signed receipts of a task: stored, accepted, started, done. With --verify
each signature is checked on this machine from the proof alone, without asking any
node; the exit code is 1 if a receipt is invalid. Receipts that were exported with
-o json can be verified from the file, on any machine; nodes are shown by their ids
then.`,
		Example: "  balefire-node task receipts 01a1f84f -o json > proof.json\n  balefire-node task receipts @proof.json --verify", Args: exactly(1, "the id of a task, or @FILE with exported receipts"),
		RunE: func(cmd *cobra.Command, args []string) error {
			receipts, err := w.receipts(cmd, args[0])
			if err != nil {
				return err
			}
			bad := 0
			if verify {
				bad = verifyAll(parseReceiptsArg(args[0]), receipts)
			}
			if err := w.show(receiptsView(receipts)); err != nil {
				return err
			}
			if !verify {
				return nil
			}
			return w.verified(len(receipts), bad)
		},
	}
	c.Flags().BoolVar(&verify, "verify", false, "verify every signature")
	return c
}

// verified says how many of n receipts are valid. The error is that none is there, or that some
// are invalid.
func (w *app) verified(n, bad int) error {
	switch {
	case n == 0:
		return errors.New("there is no receipt to verify")
	case bad > 0:
		return fmt.Errorf("%d of %d receipts are invalid", bad, n)
	}
	w.infof("%s valid", counted(n, "receipt is", "receipts are"))
	return nil
}

func (w *app) receipts(cmd *cobra.Command, from string) ([]wire.Receipt, error) {
	if path, ok := strings.CutPrefix(from, "@"); ok {
		receipts, err := readReceipts[wire.Receipt](path)
		for i := range receipts {
			receipts[i].Node = receipts[i].NodeID // nobody has signed a name
		}
		return receipts, err
	}
	return call(cmd, w, func(ctx context.Context, c *client.Client) ([]wire.Receipt, error) { return c.Receipts(ctx, from) })
}

// parseReceiptsArg returns the task that the receipts must be about: a file names it
// itself.
func parseReceiptsArg(arg string) string {
	if strings.HasPrefix(arg, "@") {
		return ""
	}
	return strings.ToLower(arg)
}

// readReceipts reads the output of -o json.
func readReceipts[T wire.Receipt | wire.MailReceipt](path string) ([]T, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read receipts: %w", err)
	}
	var page wire.Page[T]
	if err := json.Unmarshal(b, &page); err != nil {
		return nil, fmt.Errorf("read receipts in %s: %w: export them with -o json", path, err)
	}
	if len(page.Items) == 0 {
		return nil, fmt.Errorf("there is no receipt in %s: export them with -o json", path)
	}
	return page.Items, nil
}

// verifyAll verifies every proof, replaces the fields of each receipt by what its proof
// states, and counts the invalid ones. They must all be about one task whose id begins with
// id.
func verifyAll(id string, receipts []wire.Receipt) (bad int) {
	v := identity.NewVerifier()
	for i := range receipts {
		r := &receipts[i]
		s, problem := verifyOne(v, r)
		switch {
		case problem != nil:
		case !strings.HasPrefix(s.Task.String(), id):
			problem = &wire.Note{Code: wire.ReceiptOtherTask, NoteArgs: wire.NoteArgs{Task: s.Task.String()}}
		default:
			id = s.Task.String()
			fromStatement(r, s)
		}
		if r.Verified, r.Problem = problem == nil, problem; problem != nil {
			bad++
		}
	}
	return bad
}

// verifyOne checks that the proof is signed by the node that the receipt names and states
// its fact.
func verifyOne(v *identity.Verifier, r *wire.Receipt) (s proto.Statement, problem *wire.Note) {
	b, err := base64.StdEncoding.DecodeString(r.Proof)
	var signed proto.Receipt
	if err == nil {
		err = proto.DecodeKnown(b, &signed)
	}
	if err == nil {
		s, err = proto.ParseStatement(signed.GetStatement())
	}
	if err != nil {
		return s, unreadable(err)
	}
	_, err = identity.VerifyReceipt(v, &signed)
	switch {
	case err != nil:
		return s, &wire.Note{Code: wire.ReceiptUnsigned}
	case s.Node.String() != r.NodeID:
		return s, &wire.Note{Code: wire.ReceiptOtherNode, NoteArgs: wire.NoteArgs{Peer: s.Node.String()}}
	case s.Fact.String() != r.Fact:
		return s, &wire.Note{Code: wire.ReceiptOtherFact, NoteArgs: wire.NoteArgs{Detail: s.Fact.String()}}
	}
	return s, nil
}

// unreadable returns the problem of a receipt whose proof cannot be read.
func unreadable(err error) *wire.Note {
	return &wire.Note{Code: wire.ReceiptUnreadable, NoteArgs: wire.NoteArgs{Detail: err.Error()}}
}

// fromStatement copies the fields of a statement into r.
func fromStatement(r *wire.Receipt, s proto.Statement) {
	r.Time, r.Attempt = proto.Time(s.Time), s.Attempt
	r.Epoch = fmt.Sprintf("%d.%d", s.Epoch.Boot, s.Epoch.Counter)
	r.State, r.Digest = "", ""
	if s.State != 0 {
		r.State = s.State.Name()
	}
	if s.Algorithm == 1 {
		r.Digest = "sha256:" + hex.EncodeToString(s.Digest[:])
	}
}

// invalidReceipt says that a receipt is not valid, and why, if it is known.
func invalidReceipt(problem *wire.Note) string {
	if problem == nil {
		return "NO"
	}
	return "NO: " + prose.Text(*problem)
}

func receiptsView(receipts []wire.Receipt) view {
	return view{value: wire.Page[wire.Receipt]{Items: receipts}, lines: lines(receipts), human: func(p *printer) {
		t := newTable(col("FACT"), col("NODE"), col("TIME"), num("TRY"), col("STATE"), col("VALID"), wideOnly("EPOCH"), wideOnly("DIGEST"), wideOnly("NODE ID"))
		for _, r := range receipts {
			holds := "yes"
			if !r.Verified {
				holds = invalidReceipt(r.Problem)
			}
			t.row(r.Fact, r.Node, r.Time.Local().Format("2006-01-02 15:04:05.000"), r.Attempt, r.State, holds, r.Epoch, r.Digest, r.NodeID)
		}
		p.table(t)
	}}
}
