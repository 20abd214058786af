package api

import (
	"context"
	"time"

	"github.com/balefire/balefire/wire"
)

// routeNetwork adds the routes of the mesh and of paths.
func (s *Server) routeNetwork() {
	s.routeMembers()
	s.routeMesh()
	s.routeEvents()
	s.routePaths()
	s.routeJoinRequests()
}

// routeMembers adds the routes of members.
func (s *Server) routeMembers() {
	route(s, op("GET", "/v1/members", "listMembers", "mesh", "List the members of the mesh, as this node sees them"), func(ctx context.Context, _ *struct{}) (wire.Page[wire.Member], error) {
		return list(s.views.Members()), nil
	})
	route(s, op("GET", "/v1/members/{name}", "getMember", "mesh", "Show a member"), func(ctx context.Context, in *ByName) (wire.Member, error) {
		return s.views.Member(in.Name)
	})
	routeNoContent(s, op("POST", "/v1/peers/{name}/name", "renamePeer", "peers", "Give a peer a name that is used on this node only"), func(ctx context.Context, in *ofPeer[wire.Rename]) error {
		return s.pairing.Rename(ctx, in.Name, in.Body.Name)
	})
	routeNoContent(s, op("POST", "/v1/peers/{name}/revoke", "revokePeer", "peers", "Revoke a membership permanently, in the whole mesh"), func(ctx context.Context, in *ofPeer[wire.Revoke]) error {
		return s.pairing.Revoke(ctx, in.Name, in.Body.Reason)
	})
}

// routeMesh adds the routes of the mesh as a whole.
func (s *Server) routeMesh() {
	route(s, op("GET", "/v1/mesh", "getMesh", "mesh", "Summary of the mesh"), func(ctx context.Context, _ *struct{}) (wire.MeshSummary, error) {
		return s.views.MeshSummary(ctx), nil
	})
	route(s, op("POST", "/v1/mesh/prune", "pruneMesh", "mesh", "Remove entries of members that have been dead for long"), func(ctx context.Context, in *struct{ Body wire.Prune }) (wire.Pruned, error) {
		return s.mesh.PruneMembers(ctx, time.Duration(in.Body.OlderThan), in.Body.Limit, in.Body.DryRun)
	})
	route(s, op("POST", "/v1/mesh/converge", "convergeMesh", "mesh", "Synchronize with every connected member now"), func(ctx context.Context, _ *struct{}) (wire.Convergence, error) {
		return s.mesh.Converge(ctx)
	})
}

// routePaths adds the routes that explain how peers are reached.
func (s *Server) routePaths() {
	route(s, op("POST", "/v1/peers/{name}/ping", "pingPeer", "peers", "Ping a peer and report the path of the reply"), func(ctx context.Context, in *ByName) (wire.Pong, error) {
		return s.views.Ping(ctx, in.Name)
	})
	route(s, op("GET", "/v1/peers/{name}/path", "getPath", "peers", "Explain how a peer is reached"), func(ctx context.Context, in *ByName) (wire.PathReport, error) {
		return s.views.Path(in.Name)
	})
	route(s, op("GET", "/v1/netcheck", "netcheck", "node", "What this node learned about its own network"), func(ctx context.Context, _ *struct{}) (wire.NetCheck, error) {
		return s.views.NetCheck(), nil
	})
}

// routeJoinRequests adds the routes for nodes that ask to join.
func (s *Server) routeJoinRequests() {
	route(s, op("GET", "/v1/join-requests", "listJoinRequests", "peers", "List the nodes on the LAN that ask to join"), func(ctx context.Context, _ *struct{}) (wire.Page[wire.JoinRequest], error) {
		return list(s.pairing.Requests()), nil
	})
	type accept struct {
		ID   string `path:"id" maxLength:"128" doc:"its code, or its whole id"`
		Body *wire.AcceptOptions
	}
	route(s, op("POST", "/v1/join-requests/{id}/accept", "acceptJoinRequest", "peers", "Accept a node that asks to join"), func(ctx context.Context, in *accept) (wire.Peer, error) {
		return s.pairing.Accept(ctx, in.ID, orZero(in.Body))
	})
}
