package api

import (
	"context"
	"time"

	"github.com/balefire/balefire/wire"
)

// routeNetwork adds the routes of the mesh and of paths.
func (s *Server) routeNetwork(n Node) {
	s.routeMembers(n)
	s.routeMesh(n)
	s.routeEvents(n)
	s.routePaths(n)
	s.routeJoinRequests(n)
}

// routeMembers adds the routes of members.
func (s *Server) routeMembers(n membership) {
	route(s, op("GET", "/v1/members", "listMembers", "mesh", "List the members of the mesh, as this node sees them"), func(ctx context.Context, _ *struct{}) (wire.Page[wire.Member], error) {
		return list(n.Members(ctx)), nil
	})
	route(s, op("GET", "/v1/members/{name}", "getMember", "mesh", "Show a member"), func(ctx context.Context, in *ByName) (wire.Member, error) {
		return n.Member(ctx, in.Name)
	})
	type rename struct {
		ByName
		Body wire.Rename
	}
	routeNoContent(s, op("POST", "/v1/peers/{name}/name", "renamePeer", "peers", "Give a peer a name that is used on this node only"), func(ctx context.Context, in *rename) error {
		return n.Rename(ctx, in.Name, in.Body.Name)
	})
	type revoke struct {
		ByName
		Body wire.Revoke
	}
	routeNoContent(s, op("POST", "/v1/peers/{name}/revoke", "revokePeer", "peers", "Revoke a membership permanently, in the whole mesh"), func(ctx context.Context, in *revoke) error {
		return n.Revoke(ctx, in.Name, in.Body.Reason)
	})
}

// routeMesh adds the routes of the mesh as a whole.
func (s *Server) routeMesh(n membership) {
	route(s, op("GET", "/v1/mesh", "getMesh", "mesh", "Summary of the mesh"), func(ctx context.Context, _ *struct{}) (wire.MeshSummary, error) {
		return n.MeshSummary(ctx), nil
	})
	type prune struct{ Body wire.Prune }
	route(s, op("POST", "/v1/mesh/prune", "pruneMesh", "mesh", "Remove entries of members that have been dead for long"), func(ctx context.Context, in *prune) (wire.Pruned, error) {
		return n.PruneMembers(ctx, time.Duration(in.Body.OlderThan), in.Body.Limit, in.Body.DryRun)
	})
	route(s, op("POST", "/v1/mesh/converge", "convergeMesh", "mesh", "Synchronize with every connected member now"), func(ctx context.Context, _ *struct{}) (wire.Convergence, error) {
		return n.Converge(ctx)
	})
}

// routePaths adds the routes that explain how peers are reached.
func (s *Server) routePaths(n connectivity) {
	route(s, op("POST", "/v1/peers/{name}/ping", "pingPeer", "peers", "Ping a peer and report the path of the reply"), func(ctx context.Context, in *ByName) (wire.Pong, error) {
		return n.Ping(ctx, in.Name)
	})
	route(s, op("GET", "/v1/peers/{name}/path", "getPath", "peers", "Explain how a peer is reached"), func(ctx context.Context, in *ByName) (wire.PathReport, error) {
		return n.Path(ctx, in.Name)
	})
	route(s, op("GET", "/v1/netcheck", "netcheck", "node", "What this node learned about its own network"), func(ctx context.Context, _ *struct{}) (wire.NetCheck, error) {
		return n.NetCheck(ctx), nil
	})
}

// routeJoinRequests adds the routes for nodes that ask to join.
func (s *Server) routeJoinRequests(n joinRequests) {
	route(s, op("GET", "/v1/wishes", "listWishes", "peers", "List the nodes on the LAN that ask to join"), func(ctx context.Context, _ *struct{}) (wire.Page[wire.JoinRequest], error) {
		return list(n.JoinRequests(ctx)), nil
	})
	type accept struct {
		ID   string `path:"id" maxLength:"128" doc:"its code, or its whole id"`
		Body *wire.AcceptOptions
	}
	route(s, op("POST", "/v1/wishes/{id}/accept", "acceptWish", "peers", "Accept a node that asks to join"), func(ctx context.Context, in *accept) (wire.Peer, error) {
		return n.Accept(ctx, in.ID, orZero(in.Body))
	})
}
