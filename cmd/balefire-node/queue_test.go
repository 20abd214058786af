package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/balefire/balefire/api"
	"github.com/balefire/balefire/api/apitest"
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
		{"ls", exitOK, "Queues", `
QUEUE   HOME              STATE   STRATEGY      WAITING  OWNED  MEMBERS
build   here (this node)  open    least_loaded      240      3        1
photos  laptop            paused  ordered             -      -        -
`},
		{"ls -o wide", exitOK, "Queues", `
QUEUE   HOME              STATE   STRATEGY      WAITING  OWNED  MEMBERS  GOING  LIMIT  PER NODE  GENERATION  CHANGED  HOME ID
build   here (this node)  open    least_loaded      240      3        1  1      8      2         3           60m      12D3KooH
photos  laptop            paused  ordered             -      -        -  -      -      -         1           -        12D3KooW
`},
		{"show build", exitOK, "Queue build", "build  open" + shownQueue},
		{"show photos", exitOK, "Queue photos", `
photos  paused
home       laptop  12D3KooW  generation 1
tasks      known only at its home
strategy   ordered
`},
		{"members build", exitOK, "Queue build", shownMembers},
		{"members photos -o json", exitOK, "Queue photos", "{\n  \"items\": []\n}\n"},
		{"pause build", exitOK, `SetQueue build {"paused":true}`, "build  paused" + shownQueue},
		{"resume build", exitOK, `SetQueue build {"paused":false}`, "build  open" + shownQueue},
		{"unblock build repo-7", exitOK, `UnblockLane build "repo-7"`, "build  open" + shownQueue},
		{"drain build", exitOK, `SetQueue build {"draining":true}`, "build  draining" + shownQueue},
		{"drain build --off", exitOK, `SetQueue build {"draining":false}`, "build  open" + shownQueue},
		{"handoff photos --to field-07", exitOK, `HandOffQueue photos to "field-07"`, `
photos  paused
home       field-07  12D3KooW  generation 4
tasks      known only at its home  240 being handed over to another home
strategy   ordered
`},
		{"handoff photos -o jsonl", exitOK, `HandOffQueue photos to ""`, `{"name":"photos","home":"laptop","home_id":"12D3KooW","here":false,"generation":4,"strategy":"ordered","paused":true,"waiting":0,"owned":0,"going":240,"members":[]}` + "\n"},
		{"seize build --from laptop --accept-loss", exitOK, "SeizeQueue build from laptop",
			"build  open" + strings.Replace(strings.Replace(shownQueue, "generation 3", "generation 4", 1), "tasks ",
				"seized     from laptop, which is no longer the home: when it comes back it hands over its tasks\ntasks ", 1)},
		{"lss", exitUsage, "", ""},
		{"show", exitUsage, "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.args, func(t *testing.T) {
			n := apitest.New()
			code, out, errs := command(t, n, append([]string{"queue"}, strings.Fields(tt.args)...)...)
			if calls := strings.Join(n.Calls(), "; "); code != tt.code || calls != tt.call {
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
		n := apitest.New()
		code, out, errs := command(t, n, strings.Fields(args)...)
		if calls := n.Calls(); code != exitUsage || out != "" || len(calls) > 0 {
			t.Errorf("%s: %d, %q; the node was asked %q", args, code, out, calls)
		}
		for _, part := range parts {
			if !strings.Contains(errs, part) {
				t.Errorf("%s: %q is not in\n%s", args, part, errs)
			}
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
		{"--concurrency -1", "", "0 or more"},
		{"--kind llm", "", "KIND=ALL"},
		{"--kind =4", "", "KIND=ALL"},
		{"--kind llm=many", "", "a limit must be a number"},
		{"--kind llm=4/", "", "a limit must be a number"},
		{"--kind llm=-4", "", "a limit must be a number"},
		{"--kind llm=4 --kind llm=5", "", "twice"},
	}
	for _, tt := range tests {
		t.Run(tt.args, func(t *testing.T) {
			n := apitest.New()
			code, _, errs := command(t, n, append([]string{"queue", "set", "build"}, strings.Fields(tt.args)...)...)
			want, calls := exitOK, strings.TrimPrefix(strings.Join(n.Calls(), "; "), "Queue build; ")
			if tt.call == "" {
				want = exitUsage
			} else {
				tt.call = "SetQueue build " + tt.call
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

AGO  TASK                QUEUE  CLAIMED BY  EPOCH  RESULT   CAUSE
60s  01a1f84f-fb79-727b  build  烽火台      7.40   SUCCESS  epoch 7.41 is newer
`, apitest.ID)
	tests := []struct {
		args       string
		code       int
		call, want string
	}{
		{"lease ls", exitOK, `Leases queue="" owner="" role="" limit=50`, `
TASK                QUEUE   KIND   ROLE   PEER    STATE    EPOCH  ENDS IN
01a1f84f-fb79-727b  build   shell  home   laptop  RUNNING  7.41       12s
01a1f850-0000-7000  photos  llm    owner  laptop  STARTED  9.2       over
`},
		{"lease ls --queue build --owner laptop --role home --limit 7 -o jsonl", exitOK, `Leases queue="build" owner="laptop" role="home" limit=7`, "*"},
		{"lease ls --limit 0", exitUsage, "", ""},
		{"lease ls --role boss", exitUsage, "", ""},
		{"lease show 01A1F84F", exitOK, `Leases queue="" owner="" role="" limit=1000; LeaseConflicts`, shown},
		{"lease show 01a1f850 --queue photos", exitOK, `Leases queue="photos" owner="" role="" limit=1000; LeaseConflicts`, `
01a1f850-0000-7000-8000-000000000001  photos  llm
home      laptop  12D3KooW
state     STARTED
epoch     9.2
ends in   over
attempts  2, leases lost 1
cancel    requested
`},
		{"lease show 01a1f8", exitUsage, `Leases queue="" owner="" role="" limit=1000`, ""},
		{"lease show 02", exitNotFound, `Leases queue="" owner="" role="" limit=1000`, ""},
		{"lease show nothing", exitUsage, "", ""},
		{"lease conflicts", exitOK, "LeaseConflicts", `
AGO  TASK                QUEUE  CLAIMED BY  EPOCH  RESULT   CAUSE
60s  01a1f84f-fb79-727b  build  烽火台      7.40   SUCCESS  epoch 7.41 is newer
`},
		{"lease release 01a1f84f", exitUsage, "", ""},
		{"lease release 01a1f84f --yes", exitOK, "ReleaseLease 01a1f84f", `
01a1f84f  build  -
owner     laptop  12D3KooW
state     PENDING
epoch     7.41
attempts  0, leases lost 0
`},
		{"mesh timeline --task 01A1F84F", exitOK, `Timeline task="01a1f84f" queue=""`, strings.ReplaceAll(`
TIME          NODE    KIND     TASK                PEER    EPOCH  CAUSE
AT  here    granted  01a1f84f-fb79-727b  laptop  7.41   -
AT  laptop  started  01a1f84f-fb79-727b  here    7.41   -
`, "AT", apitest.Start.Local().Format(timelineClock))},
		{"mesh timeline", exitUsage, "", ""},
		{"mesh timeline --task 01a1f8 --queue build", exitUsage, "", ""},
		{"mesh recover", exitOK, `RecoverLeases "" dry=true`, recovered("would revoke")},
		{"mesh recover --owner laptop --yes", exitOK, `RecoverLeases "laptop" dry=false`, recovered("revoked")},
		{"mesh recover --yes --dry-run", exitOK, `RecoverLeases "" dry=true`, recovered("would revoke")},
		{"drain", exitOK, "Drain true", "this node is draining: 1 handlers running, 2 tasks and queues being handed over\n"},
		{"drain --off", exitOK, "Drain false", "this node accepts tasks again\n"},
		{"drain --off --wait", exitUsage, "", ""},
		{"drain -o yaml", exitOK, "Drain true", "on: true\nrunning: 1\ngoing: 2\n"},
	}
	for _, tt := range tests {
		t.Run(tt.args, func(t *testing.T) {
			n := apitest.New()
			code, out, errs := command(t, n, strings.Fields(tt.args)...)
			if calls := strings.Join(n.Calls(), "; "); code != tt.code || calls != tt.call {
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
	at := func(d time.Duration) string { return apitest.Start.Add(d).Local().Format(time.DateTime) }
	code, out, errs := command(t, apitest.New(), "mesh", "ownership-events")
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
		_, out, _ := command(t, apitest.New(), append(strings.Fields("mesh ownership-events -o jsonl"), strings.Fields(args)...)...)
		got := ""
		for line := range strings.Lines(out) {
			got += strings.TrimPrefix(line, `{"number":`)[:1]
		}
		if got != numbers {
			t.Errorf("%s: events %s, want %s", args, got, numbers)
		}
	}
	n := &history{apitest.New(), 2*ownershipPage + 1}
	if _, out, _ := command(t, n, "mesh", "ownership-events", "-o", "jsonl"); strings.Count(out, "\n") != n.events {
		t.Errorf("%d events of %d", strings.Count(out, "\n"), n.events)
	}
}

// history is a node with many ownership events.
type history struct {
	*apitest.Node
	events int
}

func (h *history) OwnershipEvents(_ context.Context, after uint64, limit int) []wire.OwnershipEvent {
	var out []wire.OwnershipEvent
	for i := after + 1; i <= uint64(h.events) && len(out) < limit; i++ {
		out = append(out, wire.OwnershipEvent{Number: i, Time: apitest.Start, Kind: "granted"})
	}
	return out
}

// deadHome is a node that knows a queue whose home is dead.
type deadHome struct{ *apitest.Node }

func (h deadHome) Queue(ctx context.Context, name string) (wire.Queue, error) {
	q, err := h.Node.Queue(ctx, name)
	q.Alarm = &wire.QueueAlarm{Queue: "photos", Home: "laptop", State: "DEAD", Since: ago(41 * time.Minute), Waiting: 4}
	return q, err
}

// TestAQueueWhoseHomeIsDeadSaysSoFirst checks the warning of queue show.
func TestAQueueWhoseHomeIsDeadSaysSoFirst(t *testing.T) {
	code, out, _ := command(t, deadHome{apitest.New()}, "queue", "show", "photos")
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
		"lease show":                      apitest.ID + "\tshell",
		"mesh ownership-events --queue":   "build\topen at here\n",
		"send":                            "laptop\tOFFLINE\nqueue:build\topen at here\nqueue:photos\tpaused at laptop\n",
		"queue set build --on-lost-lease": "continue\nstop\n",
		"queue show build":                ":4\n",
	} {
		socket := socketPath(t)
		stop := newServedNode(t, apitest.New(), socket)
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
	l, err := api.Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	h := api.New(apitest.New(), api.Config{}).Handler()
	older := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, name := range []string{"queues", "leases", "ownership", "drain"} {
			r.URL.Path = strings.Replace(r.URL.Path, "/v1/"+name, "/v1/no-"+name, 1)
		}
		h.ServeHTTP(w, r)
	})}
	ended := make(chan error, 1)
	go func() { ended <- older.Serve(l) }()
	for _, args := range []string{"queue ls", "queue show build", "queue pause build", "queue seize build --from laptop --accept-loss", "lease ls", "lease show 01", "lease conflicts", "mesh ownership-events", "drain"} {
		w, out, errs := newTestApp()
		w.clock = clock.NewManual(apitest.Start).Clock()
		code := execute(t.Context(), w, append(strings.Fields(args), "--socket", socket))
		if code != exitNotFound || out.Len() > 0 || !strings.Contains(errs.String(), "this node does not support shared queues") || strings.Contains(errs.String(), "list what exists") {
			t.Errorf("%s: %d\n%s%s", args, code, out, errs)
		}
	}
	n := apitest.New()
	n.Err = fmt.Errorf("queue build: %w", wire.ErrNotFound)
	if code, _, errs := command(t, n, "queue", "show", "build"); code != exitNotFound || strings.Contains(errs, "no shared queues") || !strings.Contains(errs, "queue ls") {
		t.Errorf("a missing queue: %d\n%s", code, errs)
	}
	if err := older.Close(); err != nil {
		t.Error(err)
	}
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		t.Errorf("serve: %v", err)
	}
}

// noAdmin is a node to which an admin connects after a number of requests.
type noAdmin struct {
	*apitest.Node
	refusals int
}

func (n *noAdmin) SetQueue(ctx context.Context, name string, s wire.QueueSettings) (wire.Queue, error) {
	q, err := n.Node.SetQueue(ctx, name, s)
	if n.refusals--; n.refusals >= 0 {
		return wire.Queue{}, fmt.Errorf("%w: an admin has to sign it", wire.ErrNoAdmin)
	}
	return q, err
}

// With --wait, creating a queue retries while no admin is connected, and prints once what it
// waits for; without --wait, it is refused.
func TestQueueSetWaitsForAnAdmin(t *testing.T) {
	n := &noAdmin{apitest.New(), 1}
	code, _, errs := command(t, n, "queue", "set", "build", "--home", "here", "--wait")
	if code != exitOK || n.refusals != -1 || strings.Count(errs, "waiting for a connected admin") != 1 {
		t.Errorf("%d, asked %q, %q", code, n.Calls(), errs)
	}
	n = &noAdmin{apitest.New(), 1}
	if code, _, errs := command(t, n, "queue", "set", "build", "--home", "here"); code == exitOK || n.refusals != 0 || !strings.Contains(errs, "an admin has to sign it") {
		t.Errorf("without --wait: %d, asked %q, %q", code, n.Calls(), errs)
	}
}
