//go:build unix

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/wire"
)

// A mail that cannot be settled is reported, and does not end mail read --follow --exec.
func TestMailThatIsNotSettled(t *testing.T) {
	for _, tt := range []struct {
		line   string
		leases int
		code   int
	}{
		{"mail read ceo --follow --quiet --exec cat", 3, exitNotFound},
		{"mail read ceo --max 2 --quiet --exec cat", 1, exitRefused},
	} {
		n, leases, settles := newMailNode(), 0, 0
		n.Answer("POST /v1/mailboxes/{box}/lease", func(*http.Request) any {
			if leases++; leases == 3 {
				return wire.ErrNotFound // the box was removed
			}
			return wire.LeasedMail{Items: []wire.DeliveredMail{{Lease: fmt.Sprintf("88.7.%d", leases), Until: testStart, Mail: testReceived("hello\n")}}}
		})
		n.Answer("POST /v1/mailboxes/{box}/settle", func(r *http.Request) any {
			s := document[wire.SettleMail](r)
			if len(s.Ack) == 0 { // of the lease, while the program runs
				return wire.SettledMail{Items: []wire.SettledItem{{Lease: s.Extend[0].Lease, Code: wire.SettledOK}}}
			}
			if settles++; settles == 1 {
				return wire.ErrFull
			}
			return wire.SettledMail{Items: []wire.SettledItem{{Lease: s.Ack[0], Code: wire.SettledOK}}}
		})
		code, out, errs := command(t, n, words(tt.line)...)
		if code != tt.code || leases != tt.leases || out != strings.Repeat("hello\n", min(tt.leases, 2)) || strings.Count(errs, "88.7.1 was handled, and is not settled: ") != 1 {
			t.Errorf("%s: %d after %d leases, %q\n%s", tt.line, code, leases, out, errs)
		}
	}
}

// A program of mail read --exec has what one of a mailbox has, and its exit code says what
// becomes of the mail.
func TestProgramOfMailRead(t *testing.T) {
	d := &wire.DeliveredMail{Lease: "88.7.1", Attempt: 2, Mail: wire.ReceivedMail{ID: "01a206d9-3c5e-7838-8157-1936a50bdeb9", Box: "agent:ceo@laptop", From: "laptop", Type: "order", Body: []byte("5 apples")}}
	for script, want := range map[string]struct{ output, settle string }{
		`cat; echo " $BALEFIRE_TYPE $BALEFIRE_ATTEMPT $BALEFIRE_EPOCH $BALEFIRE_MAIL_ID"`: {"5 apples order 2 7.1 01a206d9-3c5e-7838-8157-1936a50bdeb9\n", `{"ack":["88.7.1"]}`},
		"echo bad; exit 65": {"bad\n", `{"nack":[{"lease":"88.7.1","reason":"exit code 65","final":true}]}`},
		"exit 75":           {"", `{"nack":[{"lease":"88.7.1","reason":"exit code 75"}]}`},
		"exit 3":            {"", `{"nack":[{"lease":"88.7.1","reason":"exit code 3"}]}`},
		"kill -9 $$":        {"", `{"nack":[{"lease":"88.7.1","reason":"killed by signal: killed"}]}`},
	} {
		program, err := mailProgram([]string{"sh", "-c", script})
		if err != nil {
			t.Fatal(err)
		}
		res := handler.Call(t.Context(), program, runOf(d))
		settle, err := json.Marshal(outcome(d.Lease, res))
		if err != nil || string(settle) != want.settle || string(res.Output) != want.output {
			t.Errorf("%s: %s, %q, %v", script, settle, res.Output, err)
		}
	}
	file := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(file, []byte("#!/bin/sh\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	program, err := mailProgram([]string{file})
	if err := errors.Join(err, os.Remove(file)); err != nil {
		t.Fatal(err)
	}
	if res := handler.Call(t.Context(), program, runOf(d)); res.Outcome != handler.Unready || outcome(d.Lease, res).Defer == nil {
		t.Errorf("a program that is gone: %+v", res)
	}
	ctx, stop := context.WithCancelCause(t.Context())
	stop(handler.ErrStopping)
	if program, err = mailProgram([]string{"sh", "-c", "sleep 60"}); err != nil {
		t.Fatal(err)
	}
	if res := handler.Call(ctx, program, runOf(d)); outcome(d.Lease, res).Defer == nil {
		t.Errorf("one that was interrupted: %+v", res)
	}
}

// TestProgramOfALargeMail gets a large body when all of it has been checked, or nothing of it.
func TestProgramOfALargeMail(t *testing.T) {
	body, program := bytes.Repeat([]byte("y"), 1<<20), filepath.Join(t.TempDir(), "count.sh")
	if err := os.WriteFile(program, []byte("#!/bin/sh\nwc -c\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name      string
		served    []byte
		code      int
		out, last string
	}{
		{"whole", body, exitOK, "1048576", `POST /v1/mailboxes/ceo/settle {"ack":["88.7.1"]}`},
		{"cut short", body[:1000], exitOK, "", `POST /v1/mailboxes/ceo/settle {"nack":[{"lease":"88.7.1"`},
	} {
		n := newLargeNode(body, tt.served)
		code, out, errs := command(t, n, "mail", "read", "ceo", "--exec", program)
		calls := n.Requests()
		if last := calls[len(calls)-1]; code != tt.code || strings.TrimSpace(out) != tt.out || !strings.HasPrefix(last, tt.last) {
			t.Errorf("%s: %d, %q, %s\n%s", tt.name, code, out, last, errs)
		}
	}
}

// Following outlives a body that its node has lost, which spends an attempt, and one for which it
// has no time or space: that mail is given back for a time in which others are read. It ends if the
// node has no bodies at all.
func TestMailFollowOutlivesRefusedBodies(t *testing.T) {
	body := bytes.Repeat([]byte("y"), 1<<20)
	older := &wire.Problem{Code: wire.CodeNotFound, Status: http.StatusNotFound, Fix: wire.NoRouteFix}
	for _, flags := range []string{"--ack --save " + t.TempDir(), "--exec true"} {
		for _, why := range []error{wire.ErrRefused, wire.ErrNotFound, context.DeadlineExceeded, wire.ErrFull, older} {
			n, leases, settled := newMailNode(), 0, []string{}
			n.Answer("POST /v1/mailboxes/{box}/lease", func(*http.Request) any {
				if leases++; leases == 3 {
					return wire.ErrDenied
				}
				given := leaseOf(testLarge(body))
				given.Items[0].Lease = fmt.Sprintf("88.7.%d", leases)
				return given
			})
			n.Answer("GET /v1/mailboxes/{box}/body", func(r *http.Request) any {
				if r.FormValue("lease") == "88.7.1" {
					return why
				}
				return body
			})
			n.Answer("POST /v1/mailboxes/{box}/settle", func(r *http.Request) any {
				s := document[wire.SettleMail](r)
				for _, d := range s.Defer {
					settled = append(settled, fmt.Sprintf("defer %s for %s", d.Lease, d.Delay))
				}
				for _, x := range s.Nack {
					settled = append(settled, "nack "+x.Lease)
				}
				for _, lease := range s.Ack {
					settled = append(settled, "ack "+lease)
				}
				return wire.SettledMail{Items: []wire.SettledItem{{Code: wire.SettledOK}}}
			})
			want, ends := []string{"defer 88.7.1 for 30s", "ack 88.7.2"}, exitDenied
			switch why {
			case older:
				want, ends = []string{"defer 88.7.1 for 0s"}, exitNotFound
			case wire.ErrRefused, wire.ErrNotFound:
				want[0] = "nack 88.7.1"
			}
			code, _, errs := command(t, n, words("mail read ceo --follow "+flags)...)
			if code != ends || !slices.Equal(settled, want) || strings.Contains(errs, "warning: ") != (why != older) {
				t.Errorf("%s, %v: %d after %q\n%s", flags, why, code, settled, errs)
			}
		}
	}
}

// A program whose mail somebody else has meanwhile has not handled it.
func TestSettlementOfAProgramDoesNotCount(t *testing.T) {
	n := newMailNode()
	n.Answer("POST /v1/mailboxes/{box}/lease", wire.LeasedMail{Items: []wire.DeliveredMail{{Lease: "9.7.1", Until: testStart, Mail: testReceived("hello")}}})
	if code, _, errs := command(t, n, "mail", "read", "ceo", "--exec", "true"); code != exitRefused || !strings.Contains(errs, "9.7.1 is STALE") {
		t.Errorf("%d: %s", code, errs)
	}
}
