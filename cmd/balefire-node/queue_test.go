package main

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/balefire/balefire/api/client/clienttest"
	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/wire"
)

const shownQueue = `
home       here (this node)  12D3KooH  generation 3
tasks      240 waiting  3 owned  1 being handed over to another home
strategy   least_loaded
limit      8 at a time, 2 on each node
limit      llm: 4 at a time, 1 on each node
limit      shell: 6 at a time
lease      30s
lost lease stop
labels     gpu=yes
allow      peer:laptop
changed    60m ago

` + shownMembers

const shownMembers = `MEMBER  STATE     OWNED  BUSY  PRIORITY  KINDS      LABELS
here    ready         2   2/4         5  llm,shell  gpu=yes
laptop  away          1   1/2         0  shell      -
烽火台  draining      0   0/2         0  shell      -
`

// TestQueues checks the requests and the output of the queue commands.
func TestQueues(t *testing.T) {
	tests := []struct {
		args       string
		code       int
		call, want string
	}{
		{"ls", exitOK, "GET /v1/queues", `
QUEUE   HOME              STATE   STRATEGY      WAITING  OWNED  MEMBERS
build   here (this node)  open    least_loaded      240      3        1
photos  laptop            paused  ordered             -      -        -
`},
		{"ls -o wide", exitOK, "GET /v1/queues", `
QUEUE   HOME              STATE   STRATEGY      WAITING  OWNED  MEMBERS  GOING  LIMIT  PER NODE  GENERATION  CHANGED  HOME ID
build   here (this node)  open    least_loaded      240      3        1  1      8      2         3           60m      12D3KooH
photos  laptop            paused  ordered             -      -        -  -      -      -         1           -        12D3KooW
`},
		{"show build", exitOK, "GET /v1/queues/build", "build  open" + shownQueue},
		{"show photos", exitOK, "GET /v1/queues/photos", `
photos  paused
home       laptop  12D3KooW  generation 1
tasks      known only at its home
strategy   ordered
`},
		{"members build", exitOK, "GET /v1/queues/build", shownMembers},
		{"members photos -o json", exitOK, "GET /v1/queues/photos", "{\n  \"items\": []\n}\n"},
		{"pause build", exitOK, "POST /v1/queues/build/pause", "build  paused" + shownQueue},
		{"resume build", exitOK, "POST /v1/queues/build/resume", "build  open" + shownQueue},
		{"unblock build repo-7", exitOK, `POST /v1/queues/build/unblock {"key":"repo-7"}`, "build  open" + shownQueue},
		{"drain build", exitOK, `PUT /v1/queues/build {"draining":true}`, "build  draining" + shownQueue},
		{"drain build --off", exitOK, `PUT /v1/queues/build {"draining":false}`, "build  open" + shownQueue},
		{"handoff photos --to field-07", exitOK, `POST /v1/queues/photos/handoff {"to":"field-07"}`, `
photos  paused
home       field-07  12D3KooW  generation 4
tasks      known only at its home  240 being handed over to another home
strategy   ordered
`},
		{"handoff photos -o jsonl", exitOK, "POST /v1/queues/photos/handoff {}", `{"name":"photos","home":"laptop","home_id":"12D3KooW","here":false,"generation":4,"strategy":"ordered","paused":true,"waiting":0,"owned":0,"going":240,"members":[]}` + "\n"},
		{"seize build --from laptop --accept-loss", exitOK, `POST /v1/queues/build/seize {"from":"laptop","accept_loss":true}`,
			"build  open" + strings.Replace(strings.Replace(shownQueue, "generation 3", "generation 4", 1), "tasks ",
				"seized     from laptop, which is no longer the home: when it comes back it hands over its tasks\ntasks ", 1)},
		{"lss", exitUsage, "", ""},
		{"show", exitUsage, "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.args, func(t *testing.T) {
			n := newCannedNode()
			code, out, errs := command(t, n, append([]string{"queue"}, strings.Fields(tt.args)...)...)
			if calls := strings.Join(n.Requests(), "; "); code != tt.code || calls != tt.call {
				t.Errorf("%d, want %d; the node was asked %q, want %q\n%s", code, tt.code, calls, tt.call, errs)
			}
			same(t, out, tt.want)
		})
	}
}

// TestSeizeSaysWhatMayBeLost checks that seize requires consent after it has printed what
// may be lost.
func TestSeizeSaysWhatMayBeLost(t *testing.T) {
	for args, parts := range map[string][]string{
		"queue seize build --from field-09":                 {"only field-09 knows", "else they are lost", "waiting loses nothing", "add --accept-loss"},
		"queue seize build --accept-loss":                   {"--from is missing"},
		"queue seize build --from field-09 --yes":           {"add --accept-loss"},
		"queue seize --from field-09 --accept-loss":         {"the name of a queue"},
		"queue seize build --from field-09 --accept-loss=0": {"add --accept-loss"},
	} {
		n := newCannedNode()
		n.Answer("GET /v1/peers/{name}", testPeer("field-09"))
		code, out, errs := command(t, n, strings.Fields(args)...)
		if calls := n.Requests(); code != exitUsage || out != "" || slices.ContainsFunc(calls, func(c string) bool { return !strings.HasPrefix(c, "GET ") }) {
			t.Errorf("%s: %d, %q; the node was asked %q", args, code, out, calls)
		}
		for _, part := range parts {
			if !strings.Contains(errs, part) {
				t.Errorf("%s: %q is not in\n%s", args, part, errs)
			}
		}
	}
}

// TestSeizeChecksNamesFirst checks that seize asks for consent only if the queue and the
// old home are known.
func TestSeizeChecksNamesFirst(t *testing.T) {
	for _, unknown := range []string{"GET /v1/queues/{name}", "GET /v1/peers/{name}"} {
		n := newCannedNode()
		n.Answer("GET /v1/peers/{name}", testPeer("laptop"))
		n.Answer(unknown, wire.ErrNotFound)
		if code, _, errs := command(t, n, "queue", "seize", "build", "--from", "nobody"); code != exitNotFound || strings.Contains(errs, "accept-loss") {
			t.Errorf("%s is unknown: %d, %s", unknown, code, errs)
		}
	}
}

// TestQueueSet checks that exactly what was given is set, and lists are replaced.
func TestQueueSet(t *testing.T) {
	tests := []struct{ args, call, errs string }{
		{"--home here", `{"home":"here"}`, ""},
		{"--strategy least_loaded --concurrency 8 --node-concurrency 2", `{"strategy":"least_loaded","concurrency":8,"node_concurrency":2}`, ""},
		{"--concurrency 0", `{"concurrency":0}`, ""},
		{"--kind llm=4/1 --kind shell=6 --kind a=b=0/2", `{"kinds":[{"kind":"llm","concurrency":4,"node_concurrency":1},{"kind":"shell","concurrency":6},{"kind":"a=b","node_concurrency":2}]}`, ""},
		{"--kind=", `{"kinds":[]}`, ""},
		{"--labels= --allow=", `{"labels":[],"allow":[]}`, ""},
		{"--labels gpu=yes,os=linux --allow peer:laptop", `{"labels":["gpu=yes","os=linux"],"allow":["peer:laptop"]}`, ""},
		{"--lease 90s --on-lost-lease stop", `{"lease_ms":90000,"on_lost_lease":"stop"}`, ""},
		{"--lease 0", `{"lease_ms":0}`, ""},
		{"--lanes shared", `{"lanes":"shared"}`, ""},
		{"--homes alpha,beta", `{"homes":["alpha","beta"]}`, ""},
		{"--homes=", `{"homes":[]}`, ""},
		{"--member a=weight:3,priority:9 --member b=limit:1,drain --member c", `{"member_rules":[{"node":"a","weight":3,"priority":9},{"node":"b","concurrency":1,"draining":true},{"node":"c"}]}`, ""},
		{"--member=", `{"member_rules":[]}`, ""},
		{"--member a=weight:-1", "", "NODE=weight:N"},
		{"--member a=color:3", "", "NODE=weight:N"},
		{"--member a=drain:3", "", "NODE=weight:N"},
		{"--member a=weight:1,", "", "NODE=weight:N"},
		{"", "", "nothing to set"},
		{"--lease soon", "", "--lease"},
		{"--lease 3us", "", "at least 1ms"},
		{"--concurrency -1", "", "from 0 to 1048576"},
		{"--kind llm", "", "KIND=ALL"},
		{"--kind =4", "", "KIND=ALL"},
		{"--kind llm=many", "", "a limit must be a whole number from 0 to 1048576"},
		{"--kind llm=4/", "", "a limit must be a whole number from 0 to 1048576"},
		{"--kind llm=-4", "", "a limit must be a whole number from 0 to 1048576"},
		{"--kind llm=4 --kind llm=5", "", "twice"},
	}
	for _, tt := range tests {
		t.Run(tt.args, func(t *testing.T) {
			n := newCannedNode()
			code, _, errs := command(t, n, append([]string{"queue", "set", "build"}, strings.Fields(tt.args)...)...)
			want, calls := exitOK, strings.TrimPrefix(strings.Join(n.Requests(), "; "), "GET /v1/queues/build; ")
			if tt.call == "" {
				want = exitUsage
			} else {
				tt.call = "PUT /v1/queues/build " + tt.call
			}
			if code != want || calls != tt.call || !strings.Contains(errs, tt.errs) {
				t.Errorf("%d, want %d; the node was asked %q, want %q\n%s", code, want, calls, tt.call, errs)
			}
		})
	}
}

// TestLeases checks the requests and the output of the lease commands.
func TestLeases(t *testing.T) {
	shown := fmt.Sprintf(`
%s  build  shell
owner     laptop  12D3KooW
state     RUNNING
epoch     7.41
held for  60s
ends in   12s
attempts  1, leases lost 0

AGO  TASK/MAIL           QUEUE/BOX  CLAIMED BY  EPOCH/LEASE  RESULT   CAUSE
60s  01a1f84f-fb79-727b  build      烽火台      7.40         SUCCESS  epoch 7.41 is newer
`, testID)
	tests := []struct {
		args       string
		code       int
		call, want string
	}{
		{"lease ls", exitOK, "GET /v1/leases?limit=50", `
TASK                QUEUE   KIND   ROLE   PEER    STATE    EPOCH  ENDS IN
01a1f84f-fb79-727b  build   shell  home   laptop  RUNNING  7.41       12s
01a1f850-0000-7000  photos  llm    owner  laptop  STARTED  9.2       over
`},
		{"lease ls --queue build --owner laptop --role home --limit 7 -o jsonl", exitOK, "GET /v1/leases?limit=7&owner=laptop&queue=build&role=home", "*"},
		{"lease ls --limit 0", exitUsage, "", ""},
		{"lease ls --role boss", exitUsage, "GET /v1/leases?limit=50&role=boss", ""},
		{"lease show 01A1F84F", exitOK, "GET /v1/leases?limit=1000; GET /v1/leases/conflicts", shown},
		{"lease show 01a1f850 --queue photos", exitOK, "GET /v1/leases?limit=1000&queue=photos; GET /v1/leases/conflicts", `
01a1f850-0000-7000-8000-000000000001  photos  llm
home      laptop  12D3KooW
state     STARTED
epoch     9.2
ends in   over
attempts  2, leases lost 1
cancel    requested
`},
		{"lease show 01a1f8", exitUsage, "GET /v1/leases?limit=1000", ""},
		{"lease show 02", exitNotFound, "GET /v1/leases?limit=1000", ""},
		{"lease show nothing", exitUsage, "", ""},
		{"lease conflicts", exitOK, "GET /v1/leases/conflicts", `
AGO  TASK/MAIL           QUEUE/BOX        CLAIMED BY  EPOCH/LEASE     RESULT   CAUSE
60s  01a1f84f-fb79-727b  build            烽火台      7.40            SUCCESS  epoch 7.41 is newer
30s  01a1f84f-fb79-727b  agent:ceo@alpha  -           1.1795212606.1  -        the mail was settled late: it has ended, or another reader was given it
`},
		{"lease release 01a1f84f", exitUsage, "", ""},
		{"lease release 01a1f84f --yes", exitOK, "POST /v1/leases/01a1f84f/release", `
01a1f84f  build  -
owner     laptop  12D3KooW
state     PENDING
epoch     7.41
attempts  0, leases lost 0
`},
		{"mesh timeline --task 01A1F84F", exitOK, "GET /v1/ownership/timeline?task=01a1f84f", strings.ReplaceAll(`
TIME          NODE    KIND     TASK                PEER    EPOCH  CAUSE
AT  here    granted  01a1f84f-fb79-727b  laptop  7.41   -
AT  laptop  started  01a1f84f-fb79-727b  here    7.41   -
`, "AT", testStart.Local().Format(timelineClock))},
		{"mesh timeline", exitUsage, "", ""},
		{"mesh timeline --task 01a1f8 --queue build", exitUsage, "", ""},
		{"mesh recover", exitOK, `POST /v1/leases/recover {"dry_run":true}`, recovered("would revoke")},
		{"mesh recover --owner laptop --yes", exitOK, `POST /v1/leases/recover {"owner":"laptop"}`, recovered("revoked")},
		{"mesh recover --yes --dry-run", exitOK, `POST /v1/leases/recover {"dry_run":true}`, recovered("would revoke")},
		{"drain", exitOK, `POST /v1/drain {"on":true}`, "this node is draining: 1 handler running, 2 tasks and queues being handed over\n"},
		{"drain --off", exitOK, `POST /v1/drain {"on":false}`, "this node accepts tasks again\n"},
		{"drain --off --wait", exitUsage, "", ""},
		{"drain -o yaml", exitOK, `POST /v1/drain {"on":true}`, "on: true\nrunning: 1\ngoing: 2\n"},
	}
	for _, tt := range tests {
		t.Run(tt.args, func(t *testing.T) {
			n := newCannedNode()
			code, out, errs := command(t, n, strings.Fields(tt.args)...)
			if calls := strings.Join(n.Requests(), "; "); code != tt.code || calls != tt.call {
				t.Errorf("%d, want %d; the node was asked %q, want %q\n%s", code, tt.code, calls, tt.call, errs)
			}
			if tt.want == "*" {
				if strings.Count(out, "\n") != 2 || !strings.Contains(out, `"epoch":"7.41"`) {
					t.Errorf("jsonl:\n%s", out)
				}
				return
			}
			same(t, out, tt.want)
		})
	}
}

// recovered is the output of mesh recover.
func recovered(did string) string {
	return did + ` 1 leases
TASK                QUEUE  KIND   ROLE  PEER    STATE     EPOCH  ENDS IN
01a1f84f-fb79-727b  build  shell  home  laptop  ACCEPTED  7.41         -

1 stay: they may have been started and may be started only once
TASK                QUEUE  KIND   ROLE  PEER    STATE    EPOCH  ENDS IN
01a1f850-0000-7000  build  shell  home  laptop  RUNNING  7.41         -
`
}

// TestOwnershipEvents checks the timeline and its filters, and that all pages of a long one
// are read.
func TestOwnershipEvents(t *testing.T) {
	at := func(d time.Duration) string { return testStart.Add(d).Local().Format(time.DateTime) }
	code, out, errs := command(t, newCannedNode(), "mesh", "ownership-events")
	if code != exitOK || errs != "" {
		t.Errorf("%d, %q", code, errs)
	}
	same(t, out, fmt.Sprintf(`
NUMBER  TIME                 KIND        TASK                QUEUE   PEER    EPOCH  CAUSE
     1  %s  granted     01a1f84f-fb79-727b  build   laptop  7.41   -
     2  %s  owner_dead  01a1f84f-fb79-727b  build   laptop  7.41   the mesh calls it dead
     3  %s  seized      -                   photos  laptop  -      -
`, at(-time.Minute), at(-time.Second), at(0)))
	for args, numbers := range map[string]string{
		"--after 2": "3", "--queue build": "12", "--task 01A1F84F": "12", "--kind owner_": "2", "--kind gone": "",
	} {
		_, out, _ := command(t, newCannedNode(), append(strings.Fields("mesh ownership-events -o jsonl"), strings.Fields(args)...)...)
		got := ""
		for line := range strings.Lines(out) {
			got += strings.TrimPrefix(line, `{"number":`)[:1]
		}
		if got != numbers {
			t.Errorf("%s: events %s, want %s", args, got, numbers)
		}
	}
	var history []wire.OwnershipEvent
	for i := range uint64(2*ownershipPage + 1) {
		history = append(history, wire.OwnershipEvent{Number: i + 1, Time: testStart, Kind: "granted"})
	}
	n := newCannedNode()
	n.Answer("GET /v1/ownership/events", ownershipEvents(history...))
	if _, out, _ := command(t, n, "mesh", "ownership-events", "-o", "jsonl"); strings.Count(out, "\n") != len(history) {
		t.Errorf("%d events of %d", strings.Count(out, "\n"), len(history))
	}
}

// TestAQueueWhoseHomeIsDeadSaysSoFirst checks the warning of queue show.
func TestAQueueWhoseHomeIsDeadSaysSoFirst(t *testing.T) {
	n, q := newCannedNode(), remoteQueue("photos")
	q.Alarm = &wire.Note{Code: wire.NoteQueueHomeLost, NoteArgs: wire.NoteArgs{Queue: "photos", Peer: "laptop", State: "DEAD", Seconds: 41 * 60, Count: 4}}
	n.Answer("GET /v1/queues/{name}", q)
	code, out, _ := command(t, n, "queue", "show", "photos")
	if want := "! queue photos: its home laptop has been dead for 41m0s, so none of its tasks is granted; 4 tasks of this node wait for laptop\n! start laptop again: then nothing is lost; if it is lost permanently, run on the node that should become the home: balefire-node queue seize photos --from laptop --accept-loss\nphotos  home dead\n"; code != exitOK || !strings.HasPrefix(out, want) {
		t.Errorf("%d\n%s", code, out)
	}
}

// TestQueueNamesAreOffered checks the shell completion of queue names.
func TestQueueNamesAreOffered(t *testing.T) {
	for args, want := range map[string]string{
		"queue show":                      "build\topen at here\nphotos\tpaused at laptop\n",
		"queue seize":                     "build\topen at here\n",
		"queue seize build --from":        "laptop\tOFFLINE\n",
		"queue handoff build --to":        "laptop\tOFFLINE\n",
		"queue set build --strategy":      "least_loaded\n",
		"lease ls --queue":                "photos\tpaused at laptop\n",
		"lease show":                      testID + "\tshell",
		"mesh ownership-events --queue":   "build\topen at here\n",
		"send":                            "laptop\tOFFLINE\nqueue:build\topen at here\nqueue:photos\tpaused at laptop\n",
		"queue set build --on-lost-lease": "continue\nstop\n",
		"queue show build":                ":4\n",
	} {
		socket := socketPath(t)
		stop := clienttest.Serve(t, newCannedNode(), socket)
		w, out, _ := newTestApp()
		w.environ = []string{"BALEFIRE_SOCKET=" + socket}
		if code := execute(t.Context(), w, append(append([]string{"__complete"}, strings.Fields(args)...), "")); code != exitOK || !strings.Contains(out.String(), want) {
			t.Errorf("%s: %d\n%s\nwant\n%s", args, code, out, want)
		}
		stop()
	}
}

// TestANodeWithoutQueuesSaysSo checks the error from a node that is older than
// the command: it does not state that the queue is missing.
func TestANodeWithoutQueuesSaysSo(t *testing.T) {
	socket := socketPath(t)
	clienttest.Serve(t, clienttest.New(nil), socket)
	for _, args := range []string{"queue ls", "queue show build", "queue pause build", "queue seize build --from laptop --accept-loss", "lease ls", "lease show 01", "lease conflicts", "mesh ownership-events", "drain"} {
		w, out, errs := newTestApp()
		w.clock = clock.NewManual(testStart).Clock()
		code := execute(t.Context(), w, append(strings.Fields(args), "--socket", socket))
		if code != exitNotFound || out.Len() > 0 || !strings.Contains(errs.String(), "this node does not support shared queues") || strings.Contains(errs.String(), "list what exists") {
			t.Errorf("%s: %d\n%s%s", args, code, out, errs)
		}
	}
	n := newCannedNode()
	n.Fail(fmt.Errorf("queue build: %w", wire.ErrNotFound))
	if code, _, errs := command(t, n, "queue", "show", "build"); code != exitNotFound || strings.Contains(errs, "no shared queues") || !strings.Contains(errs, "queue ls") {
		t.Errorf("a missing queue: %d\n%s", code, errs)
	}
}

// noAdmin returns a node to which an admin connects after one refused request, and how
// many requests it gets after that.
func noAdmin() (n *clienttest.Node, later *int) {
	n, later = newCannedNode(), new(-1)
	n.Answer("PUT /v1/queues/{name}", func(r *http.Request) any {
		if *later++; *later == 0 {
			return fmt.Errorf("%w: an admin has to sign it", wire.ErrNoAdmin)
		}
		return setQueue(r)
	})
	return n, later
}

// With --wait, creating a queue retries while no admin is connected, and prints once what it
// waits for; without --wait, it is refused.
func TestQueueSetWaitsForAnAdmin(t *testing.T) {
	n, later := noAdmin()
	code, _, errs := command(t, n, "queue", "set", "build", "--home", "here", "--wait")
	if code != exitOK || *later != 1 || strings.Count(errs, "waiting for a connected admin") != 1 {
		t.Errorf("%d, asked %q, %q", code, n.Requests(), errs)
	}
	n, later = noAdmin()
	if code, _, errs := command(t, n, "queue", "set", "build", "--home", "here"); code != exitRefused || *later != 0 || !strings.Contains(errs, "an admin has to sign it") {
		t.Errorf("without --wait: %d, asked %q, %q", code, n.Requests(), errs)
	}
}

// A node that does not stop within --timeout is no longer waited for.
func TestStopGivesUp(t *testing.T) {
	n := newCannedNode()
	n.Answer("POST /v1/stop", nil)
	if code, _, errs := command(t, n, "stop", "--timeout", "300ms"); code != exitTimeout || !strings.Contains(errs, "wait until the node has stopped") {
		t.Errorf("%d, %q", code, errs)
	}
}
