//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// mailExamples are the programs of docs/examples that have the same commands.
var mailExamples = [][]string{{"python3", "mail.py"}, {"sh", "mail.sh"}}

// TestMailExamples runs the programs that docs/mail.md gives to its readers on a node: what
// they say is what is in the mailbox, and what is refused is told in the node's words.
func TestMailExamples(t *testing.T) {
	for _, tool := range []string{"python3", "curl"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Fatal(err)
		}
	}
	m := newMachine(t, "a", true, config{engine: engines[0]})
	m.start()
	dir := shortDir(t)
	copyExamples(t, dir)
	for i, argv := range mailExamples {
		t.Run(argv[1], func(t *testing.T) {
			x := example{t, m, filepath.Join(dir, "examples"), argv, fmt.Sprint("desk", i)}
			x.create()
			x.exchange()
			x.refusals()
		})
	}
	t.Run("mailstream.py", func(t *testing.T) {
		x := example{t, m, filepath.Join(dir, "examples"), []string{"python3", "mailstream.py"}, "stream"}
		x.create()
		x.stream()
	})
}

// copyExamples copies docs/examples into dir: Python writes into the folder of a module.
func copyExamples(t *testing.T, dir string) {
	t.Helper()
	if err := os.CopyFS(filepath.Join(dir, "examples"), os.DirFS("../docs/examples")); err != nil {
		t.Fatal(err)
	}
}

// An example is a program that uses a mailbox.
type example struct {
	t       *testing.T
	node    *machine
	dir     string
	argv    []string
	mailbox string
}

// result is what a program printed and returned.
type result struct {
	out, complaint string
	code           int
}

// run runs the program with a standard input.
func (x example) run(in string, args ...string) (r result) {
	x.t.Helper()
	ctx, cancel := context.WithTimeout(x.t.Context(), testTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, x.argv[0], append(x.argv[1:len(x.argv):len(x.argv)], args...)...)
	cmd.Dir = x.dir
	cmd.Env = append(os.Environ(), "BALEFIRE_SOCKET="+filepath.Join(x.node.dir, "node.sock"))
	var out, complaint bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(in), &out, &complaint
	if err := cmd.Run(); cmd.ProcessState == nil || !cmd.ProcessState.Exited() {
		x.t.Fatalf("%s: %v\n%s", args, err, complaint.String())
	}
	return result{out.String(), complaint.String(), cmd.ProcessState.ExitCode()}
}

// must runs the program, which must succeed without a complaint.
func (x example) must(in string, args ...string) string {
	x.t.Helper()
	r := x.run(in, args...)
	if r.code != 0 || r.complaint != "" {
		x.t.Fatalf("%s: exit code %d\n%s", args, r.code, r.complaint)
	}
	return r.out
}

// refused runs the program, which must fail, print nothing else, and say why.
func (x example) refused(why, in string, args ...string) {
	x.t.Helper()
	r := x.run(in, args...)
	said := strings.ReplaceAll(r.complaint, `\"`, `"`) // of a document
	if r.code != 1 || r.out != "" || !strings.Contains(said, why) {
		x.t.Errorf("%s: exit code %d, want 1 and %q\n%s%s", args, r.code, why, r.out, r.complaint)
	}
}

// lease runs the program until it has a mail, and checks its attempt and body.
func (x example) lease(attempt int, body string) (handle string) {
	x.t.Helper()
	out := x.must("", "lease", x.mailbox, "5m")
	line, got, _ := strings.Cut(out, "\n")
	handle, tried, _ := strings.Cut(line, " ")
	if tried != fmt.Sprint(attempt) || got != body {
		x.t.Fatalf("leased %.100q with %d bytes, want attempt %d of %d bytes: %.60q", line, len(got), attempt, len(body), body)
	}
	return handle
}

// create makes the mailbox. Its leases last longer than the test.
func (x example) create() {
	x.t.Helper()
	hour, attempts := wire.Duration(3600e9), 5
	if _, err := x.node.SetMailbox(x.t.Context(), x.mailbox, wire.MailboxSettings{SubscriptionSettings: wire.SubscriptionSettings{Lease: &hour, Attempts: &attempts}}); err != nil {
		x.t.Fatal(err)
	}
}

// mails returns what is in the mailbox, by the node.
func (x example) mails(state string) []wire.BoxedMail {
	x.t.Helper()
	page, err := x.node.BoxMails(x.t.Context(), x.mailbox, "", wire.MailQuery{State: state, Limit: 1000})
	if err != nil {
		x.t.Fatal(err)
	}
	return page.Items
}

// box returns the mailbox, by the node.
func (x example) box() wire.Box {
	x.t.Helper()
	b, err := x.node.Mailbox(x.t.Context(), x.mailbox)
	if err != nil {
		x.t.Fatal(err)
	}
	return b
}

// emptied checks that so many mails are done and nothing else is left of any.
func (x example) emptied(done int) {
	x.t.Helper()
	b := x.box()
	if b.Waiting != 0 || b.Ended != (wire.EndedMails{Done: uint64(done)}) || b.Next != uint64(done)+1 || len(x.mails("DEAD")) > 0 {
		x.t.Errorf("after %d mails: %d wait, %+v, next %d", done, b.Waiting, b.Ended, b.Next)
	}
}

// exchange sends, leases, fails and acknowledges mail.
func (x example) exchange() {
	bodies := []string{
		"the report is ready", "", "two\nlines\n\n", `"quoted" \ {"body":"no"}, "lease":"1.1.1"`, "größer 報告\x00\xff\x80",
		strings.Repeat("0123456789abcdef", proto.MaxInlineBody/16),
	}
	const key = `a "key" with \ in it`
	for i, body := range bodies {
		id := x.must(body, "send", "agent:"+x.mailbox, key, fmt.Sprint("dedupe-", i))
		all := x.mails("")
		last := all[len(all)-1]
		if len(all) != i+1 || id != last.ID+"\n" || string(last.Body) != body || last.Key != key {
			x.t.Fatalf("sent as %q; the mailbox has %d mails, the last is %s with %q", id, len(all), last.ID, last.Body)
		}
		if again := x.must(body, "send", "agent:"+x.mailbox, key, fmt.Sprint("dedupe-", i)); again != id || len(x.mails("")) != i+1 {
			x.t.Errorf("with the same dedupe key: %q, then %q", id, again)
		}
	}
	for i, body := range bodies {
		first := x.lease(1, body)
		if out := x.must("", "lease", x.mailbox); out != "" {
			x.t.Errorf("leased %q, before the mail with the same key has ended", out)
		}
		x.must("", "nack", x.mailbox, first, `"none" left`)
		second := x.lease(2, body)
		if got := x.mails("LEASED"); len(got) != 1 || got[0].Attempts != 1 || len(got[0].Tries) != 1 || got[0].Tries[0].Reason != `"none" left` {
			x.t.Errorf("mail %d: %+v", i, got)
		}
		x.refused(wire.SettledStale, "", "ack", x.mailbox, first)
		x.must("", "ack", x.mailbox, second)
		x.must("", "ack", x.mailbox, second) // a mail that is done: OK again
		x.refused(wire.SettledStale, "", "nack", x.mailbox, second, "too late")
	}
	if out := x.must("", "lease", x.mailbox); out != "" {
		x.t.Errorf("leased %q from an empty mailbox", out)
	}
	x.emptied(len(bodies))
}

// refusals asks for what the node refuses.
func (x example) refusals() {
	before := x.box()
	none := "there is no agent:none@a on this node; make it with balefire-node mailbox add none"
	x.refused(none, "hello", "send", "agent:none")
	x.refused(none, "", "lease", "none", "1s")
	x.refused(none, "", "ack", "none", "1.1.1")
	x.refused(none, "", "nack", "none", "1.1.1")
	x.refused(`unknown peer "none"`, "hello", "send", "agent:desk@none")
	x.refused(`lease "x": must be what a delivery names`, "", "ack", x.mailbox, "x")
	x.refused(wire.SettledUnknown, "", "ack", x.mailbox, "99.1.1")
	x.refused(`"soon" is not a duration`, "", "lease", x.mailbox, "soon")
	for size, why := range map[int]string{
		proto.MaxInlineBody + 1: "body of 262145 bytes: a mail has at most 262144",
		2 << 20:                 "the document is larger than",
	} {
		x.refused(why, strings.Repeat("x", size), "send", "agent:"+x.mailbox)
	}
	if after := x.box(); after.Next != before.Next || after.Waiting != before.Waiting {
		x.t.Errorf("what was refused changed the mailbox from %+v to %+v", before, after)
	}
	if r := x.run("", "lease"); r.code != 2 || !strings.Contains(r.complaint, "lease BOX [WAIT]") {
		x.t.Errorf("without a mailbox: exit code %d\n%s", r.code, r.complaint)
	}
	x.node = &machine{dir: "/nowhere"}
	if r := x.run("", "lease", x.mailbox); r.code == 0 || r.out != "" || r.complaint == "" {
		x.t.Errorf("without a node: exit code %d\n%s%s", r.code, r.out, r.complaint)
	}
}

// stream sends and reads mail over a WebSocket, in messages with each of the three forms of
// a length.
func (x example) stream() {
	var lines []string
	for i := range 200 {
		lines = append(lines, fmt.Sprint("line ", i))
	}
	lines[7] = strings.Repeat("7", 100_000)
	text := strings.Join(lines, "\n") + "\n"
	ids := strings.Fields(x.must(text, "send", "agent:"+x.mailbox))
	all := x.mails("")
	if len(ids) != len(lines) || len(all) != len(lines) {
		x.t.Fatalf("%d ids, %d mails", len(ids), len(all))
	}
	for i, mail := range all {
		if mail.ID != ids[i] || string(mail.Body) != lines[i] {
			x.t.Fatalf("mail %d is %s with %.60q, sent as %s", i, mail.ID, mail.Body, ids[i])
		}
	}
	got := strings.Split(strings.TrimSuffix(x.must("", "read", x.mailbox, "150"), "\n"), "\n")
	left := x.mails("")
	if len(got) != 150 || len(left) != 50 {
		x.t.Errorf("%d mails were read, %d are left", len(got), len(left))
	}
	for _, mail := range left {
		if mail.State != "WAITING" || mail.Attempts != 0 || mail.Abandons != 0 {
			x.t.Errorf("the end of a reader changed a mail that it had not handled: %+v", mail)
		}
	}
	got = append(got, strings.Split(strings.TrimSuffix(x.must("", "read", x.mailbox, "50"), "\n"), "\n")...)
	slices.Sort(got) // without a key the order is not promised
	if want := slices.Sorted(slices.Values(lines)); !slices.Equal(got, want) {
		x.t.Errorf("%d mails were read that differ from the %d that were sent", len(got), len(want))
	}
	x.emptied(len(lines))
	x.refused("there is no agent:none@a on this node", "", "read", "none", "1")
	x.refused("there is no agent:none@a on this node", "hello", "send", "agent:none")
	x.refused("body of 262145 bytes: a mail has at most 262144", strings.Repeat("x", proto.MaxInlineBody+1), "send", "agent:"+x.mailbox)
	x.refused("closed with 1008: a send must have from 1 to 512 mails", "", "send", "agent:"+x.mailbox)
	x.emptied(len(lines))
}
