package api

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/balefire/balefire/node/nodetest"
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
	n := newNode(t, nil)
	c, stop := open(t, n, Config{Grace: time.Minute})
	const kept = 4096 // events
	nodetest.Happen(t, n, kept+12)
	res, lines := follow(t, c, "/v1/events?after=0")
	want := func(part string) {
		t.Helper()
		if !lines.Scan() || !strings.HasPrefix(lines.Text(), part) {
			t.Fatalf("line %q, %v; want %s…", lines.Text(), lines.Err(), part)
		}
	}
	want(`{"missed":12}`)
	want(`{"seq":13,`)
	if err := res.Body.Close(); err != nil {
		t.Fatal(err)
	}
	_, lines = follow(t, c, fmt.Sprintf("/v1/events?after=%d", kept+11))
	want(fmt.Sprintf(`{"seq":%d,`, kept+12))
	for seq := kept + 13; seq < kept+16; seq++ {
		nodetest.Happen(t, n, 1)
		want(fmt.Sprintf(`{"seq":%d,`, seq))
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	if lines.Scan() || lines.Err() != nil {
		t.Errorf("after the stop: %q, %v", lines.Text(), lines.Err())
	}
}

// TestAReaderThatLeavesIsForgotten checks that the server stops waiting for events
// when the client disconnects.
func TestAReaderThatLeavesIsForgotten(t *testing.T) {
	n := newNode(t, nil)
	c, _ := open(t, n, Config{})
	res, _ := follow(t, c, "/v1/events")
	nodetest.AwaitRequests(t, n, 1)
	if err := res.Body.Close(); err != nil {
		t.Fatal(err)
	}
	nodetest.AwaitRequests(t, n, 0)
}

// TestAskingForTheHeadOfEventsEnds checks that a HEAD request returns without a stream.
func TestAskingForTheHeadOfEventsEnds(t *testing.T) {
	res, body := ask(t, nodetest.Open(t, nil), http.MethodHead, "/v1/events", "", "", "Accept", ndjsonType)
	if res.StatusCode != http.StatusOK || body != "" {
		t.Errorf("%d %q", res.StatusCode, body)
	}
}

// TestAPageWaitsAndEndsWithTheNode checks that a caller that waits for a page gets the
// available events when the node stops, and does not delay the stop.
func TestAPageWaitsAndEndsWithTheNode(t *testing.T) {
	n := newNode(t, nil)
	nodetest.Happen(t, n, 3)
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
	nodetest.AwaitRequests(t, n, 1)
	if err := stop(); err != nil {
		t.Error(err)
	}
	if b := <-got; !strings.HasSuffix(b, `"items":[],"next":3}`+"\n") {
		t.Errorf("at the stop: %s", b)
	}
}

// TestInvalidEventQueries checks that invalid queries return problems in both forms.
func TestInvalidEventQueries(t *testing.T) {
	n := nodetest.Open(t, nil)
	for _, query := range []string{"after=-1", "after=x", "limit=0", "limit=1001", "wait=soon", "wait=-1s", "since=3"} {
		for _, accept := range []string{jsonType, ndjsonType} {
			if accept == ndjsonType && strings.HasPrefix(query, "wait") {
				continue // a stream always waits
			}
			res, body := ask(t, n, http.MethodGet, "/v1/events?"+query, "", "", "Accept", accept)
			if p := problemOfBody(t, res, body); p.Status != 422 && p.Status != 400 {
				t.Errorf("%s: %d", query, p.Status)
			}
		}
	}
}
