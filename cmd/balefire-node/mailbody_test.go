package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/balefire/balefire/api/client/clienttest"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

func leaseOf(m wire.ReceivedMail) wire.LeasedMail {
	return wire.LeasedMail{Items: []wire.DeliveredMail{{Lease: "88.7.1", Attempt: 1, Until: testStart, Mail: m}}}
}

// testLarge returns a mail with a large body.
func testLarge(body []byte) wire.ReceivedMail {
	m, sum := testReceived(""), sha256.Sum256(body)
	m.Size, m.Body, m.Digest = int64(len(body)), nil, "sha256:"+hex.EncodeToString(sum[:])
	return m
}

// newLargeNode returns a node with a mail whose body is large, and which serves another one.
func newLargeNode(body, served []byte) *clienttest.Node {
	n, m := newMailNode(), testLarge(body)
	n.Answer("POST /v1/mailboxes/{box}/lease", leaseOf(m))
	n.Answer("GET /v1/mailboxes/{box}/body", served)
	n.Answer("GET /v1/mail/{id}/body", served)
	n.Answer("GET /v1/mail/{id}", wire.BoxedMail{ReceivedMail: m, State: "WAITING", Accepted: testStart})
	return n
}

// TestLargeBodiesAreStreamed sends files around the limit of a request.
func TestLargeBodiesAreStreamed(t *testing.T) {
	for _, size := range []int{proto.MaxInlineBody, proto.MaxInlineBody + 1} {
		file := filepath.Join(t.TempDir(), "film.mp4")
		body := bytes.Repeat([]byte("x"), size)
		if err := os.WriteFile(file, body, 0o600); err != nil {
			t.Fatal(err)
		}
		for _, args := range [][]string{{"--file", file}, {"@" + file}} {
			n, got := newMailNode(), []byte(nil)
			n.Answer("POST /v1/mail", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				got, _ = io.ReadAll(r.Body) // the size is checked
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(http.StatusAccepted)
				_ = json.NewEncoder(w).Encode(wire.SentMail{ID: testMailID, Box: "agent:ceo@here", State: "WAITING"})
			}))
			code, out, errs := command(t, n, append([]string{"mail", "send", "agent:ceo", "--dedupe", "d", "--key", "k"}, args...)...)
			calls := n.Requests()
			if code != exitOK || out != testMailID+"\n" || len(calls) != 1 {
				t.Fatalf("%d, %q, %s, asked %d times", code, out, errs, len(calls))
			}
			streamed := calls[0] == "POST /v1/mail?dedupe=d&key=k&to=agent%3Aceo" && bytes.Equal(got, body)
			if streamed != (size > proto.MaxInlineBody) {
				t.Errorf("%d bytes: asked %.100q, which had %d bytes", size, calls[0], len(got))
			}
		}
		if size > proto.MaxInlineBody {
			code, _, errs := command(t, newMailNode(), "mail", "send", "agent:ceo", "--file", file, "--wait", "1s")
			if code != exitUsage || !strings.Contains(errs, "without --wait") {
				t.Errorf("a request: %d, %s", code, errs)
			}
		}
	}
	code, _, errs := command(t, newMailNode(), "mail", "send", "agent:ceo", "hi", "--file", "x")
	if code != exitUsage || !strings.Contains(errs, "one body") {
		t.Errorf("two bodies: %d, %s", code, errs)
	}
}

// TestLargeBodiesMayTakeAnyTime looks at the limit of the last request of a command.
func TestLargeBodiesMayTakeAnyTime(t *testing.T) {
	large := strings.Repeat("x", proto.MaxInlineBody+1)
	for _, tt := range []struct {
		args, in string
		want     time.Duration
	}{
		{"mail send agent:ceo -", "short", 30 * time.Second},
		{"mail send agent:ceo -", large, 0},
		{"mail send agent:ceo - --timeout 7s", large, 7 * time.Second},
		{"topic publish orders eu.created -", large, 0},
		{"mail show " + testMailID, "", 30 * time.Second},
		{"mail show --body " + testMailID, "", 0},
		{"mail show --body --timeout 7s " + testMailID, "", 7 * time.Second},
	} {
		n, socket := newLargeNode([]byte(large), []byte(large)), socketPath(t)
		n.Answer("POST /v1/mail", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(wire.SentMail{ID: testMailID, Box: "agent:ceo@here", State: "WAITING"})
		}))
		clienttest.Serve(t, n, socket)
		w, _, errs := newTestApp()
		w.in, w.environ = strings.NewReader(tt.in), []string{"BALEFIRE_SOCKET=" + socket}
		if code := execute(t.Context(), w, strings.Fields(tt.args)); code != exitOK || w.flags.timeout != tt.want {
			t.Errorf("%s: exit code %d, limit %s, want %s; %s", tt.args, code, w.flags.timeout, tt.want, errs)
		}
	}
}

// TestLargeBodiesAreSaved reads a mail with a large body: what is acknowledged is on the disk.
func TestLargeBodiesAreSaved(t *testing.T) {
	body := bytes.Repeat([]byte("y"), 1<<20)
	const lease, fetched = `POST /v1/mailboxes/ceo/lease {"max":1}`, "GET /v1/mailboxes/ceo/body?lease=88.7.1"
	const back, ack = `POST /v1/mailboxes/ceo/settle {"defer":[{"lease":"88.7.1"}]}`, `POST /v1/mailboxes/ceo/settle {"ack":["88.7.1"]}`
	const failed = `POST /v1/mailboxes/ceo/settle {"nack":[{"lease":"88.7.1","reason":"read the body of mail ` + testMailID + `: it has `
	for _, tt := range []struct {
		name, flags string
		served      []byte
		code        int
		calls, says string
		saved       bool
	}{
		{"only shown", "", nil, exitOK, lease, "", false},
		{"acknowledged and not saved", "--ack", nil, exitUsage, lease + "; " + back, "name the folder", false},
		{"saved", "--save DIR", body, exitOK, lease + "; " + fetched, "saved 1.0 MiB", true},
		{"saved and acknowledged", "--save DIR --ack", body, exitOK, lease + "; " + fetched + "; " + ack, "saved 1.0 MiB", true},
		{"cut short", "--save DIR --ack", body[:100], exitError, lease + "; " + fetched + "; " + failed, "it has 100 bytes", false},
		{"another one", "--save DIR --ack", bytes.Repeat([]byte("z"), 1<<20), exitError, lease + "; " + fetched + "; " + failed, "and the digest", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n, dir := newLargeNode(body, tt.served), t.TempDir()
			code, out, errs := command(t, n, append([]string{"mail", "read", "ceo"}, strings.Fields(strings.ReplaceAll(tt.flags, "DIR", dir))...)...)
			var calls []string
			for _, c := range n.Requests() {
				if !strings.Contains(c, "extend") {
					calls = append(calls, c[:min(len(c), len(failed))])
				}
			}
			if got := strings.Join(calls, "; "); code != tt.code || got != tt.calls || !strings.Contains(errs, tt.says) {
				t.Errorf("%d, asked %s\n%s", code, got, errs)
			}
			if code == exitOK && !strings.Contains(out, "(1.0 MiB: balefire-node mail show "+testMailID[:8]) {
				t.Errorf("%s", out)
			}
			files, err := os.ReadDir(dir)
			if err != nil || (len(files) == 1 && files[0].Name() == testMailID) != tt.saved || len(files) > 1 {
				t.Errorf("%v, %v", files, err)
			}
			if got, err := os.ReadFile(filepath.Join(dir, testMailID)); tt.saved && (err != nil || !bytes.Equal(got, body)) {
				t.Errorf("%d bytes, %v", len(got), err)
			}
		})
	}
}

// Following outlives a body that a restart of the node cut off, or that is not whole: the mail
// comes again. A folder that is not there ends it.
func TestMailFollowOutlivesBodies(t *testing.T) {
	body, dir := bytes.Repeat([]byte("y"), 1<<20), t.TempDir()
	n, leases, fetches := newLargeNode(body, nil), 0, 0
	n.Answer("POST /v1/mailboxes/{box}/lease", func(*http.Request) any {
		if leases++; leases == 5 {
			return wire.ErrRefused
		}
		return leaseOf(testLarge(body))
	})
	n.Answer("GET /v1/mailboxes/{box}/body", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		switch fetches++; fetches {
		case 1:
			panic(http.ErrAbortHandler) // the node dies before it answers
		case 2:
			w.Header().Set("Content-Length", strconv.Itoa(len(body)))
			_, _ = w.Write(body[:100]) // and while it answers
			panic(http.ErrAbortHandler)
		case 3:
			_, _ = w.Write(body[:100])
			return
		}
		_, _ = w.Write(body)
	}))
	code, out, errs := command(t, n, "mail", "read", "ceo", "--follow", "--save", dir, "--ack")
	saved, err := os.ReadFile(filepath.Join(dir, testMailID))
	if code != exitRefused || leases != 5 || fetches != 4 || strings.Count(out, "88.7.1") != 1 || err != nil || !bytes.Equal(saved, body) {
		t.Errorf("%d after %d leases and %d bodies, %v: %q, %q", code, leases, fetches, err, out, errs)
	}
	if strings.Count(errs, "warning: read the body of mail "+testMailID+": ") != 3 {
		t.Errorf("it says %q", errs)
	}
	leases = 0
	code, _, errs = command(t, n, "mail", "read", "ceo", "--follow", "--save", filepath.Join(dir, "none"))
	if code != exitError || leases != 1 || !strings.Contains(errs, "no such file") {
		t.Errorf("without its folder: %d after %d leases: %s", code, leases, errs)
	}
}

// TestLargeBodyIsShown writes a body to standard output.
func TestLargeBodyIsShown(t *testing.T) {
	body := bytes.Repeat([]byte("y"), 1<<20)
	if code, out, errs := command(t, newLargeNode(body, body), "mail", "show", testMailID, "--body"); code != exitOK || out != string(body) {
		t.Errorf("%d, %d bytes: %s", code, len(out), errs)
	}
	if code, out, _ := command(t, newLargeNode(body, body), "mail", "show", testMailID); code != exitOK || !strings.Contains(out, "body      1.0 MiB   sha256:") {
		t.Errorf("%d, %s", code, out)
	}
}
