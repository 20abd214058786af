package api

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/balefire/balefire/api/apitest"
	"github.com/balefire/balefire/wire"
)

// follow opens the stream of events and returns its lines.
func follow(t *testing.T, c *http.Client, target string) (*http.Response, *bufio.Scanner) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://node"+target, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Accept", "application/x-ndjson;q=1, application/json")
	res, err := c.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = res.Body.Close() })
	if res.StatusCode != http.StatusOK || res.Header.Get("Content-Type") != ndjsonType {
		t.Fatalf("%d %s", res.StatusCode, res.Header.Get("Content-Type"))
	}
	return res, bufio.NewScanner(res.Body)
}

// TestEventsGoOnUntilTheNodeStops checks that the stream starts before the first
// event, carries each event and each gap as it occurs, and is closed cleanly at a
// stop, which it does not delay.
func TestEventsGoOnUntilTheNodeStops(t *testing.T) {
	n := apitest.New()
	n.Happens = make(chan wire.EventPage)
	c, stop := open(t, n, Config{Grace: time.Minute})
	_, lines := follow(t, c, "/v1/events?after=3")
	n.Happens <- wire.EventPage{Items: []wire.NodeEvent{apitest.Happened(4), apitest.Happened(5)}, Next: 5}
	n.Happens <- wire.EventPage{Missed: 12, Items: []wire.NodeEvent{apitest.Happened(18)}, Next: 18}
	for _, want := range []string{`{"seq":4,`, `{"seq":5,`, `{"missed":12}`, `{"seq":18,`} {
		if !lines.Scan() || !strings.HasPrefix(lines.Text(), want) {
			t.Fatalf("line %q, %v; want %s…", lines.Text(), lines.Err(), want)
		}
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	if lines.Scan() || lines.Err() != nil {
		t.Errorf("after the stop: %q, %v", lines.Text(), lines.Err())
	}
	calls := strings.Join(n.Calls(), "; ")
	if !strings.HasPrefix(calls, "Events after=3 ") || !strings.Contains(calls, "after=5 ") || !strings.Contains(calls, "after=18 ") {
		t.Errorf("the node was asked %q", calls)
	}
}

// TestAReaderThatLeavesIsForgotten checks that the server stops waiting for events
// when the client disconnects.
func TestAReaderThatLeavesIsForgotten(t *testing.T) {
	n := waiting{apitest.New(), make(chan struct{}), make(chan struct{})}
	c, _ := open(t, n, Config{})
	res, _ := follow(t, c, "/v1/events")
	<-n.asked
	if err := res.Body.Close(); err != nil {
		t.Fatal(err)
	}
	<-n.left
}

// A waiting node reports once when a caller starts to wait for events, and once when the
// caller stops.
type waiting struct {
	*apitest.Node
	asked, left chan struct{}
}

func (w waiting) Events(ctx context.Context, after uint64, _ int, _ time.Duration) wire.EventPage {
	close(w.asked)
	<-ctx.Done()
	close(w.left)
	return wire.EventPage{Items: []wire.NodeEvent{}, Next: after}
}

// TestAskingForTheHeadOfEventsEnds checks that a HEAD request returns without a stream.
func TestAskingForTheHeadOfEventsEnds(t *testing.T) {
	n := apitest.New()
	n.Happens = make(chan wire.EventPage)
	res, body := ask(t, n, http.MethodHead, "/v1/events", "", "", "Accept", ndjsonType)
	if res.StatusCode != http.StatusOK || body != "" || len(n.Calls()) > 0 {
		t.Errorf("%d %q", res.StatusCode, body)
	}
}

// TestAPageWaitsAndEndsWithTheNode checks that a caller that waits for a page gets the
// available events when the node stops, and does not delay the stop.
func TestAPageWaitsAndEndsWithTheNode(t *testing.T) {
	n := waiting{apitest.New(), make(chan struct{}), make(chan struct{})}
	c, stop := open(t, n, Config{Grace: time.Minute})
	got := make(chan string, 1)
	go func() {
		res, err := c.Get("http://node/v1/events?after=3&wait=10m")
		if err != nil {
			got <- err.Error()
			return
		}
		b, _ := io.ReadAll(res.Body)
		_ = res.Body.Close()
		got <- string(b)
	}()
	<-n.asked
	if err := stop(); err != nil {
		t.Error(err)
	}
	if b := <-got; b != `{"boot":0,"items":[],"next":3}`+"\n" {
		t.Errorf("at the stop: %s", b)
	}
}

// TestInvalidEventQueries checks that invalid queries return problems in both forms.
func TestInvalidEventQueries(t *testing.T) {
	for _, query := range []string{"after=-1", "after=x", "limit=0", "limit=1001", "wait=soon", "wait=-1s", "since=3"} {
		for _, accept := range []string{jsonType, ndjsonType} {
			if accept == ndjsonType && strings.HasPrefix(query, "wait") {
				continue // a stream always waits
			}
			n := apitest.New()
			res, body := ask(t, n, http.MethodGet, "/v1/events?"+query, "", "", "Accept", accept)
			if p := problemOfBody(t, res, body); p.Status != 422 && p.Status != 400 {
				t.Errorf("%s: %d", query, p.Status)
			}
			if calls := n.Calls(); len(calls) > 0 {
				t.Errorf("%s reached the node: %q", query, calls)
			}
		}
	}
}
