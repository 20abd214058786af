// Package client is a client of a node's socket, with the types of the Go API: it has a
// method for each route.
//
//	client.New("/run/balefire/node.sock").Submit(ctx, wire.Request{…})
//
// It promises that an error of the node arrives as what it is: a [*wire.Problem]
// with code and fix, for which errors.Is(err, wire.ErrNotFound) and the like
// hold; and that no node behind the socket is [ErrNodeDown] and nothing else.
package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"mime"
	"net"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"syscall"
	"time"

	"github.com/balefire/balefire/wire"
)

// ErrNodeDown means that no node listens on the socket.
var ErrNodeDown = errors.New("no node is running")

// A Client is a client of one node. It is safe for concurrent use.
type Client struct {
	socket    string
	http      *http.Client
	producers producers
}

// New returns a client for the socket at path. It connects on first use.
func New(socket string) *Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", socket)
	}
	return &Client{socket: socket, http: &http.Client{
		Transport: &http.Transport{
			DialContext: dial, MaxIdleConns: 128, MaxIdleConnsPerHost: 128, DisableCompression: true,
			ExpectContinueTimeout: 5 * time.Second,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// A call is one request.
type call struct {
	method, path string
	query        url.Values
	body         io.Reader
	contentType  string
	accept       string // the accepted form of the response, if there are several
	expect       bool   // wait for 100 Continue before sending the body
	idempotent   bool   // may be repeated if an old connection turns out to be closed
}

// query returns the parameters that have a value, and a limit that is not 0.
func query(limit int, texts map[string]string) url.Values {
	q := url.Values{}
	for name, text := range texts {
		if text != "" {
			q.Set(name, text)
		}
	}
	if limit != 0 {
		q.Set("limit", strconv.Itoa(limit))
	}
	return q
}

// timeText returns a time as a parameter; empty: there is none.
func timeText(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.Format(time.RFC3339Nano)
}

// escape makes one path segment of user input.
func escape(s string) string { return url.PathEscape(s) }

// do sends r and returns a response that is not a problem, with its body open.
func (c *Client) do(ctx context.Context, r call) (*http.Response, error) {
	if path.Clean(r.path) != r.path { // an empty name, or one of dots, would select another route
		return nil, fmt.Errorf("%w: a name or id is missing in %s", wire.ErrInvalid, r.path)
	}
	u := "http://node" + r.path
	if len(r.query) > 0 {
		u += "?" + r.query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, r.method, u, r.body)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", wire.ErrInvalid, err)
	}
	if r.contentType != "" {
		req.Header.Set("Content-Type", r.contentType)
	}
	if r.accept != "" {
		req.Header.Set("Accept", r.accept)
	}
	if r.expect {
		req.Header.Set("Expect", "100-continue")
	}
	if r.idempotent {
		req.Header["Idempotency-Key"] = nil // for net/http; it is not sent
	}
	res, err := c.http.Do(req)
	if err != nil {
		return nil, c.dialError(ctx, err)
	}
	if res.StatusCode >= 300 {
		defer res.Body.Close()
		return nil, decodeProblem(res)
	}
	return res, nil
}

// dialError explains why there was no response.
func (c *Client) dialError(ctx context.Context, err error) error {
	if ue, ok := errors.AsType[*url.Error](err); ok {
		err = ue.Err
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("%w at %s: start one with balefire-node run", ErrNodeDown, c.socket)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w: permission denied for %s: join its group, or use the account of the node", wire.ErrDenied, c.socket)
	}
	return fmt.Errorf("request to the node at %s: %w", c.socket, err)
}

// decodeProblem decodes the problem of a response.
func decodeProblem(res *http.Response) error {
	b, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	t, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type"))
	p := new(wire.Problem)
	if err == nil && t == "application/problem+json" && json.Unmarshal(b, p) == nil && p.Status != 0 {
		return p
	}
	return &wire.Problem{
		Status: res.StatusCode, Code: wire.CodeInternal, Title: res.Status,
		Detail: fmt.Sprintf("the node answered %s: %.200q", res.Status, b),
		Fix:    "check that a balefire node is listening there",
	}
}

// fetch sends r and decodes the response into a T.
func fetch[T any](ctx context.Context, c *Client, r call) (T, error) {
	var v T
	res, err := c.do(ctx, r)
	if err != nil {
		return v, err
	}
	defer res.Body.Close()
	if err := json.NewDecoder(res.Body).Decode(&v); err != nil {
		if ctx.Err() != nil {
			return v, ctx.Err()
		}
		return v, fmt.Errorf("read the answer to %s %s: %w", r.method, r.path, err)
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, 4<<10)) // so that the connection is reused
	return v, nil
}

// exec sends r and expects no content.
func (c *Client) exec(ctx context.Context, r call) error {
	res, err := c.do(ctx, r)
	if err != nil {
		return err
	}
	return res.Body.Close()
}

// tell sends v as JSON and expects no content.
func (c *Client) tell(ctx context.Context, path string, v any) error {
	r, err := document(http.MethodPost, path, v)
	if err != nil {
		return err
	}
	return c.exec(ctx, r)
}

func get[T any](ctx context.Context, c *Client, path string, q url.Values) (T, error) {
	return fetch[T](ctx, c, call{method: http.MethodGet, path: path, query: q})
}

func post[T any](ctx context.Context, c *Client, path string, v any) (T, error) {
	return send[T](ctx, c, http.MethodPost, path, v)
}

func put[T any](ctx context.Context, c *Client, path string, v any) (T, error) {
	return send[T](ctx, c, http.MethodPut, path, v)
}

// send sends v as JSON.
func send[T any](ctx context.Context, c *Client, method, path string, v any) (T, error) {
	r, err := document(method, path, v)
	if err != nil {
		var zero T
		return zero, err
	}
	return fetch[T](ctx, c, r)
}

func document(method, path string, v any) (call, error) {
	if v == nil {
		return call{method: method, path: path}, nil
	}
	b, err := json.Marshal(v)
	if err != nil {
		return call{}, fmt.Errorf("%w: %w", wire.ErrInvalid, err)
	}
	return call{method: method, path: path, body: bytes.NewReader(b), contentType: "application/json"}, nil
}
