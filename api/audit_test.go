package api

import (
	"path/filepath"
	"testing"

	"github.com/balefire/balefire/audit"
	"github.com/balefire/balefire/node"
)

// TestProgressOfADrainIsNotAudited checks that the audit log has who drained the node and who ended
// that, however often the progress was asked for.
func TestProgressOfADrainIsNotAudited(t *testing.T) {
	var dir string
	n := newNode(t, func(cfg *node.Config) { dir = filepath.Join(cfg.Dir, audit.DirName) })
	before, err := audit.Read(dir, audit.Query{})
	if err != nil {
		t.Fatal(err)
	}
	for _, on := range []string{"true", "true", "true", "false", "false"} {
		if res, body := ask(t, n, "POST", "/v1/drain", jsonType, `{"on":`+on+`}`); res.StatusCode != 200 {
			t.Fatalf("%d, %s", res.StatusCode, body)
		}
	}
	after, err := audit.Read(dir, audit.Query{})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range after[len(before):] {
		if r.Actor == "" || r.Actor == audit.ActorSystem {
			t.Errorf("%+v has no caller", r)
		}
		got = append(got, r.Action+" "+r.Detail["subject"])
	}
	if len(got) != 2 || got[0] != "node.drain true" || got[1] != "node.drain false" {
		t.Errorf("the audit log has %q", got)
	}
}
