package main

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// testMailReceipt returns a receipt that laptop has signed.
func testMailReceipt(t *testing.T) wire.MailReceipt {
	id, err := proto.ParseMailID(testMailID)
	if err != nil {
		t.Fatal(err)
	}
	keys, letter := identity.NewKeys(nil, testStart), []byte("a letter")
	s := proto.MailStatement{Mail: id, Home: keys.Peer(), Origin: proto.PeerID{1}, Time: testStart.UnixMilli(), Class: proto.High, Number: proto.Seq{Boot: 3, Counter: 4}, Digest: sha256.Sum256(letter), Box: "agent:ceo"}
	r := proto.MailReceipt{Statement: s, Signature: [64]byte(keys.SignMail([]proto.MailStatement{s}))}
	return wire.MailReceipt{
		Mail: testMailID, Box: "agent:ceo", Digest: "sha256:" + hex.EncodeToString(s.Digest[:]), Origin: "here", OriginID: s.Origin.String(), Node: "laptop", NodeID: keys.Peer().String(),
		Time: testStart, Number: "high.3.4", Proof: base64.StdEncoding.EncodeToString(r.Append(nil)), Letter: letter, Verified: true,
	}
}

// What was exported is verified from the file alone, and what was changed in it is found.
func TestMailReceipts(t *testing.T) {
	n := newMailNode()
	n.Answer("GET /v1/mail/{id}/receipts", wire.Page[wire.MailReceipt]{Items: []wire.MailReceipt{testMailReceipt(t)}})
	code, out, errs := command(t, n, "mail", "receipts", testMailID, "--verify", "--wait", "1m", "-o", "json")
	if asked := strings.Join(n.Requests(), "; "); code != exitOK || asked != "GET /v1/mail/"+testMailID+"/receipts?wait=1m0s" || !strings.Contains(errs, "1 receipt is valid") {
		t.Fatalf("%d: %q, %s", code, asked, errs)
	}
	_, table, _ := command(t, n, "mail", "receipts", "01a20c7e")
	if !strings.Contains(table, "agent:ceo  laptop") || !strings.Contains(table, " here  yes") {
		t.Errorf("%s", table)
	}
	other := testMailReceipt(t)
	for name, tt := range map[string]struct {
		change func(*wire.MailReceipt)
		code   wire.NoteCode
	}{
		"as it was": {func(*wire.MailReceipt) {}, ""},
		"other names": {func(r *wire.MailReceipt) {
			r.Box, r.OriginID, r.Number, r.Time, r.Node, r.Origin = "x", "y", "z", testStart.AddDate(1, 0, 0), "the bank", "the president"
		}, ""},
		"without the letter": {func(r *wire.MailReceipt) { r.Letter = nil }, ""},
		"another letter":     {func(r *wire.MailReceipt) { r.Letter = []byte("another") }, wire.ReceiptOtherLetter},
		"another digest":     {func(r *wire.MailReceipt) { r.Digest = "sha256:00" }, wire.ReceiptOtherLetter},
		"another node":       {func(r *wire.MailReceipt) { r.NodeID = "12D3KooW" }, wire.ReceiptOtherNode},
		"another signature": {func(r *wire.MailReceipt) {
			r.Proof, r.NodeID = other.Proof[:len(other.Proof)-8]+"AAAAAA==", other.NodeID
		}, wire.ReceiptUnsigned},
		"no base64": {func(r *wire.MailReceipt) { r.Proof = "?" }, wire.ReceiptUnreadable},
		"no proof":  {func(r *wire.MailReceipt) { r.Proof = "" }, wire.ReceiptUnreadable},
	} {
		var page wire.Page[wire.MailReceipt]
		if err := json.Unmarshal([]byte(out), &page); err != nil {
			t.Fatal(err)
		}
		tt.change(&page.Items[0])
		b, err := json.Marshal(page)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "proof")
		if err := os.WriteFile(file, b, 0o600); err != nil {
			t.Fatal(err)
		}
		code, out, errs := command(t, newMailNode(), "mail", "receipts", "@"+file, "--verify", "-o", "json")
		if code != exitOK == (tt.code == "") || !strings.Contains(out, string(tt.code)) {
			t.Errorf("%s: %d: %s%s", name, code, out, errs)
		}
		if name == "other names" && (!strings.Contains(out, `"agent:ceo"`) || !strings.Contains(out, `"high.3.4"`) || !strings.Contains(out, "2026-11-20T12:00:00Z")) {
			t.Errorf("what the proof does not state: %s", out)
		}
		if strings.Contains(out, "the bank") || strings.Contains(out, "the president") || strings.Contains(out, "laptop") {
			t.Errorf("%s: names that nobody has signed: %s", name, out)
		}
		if said := strings.Contains(errs, "1 receipt has no letter with them"); said != (name == "without the letter") {
			t.Errorf("%s: says that there is no letter: %v", name, said)
		}
	}
}

func TestMailWithoutAReceipt(t *testing.T) {
	none := filepath.Join(t.TempDir(), "none")
	if err := os.WriteFile(none, []byte(`{"items":[]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for line, tt := range map[string]struct {
		code int
		says string
	}{
		"mail receipts 01a20c7e":               {exitOK, ""},
		"mail receipts 01a20c7e --wait 1s":     {exitTimeout, "no receipt of mail 01a20c7e came within 1s"},
		"mail receipts 01a20c7e --wait 0s":     {exitUsage, "say how long"},
		"mail receipts 01a20c7e --verify":      {exitError, "there is no receipt to verify"},
		"mail receipts @" + none + " --verify": {exitError, "there is no receipt in " + none},
		"mail receipts @/nowhere":              {exitError, "read receipts"},
		"mail receipts nothing":                {exitUsage, "is not the id of a mail"},
		"mail receipts":                        {exitUsage, "the id of a mail"},
	} {
		n := newMailNode()
		n.Answer("GET /v1/mail/{id}/receipts", wire.Page[wire.MailReceipt]{Items: []wire.MailReceipt{}})
		if code, _, errs := command(t, n, strings.Fields(line)...); code != tt.code || !strings.Contains(errs, tt.says) {
			t.Errorf("%s: %d, want %d: %s", line, code, tt.code, errs)
		}
	}
}

// mail show says of a mail that another node has whether that signed it.
func TestMailShowsItsReceipt(t *testing.T) {
	r := testMailReceipt(t)
	for says, receipt := range map[string]*wire.MailReceipt{"receipt   laptop has signed at 2026-11-20": &r, "receipt   none: the node of the box did not sign": nil} {
		m := testMail("ACCEPTED")
		m.Box, m.Receipt = "agent:ceo@laptop", receipt
		n := newMailNode()
		n.Answer("GET /v1/mail/{id}", m)
		if code, out, errs := command(t, n, "mail", "show", "01a20c7e"); code != exitOK || !strings.Contains(out, says) || !strings.Contains(out, "box       agent:ceo@laptop   its node has it") {
			t.Errorf("%d: %s%s", code, out, errs)
		}
	}
}

// What a mail cannot ask for is refused in the words of the flags.
func TestMailCannotAsk(t *testing.T) {
	for line, says := range map[string]string{
		"mail send agent:ceo --sender s --notify dead":    "--notify dead: must be done",
		"mail send agent:ceo --notify done":               "add --sender, --reply-to or --bounce-to",
		"mail send topic:orders --sender s --notify done": "--notify: a mail to a topic",
		"mail send agent:ceo --wait 1s --notify done":     "--notify and --wait are both given",
		"mail reply 01a20c7e answer --notify done":        "--notify: nobody could be told",
		"mail send agent:ceo --receipt --relaxed":         "--receipt and --relaxed are both given",
	} {
		n := newMailNode()
		if code, _, errs := command(t, n, strings.Fields(line)...); code != exitUsage || !strings.Contains(errs, says) {
			t.Errorf("%s: %d: %s", line, code, errs)
		}
	}
}
