package node

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

// TestMetricsAreDocumented verifies that the table of docs/operations.md contains every
// metric of a node in a mesh, that each row of the network's part exists, and that the
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
		c.submitMany(1, 3)
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
			_, network, _ := strings.Cut(name, "balefire_transport_")
			_, members, _ := strings.Cut(name, "balefire_gossip_")
			if network+members != "" && !there[name] && !eventMetrics[name] {
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
}

// The metrics of libp2p are included unless disabled.
func TestLibp2pMetricsCanBeOmitted(t *testing.T) {
	a, b := pair(t, func(name string, c *Config) { c.Net.OwnMetrics = name == "a" })
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
