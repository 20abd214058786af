package main

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/balefire/balefire/api/client/clienttest"
	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/wire"
)

// socketPath returns a path for a socket. A path in the test's own folder may be too long.
func socketPath(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "bf")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "node.sock")
}

// command runs one command line against n and returns what it wrote.
func command(t *testing.T, n http.Handler, args ...string) (code int, out, errs string) {
	t.Helper()
	socket := socketPath(t)
	clienttest.Serve(t, n, socket)
	w, o, e := newTestApp()
	w.clock, w.environ = clock.NewManual(testStart).Clock(), []string{"BALEFIRE_SOCKET=" + socket}
	code = execute(t.Context(), w, args)
	return code, o.String(), e.String()
}

// same compares the output of a command with the expected output.
func same(t *testing.T, got, want string) {
	t.Helper()
	if want = strings.TrimLeft(want, "\n"); got != want {
		t.Errorf("output\n%s\nwant\n%s", got, want)
	}
}

func ago(d time.Duration) *time.Time { return new(testStart.Add(-d)) }

var testSummary = []wire.Peer{
	{Name: "ridge-02", ID: "12D3KooA", State: "CONNECTED", Liveness: "ALIVE", Path: "quic /ip4/192.0.2.1/udp/4001/quic-v1", Direct: true, RTT: 0.012, Loss: 0.001, LastSeen: ago(0), Roles: []string{"work"}},
	{Name: "field-07", ID: "12D3KooB", State: "CONNECTED", Liveness: "SUSPECT", Path: "quic /ip4/198.51.100.1/udp/4001/quic-v1/p2p/12D3KooR/p2p-circuit", Relay: "pop-sea", RTT: 0.412, Loss: 0.184, Queued: 240, LastSeen: ago(9 * time.Second), Alias: "烽火台"},
	{Name: "field-08", ID: "12D3KooC", State: "OFFLINE", Liveness: "ALIVE", LastSeen: ago(time.Hour)},
	{Name: "field-09", ID: "12D3KooD", State: "OFFLINE", Liveness: "DEAD", Queued: 12, LastSeen: ago(41 * time.Minute)},
	{Name: "field-10", ID: "12D3KooE", State: "OFFLINE", Liveness: "UNKNOWN"},
	{Name: "field-11", ID: "12D3KooF", State: "BLOCKED", Liveness: "ALIVE"},
}

// TestPeersAreOneTable checks the table of peers, and that peers without a verb lists them.
func TestPeersAreOneTable(t *testing.T) {
	n := newCannedNode()
	n.Answer("GET /v1/peers", page(testSummary...))
	want := `
PEER               STATE      PATH             RTT   LOSS  QUEUED  LAST SEEN
ridge-02           CONNECTED  quic direct     12ms   0.1%       0         0s
烽火台 (field-07)  SUSPECT    relay pop-sea  412ms  18.4%     240       9.0s
field-08           ALIVE      -                  -      -       0        60m
field-09           DEAD       -                  -      -      12        41m
field-10           OFFLINE    -                  -      -       0          -
field-11           BLOCKED    -                  -      -       0          -
`
	for _, args := range []string{"peers", "peers ls"} {
		code, out, errs := command(t, n, strings.Fields(args)...)
		if code != exitOK || errs != "" {
			t.Errorf("%s: %d, %q", args, code, errs)
		}
		same(t, out, want)
	}
	if code, out, _ := command(t, n, "peers", "lss"); code != exitUsage || out != "" {
		t.Errorf("an unknown verb: %d, %q", code, out)
	}
	if _, out, _ := command(t, n, "peers", "-o", "wide"); !strings.Contains(out, "p2p-circuit") || !strings.Contains(out, "MEMBER") {
		t.Errorf("wide:\n%s", out)
	}
	if _, out, _ := command(t, n, "peers", "-o", "jsonl"); strings.Count(out, "\n") != len(testSummary) || !strings.Contains(out, `"liveness":"SUSPECT"`) {
		t.Errorf("jsonl:\n%s", out)
	}
}

// TestStatusTellsWarningsFirstAndOnce checks the order of the output of status.
func TestStatusTellsWarningsFirstAndOnce(t *testing.T) {
	n, st := newCannedNode(), testStatus()
	st.Dead, st.Peers, st.Mail = 2, testSummary[:1], &wire.MailStatus{Outgoing: 7, Dead: 3, DeadIn: []string{"agent:ceo@here"}}
	st.Warnings = []wire.Note{{Code: wire.NoteDeadLetters, NoteArgs: wire.NoteArgs{Count: 2}}, {Code: wire.NoteDeadMail, NoteArgs: wire.NoteArgs{Count: 3, Names: st.Mail.DeadIn}}}
	n.Answer("GET /v1/status", st)
	n.Answer("GET /v1/peers", page(testSummary[:1]...))
	n.Answer("GET /v1/mesh", wire.MeshSummary{Members: 7, States: map[string]int{"ALIVE": 5, "SUSPECT": 1, "DEAD": 1}, Direct: 3, Relayed: 2, Paused: true, Risks: []wire.Note{{Code: wire.NoteDeadLetters, NoteArgs: wire.NoteArgs{Count: 2}}, {Code: wire.NoteNoQUIC}}})
	code, out, errs := command(t, n, "status")
	if code != exitOK || errs != "" {
		t.Errorf("%d, %q", code, errs)
	}
	same(t, out, `
here  12D3KooW  running 0s  dev  store nutsdb 0 B
! 2 dead letters (balefire-node dlq ls)
! 3 mails are dead letters in agent:ceo@here (balefire-node dlq ls --mailbox agent:ceo@here)
! there is no direct QUIC connection: UDP may be blocked, or all peers are on the LAN, where TCP is preferred
! this node is paused: it takes no new tasks from shared queues

members 7: 5 alive, 1 suspect, 1 dead   paths 3 direct, 2 relayed

PEER      STATE      PATH          RTT  LOSS  QUEUED  LAST SEEN
ridge-02  CONNECTED  quic direct  12ms  0.1%       0         0s

TASKS           PENDING  ACCEPTED  RUNNING  RETRYING  OTHER
sent from here        3         0        0         0      0
accepted              0         0        0         0      0
0 of 0 slots busy, 0 results to deliver
mail for other nodes: 7 waiting (balefire-node mail outgoing)
`)
	if _, out, _ = command(t, n, "status", "-o", "json"); !strings.Contains(out, `"name": "here"`) || !strings.Contains(out, `"outgoing": 7`) || !strings.Contains(out, `"paused": true`) {
		t.Errorf("json:\n%s", out)
	}
}

// TestPing checks the output for each answer, and the exit codes. The timeout leaves enough
// time for one answer on a busy machine.
func TestPing(t *testing.T) {
	relayed := wire.Pong{Peer: "laptop", RTT: 0.042, Path: "quic /p2p-circuit", Relay: "r1"}
	direct := wire.Pong{Peer: "laptop", RTT: 0.008, Path: "quic /ip4/1.2.3.4/udp/4001/quic-v1", Direct: true}
	const viaRelay, straight = "pong from laptop via relay r1  rtt 42ms\n", "pong from laptop direct quic 1.2.3.4:4001  rtt 8.0ms\n"
	tests := []struct {
		name, args string
		pongs      []wire.Pong
		err        error
		code       int
		out, errs  string // errs: a part
	}{
		{"four answers", "", []wire.Pong{relayed, direct}, nil, exitOK, viaRelay + strings.Repeat(straight, 3), ""},
		{"as many as asked for", "-c 2", []wire.Pong{relayed}, nil, exitOK, viaRelay + viaRelay, ""},
		{"one is lost", "-c 2", []wire.Pong{{}, relayed}, nil, exitOK, viaRelay, "no pong from laptop: "},
		{"all are lost", "-c 2", []wire.Pong{{}}, nil, exitTimeout, "", "balefire-node path laptop"},
		{"until it is direct", "--until-direct", []wire.Pong{relayed, relayed, direct}, nil, exitOK, viaRelay + viaRelay + straight, "direct path after "},
		{"never direct", "--until-direct -c 3", []wire.Pong{relayed}, nil, exitTimeout, strings.Repeat(viaRelay, 3), "no direct path to laptop in "},
		{"never direct in time", "--until-direct --interval 1h --timeout 2s", []wire.Pong{relayed}, nil, exitTimeout, viaRelay, "through r1; see why: balefire-node path laptop"},
		{"no such peer", "", nil, wire.ErrNotFound, exitNotFound, "", "not found"},
		{"a count that makes no sense", "-c -1", nil, nil, exitUsage, "", "from 0 to 2147483647"},
		{"json", "-c 2 -o jsonl", []wire.Pong{relayed}, nil, exitOK, strings.Repeat(`{"peer":"laptop","rtt_seconds":0.042,"path":"quic /p2p-circuit","direct":false,"relay":"r1"}`+"\n", 2), ""},
		{"one document of no such peer", "-o json", nil, wire.ErrNotFound, exitNotFound, "", "not found"},
		{"one document", "-c 1 -o yaml", []wire.Pong{direct}, nil, exitOK, "items:\n  - peer: laptop\n    rtt_seconds: 0.008\n    path: quic /ip4/1.2.3.4/udp/4001/quic-v1\n    direct: true\n", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			n, pongs := newCannedNode(), tt.pongs
			n.Fail(tt.err)
			n.Answer("POST /v1/peers/{name}/ping", func(*http.Request) any { // the last one again and again
				p := pongs[0]
				pongs = pongs[min(1, len(pongs)-1):]
				if p.Peer == "" {
					return context.DeadlineExceeded
				}
				return p
			})
			code, out, errs := command(t, n, append([]string{"ping", "laptop", "--interval", "0s"}, strings.Fields(tt.args)...)...)
			if code != tt.code || out != tt.out || !strings.Contains(errs, tt.errs) {
				t.Errorf("%d, want %d\n%s\nwant\n%s\n%s", code, tt.code, out, tt.out, errs)
			}
		})
	}
}

func TestHostPort(t *testing.T) {
	for in, want := range map[string]string{
		"quic /ip4/1.2.3.4/udp/4001/quic-v1":             "quic 1.2.3.4:4001",
		"tcp /ip6/2001:db8::1/tcp/4001":                  "tcp [2001:db8::1]:4001",
		"quic /ip4/1.2.3.4/udp/1/quic-v1/p2p/Q/p2p-circ": "quic /ip4/1.2.3.4/udp/1/quic-v1/p2p/Q/p2p-circ",
		"tcp /dns4/example.org/tcp/4001":                 "tcp /dns4/example.org/tcp/4001",
		"tcp":                                            "tcp", "": "",
	} {
		if got := hostPort(in); got != want {
			t.Errorf("hostPort(%q) = %q, want %q", in, got, want)
		}
	}
}

// TestPathExplains checks the report about the paths to a peer.
func TestPathExplains(t *testing.T) {
	code, out, errs := command(t, newCannedNode(), "path", "laptop")
	if code != exitOK || errs != "" {
		t.Errorf("%d, %q", code, errs)
	}
	same(t, out, `
laptop  12D3KooW  connected
because  a direct path is preferred: the newest live one

   WAY          STATE        RTT  LOSS       RATE  SCORE  SINCE  ADDRESS
*  quic direct  connected  8.0ms  0.4%  3.0 MiB/s   0.91    60s  /ip4/192.0.2.1/udp/4001/quic-v1
   relay r1     connected   42ms  0.0%          -    0.5      -  /ip4/198.51.100.1/udp/4001/quic-v1/p2p-circuit

AGO  HOLE PUNCH                   TOOK
60s  direct: by a plain address  412ms
`)
	if _, out, _ = command(t, newCannedNode(), "path", "laptop", "-o", "wide"); !strings.Contains(out, "bandwidth 0.5, latency 0.45, loss -0.04") {
		t.Errorf("wide:\n%s", out)
	}
}

// TestNetcheckBeginsWithWhatItMeans checks that the report about the network starts with its
// conclusion.
func TestNetcheckBeginsWithWhatItMeans(t *testing.T) {
	code, out, errs := command(t, newCannedNode(), "netcheck")
	if code != exitOK || errs != "" {
		t.Errorf("%d, %q", code, errs)
	}
	same(t, out, `
! there is no direct QUIC connection: UDP may be blocked, or all peers are on the LAN, where TCP is preferred

QUIC (UDP)    works
TCP           works
IPv6          no
NAT           cone: hole punching is likely to succeed
seen at       /ip4/203.0.113.4/udp/4001/quic-v1  by r1, laptop
relay         r1  reserved for 60m  score 0.9
relays        1 reservations, 2 circuits, 3.0 MiB carried for others
mDNS          on  1 on the LAN that are not members (balefire-node peers pending)
DHT           4 members in the table
gossip        4 members on the topic
`)
}

// TestMesh checks the output of the mesh commands.
func TestMesh(t *testing.T) {
	tests := []struct {
		args       string
		code       int
		call, want string
	}{
		{"members", exitOK, "GET /v1/members", `
MEMBER            STATE    FOR  WORK  PATH     PHASE    LOAD  RELAYS  ACCUSERS
here (this node)  ALIVE      -  yes   -        running     -  -              -
laptop            SUSPECT  60m  no    relayed  -         1/4  r1             2
`},
		{"members laptop", exitOK, "GET /v1/members/laptop", "laptop  ALIVE  12D3KooW\nwork         no\npath         direct\npriority     0\nboot         0, incarnation 0\n"},
		{"summary", exitOK, "GET /v1/mesh", `
! no other member is a relay (give a reachable one the role relay, so that nodes behind NATs can be reached)
mesh      ab
members   5: 3 alive, 1 suspect, 1 dead
paths     2 direct, 1 relayed
digest    c0ffee  (members with the same digest agree: balefire-node mesh converge)
health    0: good
since start: 0 false suspicions refuted, 0 changes delayed by dwell times
`},
		{"prune", exitOK, `POST /v1/mesh/prune {"dry_run":true}`, "would remove 1 members\n  old\n"},
		{"prune --older-than 2d --limit 3 --yes", exitOK, `POST /v1/mesh/prune {"older_than":"2d","limit":3}`, "removed 1 members\n  old\n"},
		{"prune --yes --dry-run", exitOK, `POST /v1/mesh/prune {"dry_run":true}`, "would remove 1 members\n  old\n"},
		{"prune --limit -1", exitUsage, "", ""},
		{"prune --older-than soon", exitUsage, "", ""},
		{"converge", exitError, "POST /v1/mesh/converge", "1 of 2 agree, after 41ms\n! field: no answer within 5s\n"},
	}
	for _, tt := range tests {
		t.Run(tt.args, func(t *testing.T) {
			n := newCannedNode()
			code, out, _ := command(t, n, append([]string{"mesh"}, strings.Fields(tt.args)...)...)
			if calls := strings.Join(n.Requests(), "; "); code != tt.code || calls != tt.call {
				t.Errorf("%d, want %d; the node was asked %q, want %q", code, tt.code, calls, tt.call)
			}
			same(t, out, tt.want)
		})
	}
}

// TestMembership checks the commands that admit, rename and revoke members, and that
// irreversible ones require confirmation.
func TestMembership(t *testing.T) {
	tests := []struct {
		args  string
		code  int
		call  string
		wrote string // a part
	}{
		{"peers pending", exitOK, "GET /v1/join-requests", "K7QM-2ZPA-77WD  field-10    60s     0s"},
		{"peers accept K7QM-2ZPA-77WD", exitOK, "POST /v1/join-requests/K7QM-2ZPA-77WD/accept {}", "field-10 is a member now, with the roles work"},
		{"peers accept field-10 --name boat --roles work,send", exitOK, `POST /v1/join-requests/field-10/accept {"name":"boat","roles":["work","send"]}`, "boat is a member"},
		{"peers name field-07 boat", exitOK, `POST /v1/peers/field-07/name {"name":"boat"}`, "field-07 is called boat here"},
		{"peers revoke laptop", exitUsage, "", "--reason is missing"},
		{"peers revoke laptop --reason stolen", exitUsage, "", "add --yes to confirm"},
		{"peers revoke laptop --reason stolen --yes", exitOK, `POST /v1/peers/laptop/revoke {"reason":"stolen"}`, "laptop is no longer a member"},
		{"__complete peers accept ", exitOK, "GET /v1/join-requests", "K7QM-2ZPA-77WD\tfield-10"},
		{"__complete peers revoke ", exitOK, "GET /v1/peers", "laptop\tOFFLINE"},
		{"__complete ping ", exitOK, "GET /v1/peers", "laptop\tOFFLINE"},
		{"__complete path ", exitOK, "GET /v1/peers", "laptop\tOFFLINE"},
	}
	for _, tt := range tests {
		t.Run(tt.args, func(t *testing.T) {
			n := newCannedNode()
			args := strings.Fields(tt.args)
			if args[0] == "__complete" {
				args = append(args, "")
			}
			code, out, errs := command(t, n, args...)
			if calls := strings.Join(n.Requests(), "; "); code != tt.code || calls != tt.call {
				t.Errorf("%d, want %d; the node was asked %q, want %q", code, tt.code, calls, tt.call)
			}
			if all := out + errs; !strings.Contains(all, tt.wrote) {
				t.Errorf("output\n%s\nwant\n%s", all, tt.wrote)
			}
		})
	}
	n := newCannedNode()
	if code, _, errs := command(t, n, "peers", "name", "boat", ""); code != exitOK || strings.Join(n.Requests(), "") != `POST /v1/peers/boat/name {"name":""}` || !strings.Contains(errs, "its own name again") {
		t.Errorf("%d, %s", code, errs)
	}
}

// TestEventsOfThePast checks how past events, and gaps between them, are shown.
func TestEventsOfThePast(t *testing.T) {
	past := func() *clienttest.Node {
		n, pages := newCannedNode(), make(chan wire.EventPage, 1)
		n.Answer("GET /v1/events", nextEvents(pages))
		left := testEvent(9)
		left.Kind, left.Peer, left.Fields = "path.changed", "烽火台", map[string]string{"path": "relay\nr1", "detail": "quic"}
		pages <- wire.EventPage{Boot: 7, Missed: 3, Items: []wire.NodeEvent{testEvent(8), left}, Next: 9}
		return n
	}
	local := testStart.Local().Format("15:04:05.000")
	code, out, errs := command(t, past(), "events", "--after", "4", "-o", "wide")
	if code != exitOK || errs != "" {
		t.Errorf("%d, %q", code, errs)
	}
	same(t, out, fmt.Sprintf(`
   SEQ  TIME          KIND                  PEER          WHAT
… 3 events were dropped here
     8  %s  peer.connected        laptop        connected: quic direct  path=quic direct
     9  %s  path.changed          烽火台        quic → relay r1  detail=quic  path=relay r1
`, local, local))
	if _, out, _ = command(t, past(), "events", "--kind", "path.", "-o", "jsonl"); !strings.HasPrefix(out, "{\"missed\":3}\n{\"seq\":9,") || strings.Count(out, "\n") != 2 {
		t.Errorf("jsonl:\n%s", out)
	}
	if _, out, _ = command(t, past(), "events", "--kind", "peer.", "-o", "yaml"); !strings.HasPrefix(out, "boot: 7\nitems:\n  - seq: 8\n") || !strings.HasSuffix(out, "missed: 3\nnext: 9\n") {
		t.Errorf("yaml:\n%s", out)
	}
	if code, _, errs = command(t, newCannedNode(), "events", "--follow", "-o", "json"); code != exitUsage || !strings.Contains(errs, "use table or jsonl") {
		t.Errorf("following into one document: %d, %s", code, errs)
	}
	if code, _, _ = command(t, past(), "events", "--follow", "--timeout", "300ms"); code != exitTimeout {
		t.Errorf("following until the timeout: exit code %d", code)
	}
}

// TestFollowingSurvivesARestart checks that a follower sees all events after a restart of
// the node, and is told that the numbers start at 1 again.
func TestFollowingSurvivesARestart(t *testing.T) {
	socket := socketPath(t)
	first, second := newCannedNode(), newCannedNode()
	firstPages, secondPages := make(chan wire.EventPage), make(chan wire.EventPage)
	first.Answer("GET /v1/events", nextEvents(firstPages))
	second.Answer("GET /v1/events", nextEvents(secondPages))
	stop := clienttest.Serve(t, first, socket)
	w, _, _ := newTestApp()
	out, errs := make(lineWriter, 100), make(lineWriter, 100)
	w.out, w.err = out, errs
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan int, 1)
	go func() { ended <- execute(ctx, w, []string{"events", "-f", "-o", "jsonl", "--socket", socket}) }()
	firstPages <- wire.EventPage{Boot: testBoot, Items: []wire.NodeEvent{testEvent(5)}, Next: 5}
	out.want(t, `{"seq":5,`)
	stop()
	errs.want(t, "the node is not running")
	clienttest.Serve(t, second, socket)
	secondPages <- wire.EventPage{Boot: testBoot + 1, Items: []wire.NodeEvent{testEvent(6)}, Next: 6} // requested after 5
	errs.want(t, "numbers start at 1 again")
	secondPages <- wire.EventPage{Boot: testBoot + 1, Items: []wire.NodeEvent{testEvent(1)}, Next: 1}
	out.want(t, `{"seq":1,`)
	cancel()
	if code := <-ended; code != exitInterrupted {
		t.Errorf("exit code %d", code)
	}
	if calls := strings.Join(second.Requests(), "; "); !strings.HasPrefix(calls, "GET /v1/events?after=5&limit=1000&wait=30s; GET /v1/events?after=0&") {
		t.Errorf("the second start was asked %q", calls)
	}
}

// A lineWriter passes on what is written to it.
type lineWriter chan string

func (l lineWriter) Write(b []byte) (int, error) {
	l <- string(bytes.Clone(b))
	return len(b), nil
}

// want waits for the next write.
func (l lineWriter) want(t *testing.T, part string) {
	t.Helper()
	select {
	case got := <-l:
		if !strings.Contains(got, part) {
			t.Errorf("output %q, want %q", got, part)
		}
	case <-time.After(2 * time.Minute):
		t.Fatalf("no output %q", part)
	}
}

// The table of peers tells how far the clock of a peer is off.
func TestPeersTellTheirClocks(t *testing.T) {
	for seconds, want := range map[float64]string{0: "", 600: " (clock +10m0s)", -864000: " (clock -240h0m0s)"} {
		if got := clockMark(wire.Peer{Clock: seconds}); got != want {
			t.Errorf("%v s: %q, want %q", seconds, got, want)
		}
	}
}
