package client

import (
	"context"
	"net/url"
	"strconv"
	"time"

	"github.com/balefire/balefire/wire"
)

// Members returns the members of the mesh as the node sees them.
func (c *Client) Members(ctx context.Context) ([]wire.Member, error) {
	p, err := get[wire.Page[wire.Member]](ctx, c, "/v1/members", nil)
	return p.Items, err
}

// Member returns the member with this name or id.
func (c *Client) Member(ctx context.Context, ref string) (wire.Member, error) {
	return get[wire.Member](ctx, c, "/v1/members/"+escape(ref), nil)
}

// MeshSummary returns a summary of the mesh.
func (c *Client) MeshSummary(ctx context.Context) (wire.MeshSummary, error) {
	return get[wire.MeshSummary](ctx, c, "/v1/mesh", nil)
}

// PruneMembers removes the entries of members that have been dead for at least age, or
// lists them. An age or limit of 0 is the node's own default.
func (c *Client) PruneMembers(ctx context.Context, age time.Duration, limit int, dryRun bool) (wire.Pruned, error) {
	return post[wire.Pruned](ctx, c, "/v1/mesh/prune", wire.Prune{OlderThan: wire.Duration(age), Limit: limit, DryRun: dryRun})
}

// Converge has the node synchronize with every connected member now.
func (c *Client) Converge(ctx context.Context) (wire.Convergence, error) {
	return post[wire.Convergence](ctx, c, "/v1/mesh/converge", nil)
}

// Ping pings a peer.
func (c *Client) Ping(ctx context.Context, ref string) (wire.Pong, error) {
	return post[wire.Pong](ctx, c, "/v1/peers/"+escape(ref)+"/ping", nil)
}

// Path explains how a peer is reached.
func (c *Client) Path(ctx context.Context, ref string) (wire.PathReport, error) {
	return get[wire.PathReport](ctx, c, "/v1/peers/"+escape(ref)+"/path", nil)
}

// NetCheck returns what the node learned about its own network.
func (c *Client) NetCheck(ctx context.Context) (wire.NetCheck, error) {
	return get[wire.NetCheck](ctx, c, "/v1/netcheck", nil)
}

// JoinRequests returns the nodes on the LAN that ask to join.
func (c *Client) JoinRequests(ctx context.Context) ([]wire.JoinRequest, error) {
	p, err := get[wire.Page[wire.JoinRequest]](ctx, c, "/v1/join-requests", nil)
	return p.Items, err
}

// Accept admits one of them: ref is its id, the beginning or end of it, the name it asks
// for, or its code.
func (c *Client) Accept(ctx context.Context, ref string, o wire.AcceptOptions) (wire.Peer, error) {
	return post[wire.Peer](ctx, c, "/v1/join-requests/"+escape(ref)+"/accept", o)
}

// Rename gives a peer a name that is used on the node only; an empty name removes it.
func (c *Client) Rename(ctx context.Context, ref, name string) error {
	return c.tell(ctx, "/v1/peers/"+escape(ref)+"/name", wire.Rename{Name: name})
}

// Revoke revokes the membership of a peer permanently, in the whole mesh.
func (c *Client) Revoke(ctx context.Context, ref, reason string) error {
	return c.tell(ctx, "/v1/peers/"+escape(ref)+"/revoke", wire.Revoke{Reason: reason})
}

// EventPage returns up to limit events after a number, at once or at the first event within
// wait. A page with another boot than the previous one has new numbers.
func (c *Client) EventPage(ctx context.Context, after uint64, limit int, wait time.Duration) (wire.EventPage, error) {
	return c.MailEvents(ctx, "", after, limit, wait)
}

// MailEvents is EventPage for what happened to the mail of a mailbox or a topic; *: of all.
// These events have numbers of their own.
func (c *Client) MailEvents(ctx context.Context, box string, after uint64, limit int, wait time.Duration) (wire.EventPage, error) {
	q := url.Values{"after": {strconv.FormatUint(after, 10)}}
	if limit > 0 {
		q.Set("limit", strconv.Itoa(limit))
	}
	if wait > 0 {
		q.Set("wait", wait.String())
	}
	if box != "" {
		q.Set("mail", box)
	}
	return get[wire.EventPage](ctx, c, "/v1/events", q)
}
