package node

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/balefire/balefire/outbox"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// TestMetricsAreDocumented verifies that the table of docs/operations.md contains every
// metric of a node in a mesh that has a mailbox, that each of its rows exists, and that the
// names follow the rules of Prometheus.
func TestMetricsAreDocumented(t *testing.T) {
	doc, err := os.ReadFile("../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	described := map[string]bool{}
	for line := range strings.Lines(string(doc)) {
		if cells := strings.SplitN(line, "|", 4); len(cells) == 4 && strings.HasPrefix(line, "| `balefire_") {
			for _, name := range regexp.MustCompile("`(balefire_[a-z_]+)`").FindAllStringSubmatch(cells[1], -1) {
				described[name[1]] = true
			}
		}
	}
	synctest.Test(t, func(t *testing.T) {
		c := newClusterOf(t, newSimMesh(t, 3, 1, lanLink), time.Second) // with everything that a node has metrics for
		defer c.close()
		c.submitMany(0, 3)
		if _, err := c.nodes[0].node.Submit(t.Context(), wire.Request{Target: "queue:build", Kind: "build", Delay: wire.Duration(time.Hour)}); err != nil {
			t.Fatal(err)
		}
		if _, err := c.nodes[0].node.Mail.SetMailbox(t.Context(), "desk", wire.MailboxSettings{}); err != nil {
			t.Fatal(err)
		}
		c.nodes[0].sendMail(wire.Mail{To: "agent:desk", Body: []byte("x")})
		given, _ := c.nodes[0].leaseMail("agent:desk", "", 1, time.Minute)
		c.nodes[0].settleMail("agent:desk", "", wire.SettleMail{Nack: []wire.NackMail{{Lease: given[0].Lease}}})
		time.Sleep(time.Minute)
		families, err := c.nodes[0].node.Registry().Gather()
		if err != nil {
			t.Fatal(err)
		}
		there := map[string]bool{}
		for _, f := range families {
			name := f.GetName()
			there[name] = true
			if strings.HasPrefix(name, "balefire_") && !described[name] {
				t.Errorf("%s is not in the table", name)
			}
		}
		for name := range described {
			if !there[name] && !eventMetrics[name] && !strings.HasPrefix(name, "balefire_http_") { // package api tests those
				t.Errorf("%s is in the table but is not a metric of a node", name)
			}
		}
		problems, err := testutil.GatherAndLint(c.nodes[0].node.Registry())
		for _, p := range problems {
			if strings.HasPrefix(p.Metric, "balefire_") {
				t.Errorf("%s: %s", p.Metric, p.Text)
			}
		}
		if err != nil {
			t.Error(err)
		}
	})
}

// eventMetrics are the metrics that appear only once the counted event has happened.
var eventMetrics = map[string]bool{
	"balefire_transport_violations_total": true, "balefire_transport_gossip_repairs_total": true, "balefire_transport_lan_finds_total": true,
	"balefire_ownership_refused_total": true,
}

// The metrics of libp2p are included unless disabled.
func TestLibp2pMetricsCanBeOmitted(t *testing.T) {
	a, b := pair(t, func(name string, c *Config) { c.Net.Metrics = name != "a" })
	for n, want := range map[*testNode]bool{a: false, b: true} {
		families, err := n.Registry().Gather()
		if err != nil {
			t.Fatal(err)
		}
		others := 0
		for _, f := range families {
			if !strings.HasPrefix(f.GetName(), "balefire_") {
				others++
			}
		}
		if (others > 0) != want {
			t.Errorf("%d metrics of libp2p", others)
		}
	}
}

// Dead letters are counted by a gauge, also after a restart, and also one that was
// repeated as another task, until they are deleted.
func TestDeadLettersAreCounted(t *testing.T) {
	a, b := pair(t, nil)
	if err := b.Handlers.Add(t.Context(), shell(nil)); err != nil {
		t.Fatal(err)
	}
	expect := func(when string, want float64) {
		t.Helper()
		if got := gauge(t, a.Node, "balefire_dead_letters"); got != want {
			t.Errorf("%s: %v dead letters, want %v", when, got, want)
		}
	}
	works := filepath.Join(t.TempDir(), "fails") // until it exists
	run := func(state string) string {
		id := a.submit(t, wire.Request{Target: "b", Kind: "run", Args: []string{"sh", "-c", "test -e " + works + " || exit 65"}})
		a.waitEnd(t, id, state)
		return id
	}
	expect("before", 0)
	failed := run("FAILED")
	run("FAILED")
	expect("two failed", 2)
	if err := os.WriteFile(works, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	run("SUCCESS")
	expect("one succeeded", 2)
	a.halt()
	a = start(t, a.cfg)
	expect("after a restart", 2)
	again, err := a.Redriver.Retry(t.Context(), failed)
	if err != nil {
		t.Fatal(err)
	}
	a.waitEnd(t, again.ID, "SUCCESS")
	expect("one was repeated", 2)
	if n, err := a.outbox.PurgeDead(t.Context(), outbox.Query{Match: func(id proto.TaskID, _ *proto.Record) bool { return id.String() == failed }}, false); n != 1 || err != nil {
		t.Fatalf("%d deleted: %v", n, err)
	}
	expect("that one was deleted", 1)
	if n, err := a.outbox.PurgeDead(t.Context(), outbox.Query{}, false); n != 1 || err != nil {
		t.Fatalf("%d deleted: %v", n, err)
	}
	expect("both were deleted", 0)
	if got := gauge(t, b.Node, "balefire_dead_letters"); got != 0 {
		t.Errorf("%v dead letters at the node that ran them", got)
	}
}

// gauge returns the value of a metric of a node that has no labels.
func gauge(t *testing.T, n *Node, name string) float64 {
	t.Helper()
	families, err := n.Registry().Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	t.Fatalf("there is no metric %s", name)
	return 0
}
