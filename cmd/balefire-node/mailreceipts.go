package main

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/balefire/balefire/api/client"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

func mailReceipts(w *app) *cobra.Command {
	var verify bool
	var wait time.Duration
	c := &cobra.Command{
		Use: "receipts ID|@FILE", Short: "Show the signed receipt of a mail that was sent with --receipt",
		Long: `Show what the node of the box has signed about a mail that was sent with --receipt:
that it has the letter, on disk. A mail for another node has it when that has the
mail; with --wait the command waits for it, and the exit code is 6 if none came in
time. With --verify the signature is checked on this machine from the proof and the
letter alone, without asking any node; the exit code is 1 if it is not valid. What
was exported with -o json can be verified from the file, on any machine; nodes are
shown by their ids then.`,
		Example: "  balefire-node mail receipts 01a20c7e-5b1f-7d12 --wait 1m -o json > proof.json\n  balefire-node mail receipts @proof.json --verify",
		Args: func(cmd *cobra.Command, args []string) error {
			if err := exactly(1, "the id of a mail, or @FILE with an exported receipt")(cmd, args); err != nil || strings.HasPrefix(args[0], "@") {
				return err
			}
			return mailID(args[0])
		}, ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("wait") {
				if err := checkReplyWait(wait); err != nil {
					return err
				}
			}
			receipts, err := w.mailReceipts(cmd, args[0], wait)
			if err != nil {
				return err
			}
			if wait > 0 && len(receipts) == 0 {
				return &codedError{exitTimeout, fmt.Errorf("no receipt of mail %s came within %s: balefire-node why %s says where it is", args[0], wire.Duration(wait), args[0])}
			}
			return w.showMailReceipts(receipts, parseReceiptsArg(args[0]), verify)
		},
	}
	c.Flags().BoolVar(&verify, "verify", false, "verify the signature")
	c.Flags().Var(spanValue{&wait}, "wait", "how long, while the mail is on its way (default not at all)")
	return c
}

// mailReceipts returns the receipts of a mail, or those of a file.
func (w *app) mailReceipts(cmd *cobra.Command, from string, wait time.Duration) ([]wire.MailReceipt, error) {
	if path, ok := strings.CutPrefix(from, "@"); ok {
		return readReceipts[wire.MailReceipt](path)
	}
	if wait > 0 {
		w.unlimited(cmd)
	}
	return callMail(cmd, w, func(ctx context.Context, c *client.Client) ([]wire.MailReceipt, error) {
		return c.MailReceipts(ctx, from, wait)
	})
}

// showMailReceipts shows receipts, which are about mails whose ids begin with id, and verifies them
// before if that is asked for. Without an id they are of a file.
func (w *app) showMailReceipts(receipts []wire.MailReceipt, id string, verify bool) error {
	bad, alone := 0, 0
	for i := range receipts {
		r := &receipts[i]
		if verify {
			r.Problem = verifyMailReceipt(r, id)
			if r.Verified = r.Problem == nil; !r.Verified {
				bad++
			}
		}
		if id == "" {
			r.Node, r.Origin = r.NodeID, r.OriginID // nobody has signed a name
		}
		if len(r.Letter) == 0 {
			alone++
		}
	}
	if err := w.show(mailReceiptsView(receipts)); err != nil {
		return err
	}
	if !verify {
		return nil
	}
	if alone > 0 {
		w.infof("%s no letter with them: compare the SHA-256 of the letter with the digest", counted(alone, "receipt has", "receipts have"))
	}
	return w.verified(len(receipts), bad)
}

// verifyMailReceipt checks that the proof is signed by the node that the receipt names, about the
// letter that it has, and replaces its other fields by what the proof states.
func verifyMailReceipt(r *wire.MailReceipt, id string) *wire.Note {
	b, err := base64.StdEncoding.DecodeString(r.Proof)
	if err != nil {
		return unreadable(err)
	}
	p, err := proto.ParseMailReceipt(b)
	if err != nil {
		return unreadable(err)
	}
	s := &p.Statement
	digest := "sha256:" + hex.EncodeToString(s.Digest[:])
	switch {
	case identity.VerifyMailReceipt(identity.NewVerifier(), &p) != nil:
		return &wire.Note{Code: wire.ReceiptUnsigned}
	case s.Home.String() != r.NodeID:
		return &wire.Note{Code: wire.ReceiptOtherNode, NoteArgs: wire.NoteArgs{Peer: s.Home.String()}}
	case !strings.HasPrefix(s.Mail.String(), id):
		return &wire.Note{Code: wire.ReceiptOtherTask, NoteArgs: wire.NoteArgs{Box: s.Box, Task: s.Mail.String()}}
	case len(r.Letter) > 0 && sha256.Sum256(r.Letter) != s.Digest, digest != r.Digest:
		return &wire.Note{Code: wire.ReceiptOtherLetter, NoteArgs: wire.NoteArgs{Detail: digest}}
	}
	r.Mail, r.Box, r.OriginID, r.Time, r.Number = s.Mail.String(), s.Box, s.Origin.String(), proto.Time(s.Time), ""
	if s.Class != proto.ClassUnspecified {
		r.Number = fmt.Sprintf("%s.%s", s.Class.Name(), s.Number)
	}
	return nil
}

func mailReceiptsView(receipts []wire.MailReceipt) view {
	return view{value: wire.Page[wire.MailReceipt]{Items: receipts}, lines: lines(receipts), human: func(p *printer) {
		t := newTable(col("MAIL"), col("BOX"), col("NODE"), col("TIME"), col("FROM"), col("VALID"), wideOnly("NUMBER"), wideOnly("DIGEST"), wideOnly("NODE ID"), wideOnly("FROM ID"))
		for _, r := range receipts {
			holds := "yes"
			if !r.Verified {
				holds = invalidReceipt(r.Problem)
			} else if len(r.Letter) == 0 {
				holds = "yes, without its letter"
			}
			t.row(shortTask(r.Mail), r.Box, r.Node, r.Time.Local().Format("2006-01-02 15:04:05.000"), r.Origin, holds, r.Number, r.Digest, r.NodeID, r.OriginID)
		}
		p.table(t)
	}}
}
