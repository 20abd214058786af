package main

import (
	"bytes"
	"context"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/api/client/clienttest"
	"github.com/balefire/balefire/audit"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// A usage error is described in terms of the command line, with the correct form.
func TestMistakesAreExplained(t *testing.T) {
	for line, want := range map[string]string{
		"send laptop echo --clss high":              "unknown flag: --clss: did you mean --class?",
		"send laptop echo --zzzzzz high":            "unknown flag: --zzzzzz\n",
		"send laptop echo --ttl 99d":                "--ttl 99d: at most 30d",
		"send laptop echo --delay -5s":              `--delay: "-5s" is not a valid duration: it must be positive`,
		"task ls --state weird":                     `unknown task state "weird": it is one of PENDING, `,
		"task ls --limit 5000":                      "--limit 5000: it must be 1 to 1000 entries per page; --all fetches all pages",
		"task ls --limit 0":                         "--limit 0: it must be 1 to 1000",
		"task ls --watch=1ms":                       "--watch=1ms: it must be at least 200ms",
		"task ls --watch -o json":                   "--watch never ends and cannot be written as json",
		"task cancel":                               "no tasks selected",
		"task cancel 01a1f84f --peer laptop":        "not both",
		"task cancel --state success":               "accepts only PENDING",
		"task retry --state running":                "accepts only",
		"dlq retry 01a1f84f --peer laptop":          "give either ids or flags that select dead letters, not both\n",
		"dlq retry 01a1f84f --all":                  "not both\n",
		"dlq retry":                                 "give ids, flags that select some, or --all\n",
		"bench deliver laptop --for 1s":             "unknown flag: --for",
		"invite --role relay":                       "unknown flag: --role: did you mean --roles?",
		"events --after -1":                         "it must be a whole number, 0 or more",
		"send laptop echo --retries -1":             `"-1" for "--retries" flag: it must be a whole number from 0 to 4294967295`,
		"send laptop echo --retries 4294967296":     "from 0 to 4294967295",
		"schedule add build s @daily x --retries x": "from 0 to 4294967295",
		"schedule add b s @daily x --missed-cap -1": "from 0 to 1000",
		"handler add x --concurrency 2147483648":    "from 0 to 2147483647",
		"handler add x --max-attempts 2147483648":   "from 0 to 2147483647",
		"handler add x --max-retries -1":            "from 0 to 2147483647",
		"queue set build --concurrency 1048577":     "from 0 to 1048576",
		"queue set build --node-concurrency -1":     "from 0 to 1048576",
		"queue set build --kind llm=1048577":        "a limit must be a whole number from 0 to 1048576",
		"queue set build --member a=weight:1048577": "each N from 0 to 1048576",
		"mesh prune --limit x":                      "from 0 to 2147483647",
		"ping laptop --count -1":                    `"-1" for "-c, --count" flag: it must be a whole number from 0 to 2147483647`,
		"invite --ttl 400d":                         "--ttl 400d: a ticket is valid for at most 30d",
		"store migrate --to foo --dir nowhere":      `--to "foo": it must be nutsdb or pebble`,
		"status laptop":                             "status shows this node: for another one use balefire-node peers show laptop",
		"netcheck laptop":                           `netcheck takes no arguments, got "laptop"`,
		"peers laptop":                              "to show one: balefire-node peers show laptop",
		"queue build":                               "to show one: balefire-node queue show build",
		"handler add x --allow laptop":              `handler "x": no program`,
		"handler add x --allow laptop --max-body x": "is not a size: write a number of bytes or one with a unit, such as 64MiB",
	} {
		n := newCannedNode()
		if code, out, errs := command(t, n, strings.Fields(line)...); code != exitUsage || out != "" || !strings.Contains(errs, want) || strings.Contains(errs, "invalid request: ") {
			t.Errorf("%s: %d, %q, %q; want %q", line, code, out, errs, want)
		}
	}
}

// A node's folder that is a file, or is below one, is reported as that by every command.
func TestFolderThatIsAFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{file, filepath.Join(file, "node"), filepath.Join(file, "a", "node")} {
		for _, command := range []string{"init", "run", "status", "store check"} {
			w, _, errs := newTestApp()
			if code := execute(t.Context(), w, append(strings.Fields(command), "--dir", dir)); code != exitUsage || !strings.Contains(errs.String(), dir+" cannot be the node's folder: "+file+" is not a folder: give another one with --dir\n") {
				t.Errorf("%s --dir %s: %d, %s", command, dir, code, errs)
			}
		}
	}
}

// A noun without a verb lists its objects.
func TestANounListsWhatThereIs(t *testing.T) {
	for noun, want := range map[string]string{"peers": "laptop", "task": "shell", "dlq": "ID", "handler": "KIND", "queue": "QUEUE", "lease": "TASK"} {
		if code, out, errs := command(t, newCannedNode(), noun); code != exitOK || !strings.Contains(out, want) {
			t.Errorf("%s: %d, %q, %q; want %q", noun, code, out, errs, want)
		}
	}
}

const otherID = "01a1f84f-fb79-727b-b679-7a95fb475003"

// filterNode returns a node with two tasks, and a laptop that only resizes.
func filterNode() *clienttest.Node {
	n := newCannedNode()
	n.Answer("GET /v1/tasks", page(testTask(testID), testTask(otherID)))
	n.Answer("GET /v1/members/{name}", wire.Member{Name: "laptop", Phase: "RUNNING", Kinds: []string{"resize", "rotate"}})
	n.Answer("GET /v1/handlers", page(wire.Handler{Kind: "disk", Allow: []string{"peer:laptop"}}))
	return n
}

// cancel and retry accept the flags that select tasks, and first print what they would do.
func TestTasksAreChosenByFlags(t *testing.T) {
	const (
		unfinished = "GET /v1/tasks?limit=1000&peer=laptop&role=home&state=PENDING%2CSENT%2CACCEPTED%2CRUNNING%2CRETRYING%2CWAITING_APPROVAL%2CINDETERMINATE"
		ended      = "GET /v1/tasks?kind=shell&limit=1000&role=home&state=FAILED%2CTIMEOUT%2CDEAD_LETTER%2CCANCELLED%2CEXPIRED"
	)
	for _, tt := range []struct {
		line  string
		calls []string
		out   string
		code  int
	}{
		{"task cancel --peer laptop --yes --reason why", []string{unfinished, "POST /v1/tasks/" + testID + `/cancel {"reason":"why"}`, "POST /v1/tasks/" + otherID + `/cancel {"reason":"why"}`}, "task " + otherID + " is CANCELLED", exitOK},
		{"task cancel --peer laptop", []string{unfinished}, "", exitUsage},
		{"task cancel --peer laptop --state running --dry-run", []string{"GET /v1/tasks?limit=1000&peer=laptop&role=home&state=RUNNING"}, testID + "\n" + otherID + "\n", exitOK},
		{"task cancel " + testID, []string{"POST /v1/tasks/" + testID + "/cancel {}"}, "task " + testID + " is CANCELLED", exitOK},
		{"task retry --kind shell", []string{ended, "POST /v1/tasks/" + testID + "/retry", "POST /v1/tasks/" + otherID + "/retry"}, "is repeated by", exitOK},
		{"task retry --kind shell --dry-run -o json", []string{ended}, `"items": [`, exitOK},
	} {
		n := filterNode()
		code, out, errs := command(t, n, strings.Fields(tt.line)...)
		if calls := n.Requests(); code != tt.code || !strings.Contains(out, tt.out) || !slices.Equal(calls, tt.calls) {
			t.Errorf("%s: %d, %q, %q; the node was asked %q, want %q", tt.line, code, out, errs, calls, tt.calls)
		}
	}
}

// What was repeated before is not selected, tasks of other homes are not either, and one that
// refuses does not keep those behind it from being changed.
func TestARefusalDoesNotStopWhatIsBehindIt(t *testing.T) {
	const thirdID = "01a1f84f-fb79-727b-b679-7a95fb475004"
	for _, tt := range []struct {
		line, errs string
		refused    error
		code       int
		asked      int // tasks
	}{
		{"task retry --kind shell", "", nil, exitOK, 2},
		{"task retry --kind shell", "retry " + testID + " (1 of 2 done)", wire.ErrRefused, exitRefused, 2},
		{"task cancel --kind shell --yes", "cancel " + testID + " (1 of 2 done)", wire.ErrRefused, exitRefused, 2},
		{"task cancel " + testID + " " + otherID, "cancel " + testID + " (1 of 2 done)", wire.ErrNotFound, exitNotFound, 2},
		{"task cancel " + testID + " " + otherID, "cancel " + testID + " (0 of 2 done)", wire.ErrDenied, exitDenied, 1},
		{"task cancel --role owner", "--role owner", nil, exitUsage, 0},
	} {
		n := filterNode()
		repeated := testTask(thirdID)
		repeated.RedrivenAs = otherID
		n.Answer("GET /v1/tasks", page(repeated, testTask(testID), testTask(otherID)))
		if tt.refused != nil {
			n.Answer("POST /v1/tasks/"+testID+"/cancel", tt.refused)
			n.Answer("POST /v1/tasks/"+testID+"/retry", tt.refused)
		}
		code, out, errs := command(t, n, strings.Fields(tt.line)...)
		asked := slices.DeleteFunc(n.Requests(), func(r string) bool { return strings.HasPrefix(r, "GET") })
		if code != tt.code || len(asked) != tt.asked || !strings.Contains(errs, tt.errs) || tt.refused != nil && strings.Contains(out, "task "+testID) {
			t.Errorf("%s: %d, %q, %q; the node was asked %q", tt.line, code, out, errs, asked)
		}
	}
}

// A kind that the peer does not handle is accepted, since a handler may be added later, but
// send prints a warning; it also warns about an unread body.
func TestSendTellsOfWhatWasHardlyMeant(t *testing.T) {
	for line, want := range map[string]string{
		"send laptop resize":         "",
		"send laptop resiez":         "! laptop has announced no handler for resiez (it serves resize, rotate): until it has one, the task waits\n",
		"send queue:build resiez":    "",
		"send laptop resiez --quiet": "",
	} {
		if code, _, errs := command(t, filterNode(), strings.Fields(line)...); code != exitOK || strings.Contains(errs, "!") != (want != "") || !strings.Contains(errs, want) {
			t.Errorf("%s: %d, %q, want %q", line, code, errs, want)
		}
	}
	for args, told := range map[string]bool{"send laptop resize": true, "send laptop resize -": false, "send laptop resize -- 800": false} {
		socket := socketPath(t)
		clienttest.Serve(t, filterNode(), socket)
		w, _, errs := newTestApp()
		w.hasUnread = func() bool { return true }
		if code := execute(t.Context(), w, append([]string{"--socket", socket}, strings.Fields(args)...)); code != exitOK || strings.Contains(errs.String(), "standard input was not sent") != told {
			t.Errorf("%s: %d, %q", args, code, errs)
		}
	}
}

// --watch replaces each page with the next, even if the node is unavailable for a moment.
func TestWatchShowsItAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var screen bytes.Buffer
		w, _, _ := newTestApp()
		w.out, w.outTTY = &screen, true
		ctx, stop := context.WithTimeout(t.Context(), 5*time.Second)
		defer stop()
		n := 0
		err := w.repeat(ctx, 2*time.Second, func() error {
			if n++; n == 2 {
				return wire.ErrDraining
			}
			_, err := w.out.Write([]byte("page\n"))
			return err
		})
		const clear = "\x1b[H\x1b[2J"
		if want := clear + "page\n" + clear + "… " + wire.ErrDraining.Error() + "\n" + clear + "page\n"; screen.String() != want || exitCode(ctx, err) != exitInterrupted {
			t.Errorf("screen %q, want %q; %v", screen.String(), want, err)
		}
		if err := w.repeat(t.Context(), time.Second, func() error { return wire.ErrDraining }); err == nil {
			t.Error("waits for a node that was never running")
		}
		var lines bytes.Buffer
		w, _, notes := newTestApp()
		w.out, w.flags.output = &lines, formatJSONL
		ctx, stop = context.WithTimeout(t.Context(), 3*time.Second)
		defer stop()
		n = 0
		err = w.repeat(ctx, 2*time.Second, func() error {
			if n++; n == 2 {
				return wire.ErrDraining
			}
			_, err := w.out.Write([]byte("{}\n"))
			return err
		})
		if lines.String() != "{}\n" || notes.String() != "… "+wire.ErrDraining.Error()+"\n" {
			t.Errorf("as JSON lines %q, and %q; %v", &lines, notes, err)
		}
	})
}

// Shell completion offers valid values.
func TestCompletion(t *testing.T) {
	for line, want := range map[string][]string{
		"send ":                      {"laptop"},
		"send laptop ":               {"resize", "rotate"},
		"send laptop resize @mist":   {"@mistake_test.go"},
		"send laptop resize @testda": {"@testdata/"},
		"send laptop resize ":        {"-", "@"},
		"why ":                       {"laptop", testID},
		"handler rm ":                {"disk"},
		"task show ":                 {testID, otherID},
		"task ls --state ":           {"pending", "dead_letter"},
		"task ls --state failed,":    {"failed,success"},
		"task ls --kind ":            {"disk"},
		"task ls --peer ":            {"laptop"},
		"task ls --role ":            {"home", "owner"},
		"task ls -o ":                {"table", "yaml"},
		"status --output j":          {"json", "jsonl"},
		"send laptop x --class ":     {"critical", "low"},
		"handler add x --allow ":     {"laptop", "role:work"},
		"handler add x --on-crash ":  {"probe", "park"},
		"handler add x --profile ":   {"read-only"},
		"handler add x --type ":      {"echo"},
		"invite --roles ":            {"admin"},
		"wait --for ":                {"ready", "peer="},
		"wait --for peer=":           {"peer=laptop"},
		"run --log-level ":           {"debug"},
	} {
		words := strings.Fields(line)
		if strings.HasSuffix(line, " ") {
			words = append(words, "")
		}
		_, out, _ := command(t, filterNode(), append([]string{"__complete"}, words...)...)
		var got []string
		for l := range strings.SplitSeq(out, "\n") {
			word, _, _ := strings.Cut(l, "\t")
			got = append(got, word)
		}
		for _, x := range want {
			if !slices.Contains(got, x) {
				t.Errorf("%q offers %q, without %q", line, got, x)
			}
		}
	}
	if states := taskStates(proto.TaskState.Terminal); len(states) < 5 || slices.Contains(states, "RUNNING") {
		t.Errorf("terminal states: %v", states)
	}
}

// Tasks are offered to a command that could do something with them.
func TestCompletionOfTasks(t *testing.T) {
	n := filterNode()
	n.Answer("GET /v1/dead-letters", page(testTask(testID)))
	for line, want := range map[string]string{
		"task cancel": "GET /v1/tasks?limit=20&state=PENDING%2CSENT%2CACCEPTED%2CRUNNING%2CRETRYING%2CWAITING_APPROVAL%2CINDETERMINATE",
		"task watch":  "GET /v1/tasks?limit=20&state=PENDING%2CSENT%2CACCEPTED%2CRUNNING%2CRETRYING%2CWAITING_APPROVAL%2CINDETERMINATE",
		"task show":   "GET /v1/tasks?limit=20",
		"dlq show":    "GET /v1/dead-letters?limit=20",
		"dlq retry":   "GET /v1/dead-letters?limit=20",
	} {
		_, out, _ := command(t, n, append(append([]string{"__complete"}, strings.Fields(line)...), "")...)
		if got := strings.Join(n.Requests(), "; "); got != want || !strings.Contains(out, testID) {
			t.Errorf("%s asks %q, want %q; it offers %q", line, got, want, out)
		}
	}
}

// status repeats itself as other commands do.
func TestStatusIsWatched(t *testing.T) {
	n := newCannedNode()
	ctx, stop := context.WithCancel(t.Context())
	asked := 0
	n.Answer("GET /v1/status", func(*http.Request) any {
		if asked++; asked == 3 {
			stop()
		}
		return testStatus()
	})
	socket := socketPath(t)
	clienttest.Serve(t, n, socket)
	w, out, _ := newTestApp()
	w.environ = []string{"BALEFIRE_SOCKET=" + socket}
	if code := execute(ctx, w, []string{"status", "--watch=200ms"}); code != exitInterrupted || strings.Count(out.String(), "store nutsdb") < 2 {
		t.Errorf("%d:\n%s", code, out)
	}
}

// The human-readable audit shows peer names if the node can be asked for them.
func TestAuditNamesPeers(t *testing.T) {
	n := newCannedNode()
	socket := socketPath(t)
	clienttest.Serve(t, n, socket)
	w, out, _ := newTestApp()
	w.flags.output, w.flags.paths.Socket = formatTable, socket
	list := []audit.Record{{Entry: audit.Entry{Actor: "12D3KooW", Action: "peer.block", Detail: map[string]string{"subject": "12D3KooW", "other": "12D3KooX"}}}}
	if err := w.show(auditLines(list, w.peerNames(t.Context()))); err != nil || !strings.Contains(out.String(), "other=12D3KooX subject=laptop") || strings.Count(out.String(), "laptop") != 2 {
		t.Errorf("%v: %s", err, out)
	}
	w.flags.output = formatJSONL
	if names := w.peerNames(t.Context()); len(names) > 0 {
		t.Errorf("machine-readable output has names: %v", names)
	}
}

// A waiting command prints its progress lines less often where they cannot be overwritten.
func TestSilenceGrowsWhereLinesStay(t *testing.T) {
	w, _, _ := newTestApp()
	var got []time.Duration
	for said := range 8 {
		got = append(got, w.nextNotice(said))
	}
	want := []time.Duration{2, 4, 8, 16, 32, 60, 60, 60}
	for i := range want {
		want[i] *= time.Second
	}
	if !slices.Equal(got, want) {
		t.Errorf("pauses are %v", got)
	}
	if w.errTTY = true; w.nextNotice(9) != quietInterval {
		t.Error("the pause grows on a terminal, where the line is overwritten")
	}
}

// A new queue is not reported as changed.
func TestQueueIsMadeOnce(t *testing.T) {
	missing := newCannedNode()
	missing.Answer("GET /v1/queues/{name}", wire.ErrNotFound)
	for want, n := range map[string]http.Handler{"build: created": missing, "build: changed": newCannedNode()} {
		if code, _, errs := command(t, n, "queue", "set", "build", "--home", "here"); code != exitOK || !strings.Contains(errs, want) {
			t.Errorf("%d, %q, want %q", code, errs, want)
		}
	}
}

// A word that is not one of a flag's is refused with the name of the flag, before the node is asked.
func TestWordsOfFlagsAreExplained(t *testing.T) {
	for line, flag := range map[string]string{
		"mailbox add x --mode foo":                                     "--mode",
		"mailbox add x --strategy foo":                                 "--strategy",
		"mailbox set x --on-dead foo":                                  "--on-dead",
		"topic add x --lanes foo":                                      "--lanes",
		"sub add x y --mode foo":                                       "--mode",
		"schedule add build s @daily x --missed foo":                   "--missed",
		"task set 01a1f84f --class foo":                                "--class",
		"mail nack 1.2.3 --box x --reason " + strings.Repeat("a", 257): "--reason",
	} {
		n := newMailNode()
		if code, _, errs := command(t, n, strings.Fields(line)...); code != exitUsage || !strings.Contains(errs, flag) || len(n.Requests()) > 0 {
			t.Errorf("%s: %d, asked %q: %s", line, code, n.Requests(), errs)
		}
	}
}

// What is wrong is said in the words of the command line, and with what to do instead.
func TestWhatToDoInsteadIsSaid(t *testing.T) {
	file := filepath.Join(t.TempDir(), "there")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for line, says := range map[string]string{
		"send laptop k --key a --dedupe content":                   "--dedupe and --key are both given: give one",
		"send laptop k --label " + strings.Repeat("k", 129) + "=v": "a key of 129 bytes: at most 128",
		"mail read ceo --reader " + strings.Repeat("r", 65):        "--reader has 65 bytes: at most 64",
		"handler add foo -- cat":                                   "give --allow PEER or --allow role:ROLE",
		"task ls --watch 2s":                                       "write --watch=2s",
		"queue rm build":                                           "a queue cannot be removed",
		"store key " + file:                                        file + " exists: name a new file",
		"dlq export --out " + file:                                 file + " exists: name a new file",
		"task purge --state pending --yes":                         "only ended tasks are removed",
		"topic publish orders '' x":                                "the subject is empty",
		"why agent:nope":                                           "mailbox ls, topic ls",
	} {
		n := newMailNode()
		n.Answer("GET /v1/why/{subject}", wire.ErrNotFound)
		if code, _, errs := command(t, n, words(line)...); code == exitOK || !strings.Contains(errs, says) {
			t.Errorf("%s: %d, %s", line, code, errs)
		}
	}
	if code, _, errs := command(t, newMailNode(), "task", "foo", "01a1f84f"); code != exitUsage || strings.Contains(errs, "to show one") {
		t.Errorf("%d, %s", code, errs)
	}
}

// The name of a box for replies lets others write to it: it is not offered to anyone who types.
func TestReplyBoxesAreNotOffered(t *testing.T) {
	n := newMailNode()
	secret := wire.ReplyBoxName([16]byte{1})
	n.Answer("GET /v1/mailboxes", wire.Page[wire.Box]{Items: []wire.Box{{Name: "agent:ceo@here"}, {Name: "agent:" + secret + "@here"}}})
	for _, line := range []string{"mail read", "mail send", "mailbox show"} {
		_, out, _ := command(t, n, append(append([]string{"__complete"}, strings.Fields(line)...), "")...)
		if !strings.Contains(out, "ceo") || strings.Contains(out, secret) {
			t.Errorf("%s: %s", line, out)
		}
	}
}
