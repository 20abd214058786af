package api

import (
	"context"

	"github.com/balefire/balefire/wire"
)

// The inputs of the network routes.
type (
	// Prune selects the entries of dead members to remove.
	Prune struct {
		OlderThan string `json:"older_than,omitempty" example:"24h" doc:"dead for at least this long; default the node's own setting"`
		Limit     int    `json:"limit,omitempty" minimum:"0" maximum:"10000" doc:"at most this many, oldest first; 0: the node's own limit"`
		DryRun    bool   `json:"dry_run,omitempty" doc:"only list"`
	}
	// Accept admits a node that asks to join.
	Accept struct {
		Name  string   `json:"name,omitempty" maxLength:"63" doc:"default the name it asked for"`
		Roles []string `json:"roles,omitempty" doc:"default send, work, relay"`
	}
	// Rename gives a peer a name that is used on this node only.
	Rename struct {
		Name string `json:"name" maxLength:"63" doc:"empty: remove the name"`
	}
	// Revoke ends a membership.
	Revoke struct {
		Reason string `json:"reason" minLength:"1" maxLength:"1024" doc:"for the audit log, and for everyone who asks why"`
	}
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
		Body Rename
	}
	routeNoContent(s, op("POST", "/v1/peers/{name}/name", "renamePeer", "peers", "Give a peer a name that is used on this node only"), func(ctx context.Context, in *rename) error {
		return n.Rename(ctx, in.Name, in.Body.Name)
	})
	type revoke struct {
		ByName
		Body Revoke
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
	type prune struct{ Body Prune }
	route(s, op("POST", "/v1/mesh/prune", "pruneMesh", "mesh", "Remove entries of members that have been dead for long"), func(ctx context.Context, in *prune) (wire.Pruned, error) {
		age, err := duration("older_than", in.Body.OlderThan)
		if err != nil {
			return wire.Pruned{}, err
		}
		return n.PruneMembers(ctx, age, in.Body.Limit, in.Body.DryRun)
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
		Body *Accept
	}
	route(s, op("POST", "/v1/wishes/{id}/accept", "acceptWish", "peers", "Accept a node that asks to join"), func(ctx context.Context, in *accept) (wire.Peer, error) {
		o := wire.AcceptOptions{}
		if in.Body != nil {
			o = wire.AcceptOptions{Name: in.Body.Name, Roles: in.Body.Roles}
		}
		return n.Accept(ctx, in.ID, o)
	})
}
