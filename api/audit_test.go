package api

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/balefire/balefire/audit"
	"github.com/balefire/balefire/node"
)

// TestProgressOfADrainIsNotAudited checks that the audit log has a start and an end of what drained
// the node and of what ended that (I19), however often the progress was asked for.
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
		got = append(got, strings.Join([]string{r.Action, r.Detail["subject"], r.Detail["step"], r.Detail["did"], r.Detail["result"]}, " "))
	}
	want := []string{"node.drain /v1/drain start  ", "node.drain /v1/drain end true ok", "node.drain /v1/drain start  ", "node.drain /v1/drain end false ok"}
	if !slices.Equal(got, want) {
		t.Errorf("the audit log has %q, want %q", got, want)
	}
}
