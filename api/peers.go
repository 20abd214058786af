package api

import (
	"context"
	"net/http"

	"github.com/balefire/balefire/wire"
)

// ByName names a peer in the path.
type ByName struct {
	Name string `path:"name" maxLength:"128" doc:"a peer's name or id"`
}

// ofPeer is a document for a peer.
type ofPeer[B any] struct {
	ByName
	Body B
}

func (s *Server) routePeers() {
	route(s, op("GET", "/v1/peers", "listPeers", "peers", "List the nodes that this node knows"), func(ctx context.Context, _ *struct{}) (wire.Page[wire.Peer], error) {
		return list(s.views.Peers()), nil
	})
	route(s, op("GET", "/v1/peers/{name}", "getPeer", "peers", "Show a peer"), func(ctx context.Context, in *ByName) (wire.Peer, error) {
		return s.views.Peer(in.Name)
	})
	routeNoContent(s, op("POST", "/v1/peers/{name}/block", "blockPeer", "peers", "Block a peer"), func(ctx context.Context, in *ByName) error {
		return s.pairing.Block(ctx, in.Name)
	})
	routeNoContent(s, op("POST", "/v1/peers/{name}/unblock", "unblockPeer", "peers", "Unblock a peer"), func(ctx context.Context, in *ByName) error {
		return s.pairing.Unblock(ctx, in.Name)
	})
	routeNoContent(s, op("DELETE", "/v1/peers/{name}", "forgetPeer", "peers", "Remove a peer from the address book"), func(ctx context.Context, in *ByName) error {
		return s.pairing.Forget(ctx, in.Name)
	})
	create := op("POST", "/v1/invitations", "invite", "peers", "Create a ticket that admits one node, once")
	create.DefaultStatus = http.StatusCreated
	route(s, create, func(ctx context.Context, in *struct{ Body *wire.InviteOptions }) (wire.Invitation, error) {
		return s.pairing.Invite(ctx, orZero(in.Body))
	})
}
