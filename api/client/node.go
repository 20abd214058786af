package client

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/balefire/balefire/wire"
)

// Peers returns the nodes that the node knows.
func (c *Client) Peers(ctx context.Context) ([]wire.Peer, error) {
	p, err := get[wire.Page[wire.Peer]](ctx, c, "/v1/peers", nil)
	return p.Items, err
}

// Peer returns the peer with this name or id.
func (c *Client) Peer(ctx context.Context, name string) (wire.Peer, error) {
	return get[wire.Peer](ctx, c, "/v1/peers/"+escape(name), nil)
}

// Block makes the node refuse all connections of a peer.
func (c *Client) Block(ctx context.Context, name string) error {
	return c.exec(ctx, call{method: http.MethodPost, path: "/v1/peers/" + escape(name) + "/block"})
}

// Unblock admits a blocked peer again.
func (c *Client) Unblock(ctx context.Context, name string) error {
	return c.exec(ctx, call{method: http.MethodPost, path: "/v1/peers/" + escape(name) + "/unblock"})
}

// Forget removes a peer from the address book.
func (c *Client) Forget(ctx context.Context, name string) error {
	return c.exec(ctx, call{method: http.MethodDelete, path: "/v1/peers/" + escape(name)})
}

// Invite creates a ticket that admits one node, once.
func (c *Client) Invite(ctx context.Context, o wire.InviteOptions) (wire.Invitation, error) {
	return post[wire.Invitation](ctx, c, "/v1/invitations", o)
}

// Handlers returns the handlers of the node.
func (c *Client) Handlers(ctx context.Context) ([]wire.Handler, error) {
	p, err := get[wire.Page[wire.Handler]](ctx, c, "/v1/handlers", nil)
	return p.Items, err
}

// AddHandler adds or replaces the handler of a kind.
func (c *Client) AddHandler(ctx context.Context, s wire.HandlerSpec) error {
	if s.Allow == nil {
		s.Allow = []string{} // the node reports missing fields better than a schema
	}
	return c.tell(ctx, "/v1/handlers", s)
}

// RemoveHandler removes a handler.
func (c *Client) RemoveHandler(ctx context.Context, kind string) error {
	return c.exec(ctx, call{method: http.MethodDelete, path: "/v1/handlers/" + escape(kind)})
}

// Status returns the status of the node.
func (c *Client) Status(ctx context.Context) (wire.Status, error) {
	return get[wire.Status](ctx, c, "/v1/status", nil)
}

// Why explains what a task or a peer is waiting for.
func (c *Client) Why(ctx context.Context, subject string) (wire.Blocker, error) {
	return get[wire.Blocker](ctx, c, "/v1/why/"+escape(subject), nil)
}

// StoreStats returns the sizes of the store.
func (c *Client) StoreStats(ctx context.Context) (wire.StoreStats, error) {
	return get[wire.StoreStats](ctx, c, "/v1/store", nil)
}

// Compact reclaims the space of removed records. It may take minutes.
func (c *Client) Compact(ctx context.Context) error {
	return c.exec(ctx, call{method: http.MethodPost, path: "/v1/store/compact"})
}

// Snapshot copies the store to dir, an absolute path that must not exist. With a public key
// of store key the copy is a file that only the private key can decrypt.
func (c *Client) Snapshot(ctx context.Context, dir, toKey string) error {
	_, err := post[wire.Snapshot](ctx, c, "/v1/store/snapshot", wire.Snapshot{Dir: dir, ToKey: toKey})
	return err
}

// Healthy returns nil if the node's loops run and its last commit succeeded.
func (c *Client) Healthy(ctx context.Context) error {
	_, err := get[wire.Health](ctx, c, "/healthz", nil)
	return err
}

// Ready returns nil if the node accepts tasks.
func (c *Client) Ready(ctx context.Context) error {
	_, err := get[wire.Health](ctx, c, "/readyz", nil)
	return err
}

// Metrics returns the node's metrics in the text format of Prometheus.
func (c *Client) Metrics(ctx context.Context) ([]byte, error) { return c.read(ctx, "/metrics", nil) }

// OpenAPI returns the description of the node's routes.
func (c *Client) OpenAPI(ctx context.Context) ([]byte, error) {
	return c.read(ctx, "/openapi.json", nil)
}

// Profile returns a profile of the running node: heap, goroutine, allocs, block,
// mutex, or with a duration profile (of the CPU) and trace.
func (c *Client) Profile(ctx context.Context, name string, d time.Duration) ([]byte, error) {
	q := url.Values{}
	if d > 0 {
		q.Set("seconds", strconv.Itoa(max(1, int(d.Seconds()))))
	}
	return c.read(ctx, "/debug/pprof/"+escape(name), q)
}

// read returns the raw response of a route.
func (c *Client) read(ctx context.Context, path string, q url.Values) ([]byte, error) {
	res, err := c.do(ctx, call{method: http.MethodGet, path: path, query: q})
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	return io.ReadAll(res.Body)
}
