package api

import (
	"context"

	"github.com/balefire/balefire/node"
)

// The inputs of the routes of the network.
type (
	// Prune says which rows of dead members to remove.
	Prune struct {
		OlderThan string `json:"older_than,omitempty" example:"24h" doc:"dead for at least this long; default what the node does by itself"`
		Limit     int    `json:"limit,omitempty" minimum:"0" maximum:"10000" doc:"at most so many, the oldest first; 0: the node's own limit"`
		DryRun    bool   `json:"dry_run,omitempty" doc:"only list"`
	}
	// Accept says how a node that wishes to join is let in.
	Accept struct {
		Name  string   `json:"name,omitempty" maxLength:"63" doc:"default its own wish"`
		Roles []string `json:"roles,omitempty" doc:"default send, work, relay"`
	}
	// Rename gives a peer a name that counts on this node alone.
	Rename struct {
		Name string `json:"name" maxLength:"63" doc:"empty: it goes by its own name again"`
	}
	// Revoke ends a membership.
	Revoke struct {
		Reason string `json:"reason" minLength:"1" maxLength:"1024" doc:"for the audit, and for everybody who asks why"`
	}
)

// routeNetwork adds what n can tell of the mesh and of the ways through it.
func (s *Server) routeNetwork(n Node) {
	s.routeMembers(n)
	s.routeMesh(n)
	s.routeEvents(n)
	s.routePaths(n)
	s.routeJoinRequests(n)
}

// routeMembers adds what tells of members, and what decides about one.
func (s *Server) routeMembers(n membership) {
	route(s, op("GET", "/v1/members", "listMembers", "mesh", "List the members of the mesh, as this node sees them"), func(ctx context.Context, _ *struct{}) (node.Page[node.Member], error) {
		return list(n.Members(ctx)), nil
	})
	route(s, op("GET", "/v1/members/{name}", "getMember", "mesh", "Show a member"), func(ctx context.Context, in *ByName) (node.Member, error) {
		return n.Member(ctx, in.Name)
	})
	type rename struct {
		ByName
		Body Rename
	}
	routeNoContent(s, op("POST", "/v1/peers/{name}/name", "renamePeer", "peers", "Give a peer a name that counts on this node alone"), func(ctx context.Context, in *rename) error {
		return n.Rename(ctx, in.Name, in.Body.Name)
	})
	type revoke struct {
		ByName
		Body Revoke
	}
	routeNoContent(s, op("POST", "/v1/peers/{name}/revoke", "revokePeer", "peers", "End a membership, in the whole mesh and for good"), func(ctx context.Context, in *revoke) error {
		return n.Revoke(ctx, in.Name, in.Body.Reason)
	})
}

// routeMesh adds what tells of the mesh as a whole, and tidies it up.
func (s *Server) routeMesh(n membership) {
	route(s, op("GET", "/v1/mesh", "getMesh", "mesh", "The mesh at a glance"), func(ctx context.Context, _ *struct{}) (node.MeshSummary, error) {
		return n.MeshSummary(ctx), nil
	})
	type prune struct{ Body Prune }
	route(s, op("POST", "/v1/mesh/prune", "pruneMesh", "mesh", "Remove rows of members that are dead for long"), func(ctx context.Context, in *prune) (node.Pruned, error) {
		age, err := duration("older_than", in.Body.OlderThan)
		if err != nil {
			return node.Pruned{}, err
		}
		return n.PruneMembers(ctx, age, in.Body.Limit, in.Body.DryRun)
	})
	route(s, op("POST", "/v1/mesh/converge", "convergeMesh", "mesh", "Exchange what is known of the members with every connected one, now"), func(ctx context.Context, _ *struct{}) (node.Convergence, error) {
		return n.Converge(ctx)
	})
}

// routePaths adds what explains how others are reached.
func (s *Server) routePaths(n connectivity) {
	route(s, op("POST", "/v1/peers/{name}/ping", "pingPeer", "peers", "Ask a peer for an answer, and tell the way that it took"), func(ctx context.Context, in *ByName) (node.Pong, error) {
		return n.Ping(ctx, in.Name)
	})
	route(s, op("GET", "/v1/peers/{name}/path", "getPath", "peers", "Explain how a peer is reached, and why so"), func(ctx context.Context, in *ByName) (node.PathReport, error) {
		return n.Path(ctx, in.Name)
	})
	route(s, op("GET", "/v1/netcheck", "netcheck", "node", "What this node found out about its own network"), func(ctx context.Context, _ *struct{}) (node.NetCheck, error) {
		return n.NetCheck(ctx), nil
	})
}

// routeJoinRequests adds what lets nodes in that ask for it.
func (s *Server) routeJoinRequests(n joinRequests) {
	route(s, op("GET", "/v1/wishes", "listWishes", "peers", "List the nodes on the LAN that ask to be let in"), func(ctx context.Context, _ *struct{}) (node.Page[node.JoinRequest], error) {
		return list(n.JoinRequests(ctx)), nil
	})
	type accept struct {
		ID   string `path:"id" maxLength:"128" doc:"its code, or its whole id"`
		Body *Accept
	}
	route(s, op("POST", "/v1/wishes/{id}/accept", "acceptWish", "peers", "Let a node in that asks for it"), func(ctx context.Context, in *accept) (node.Peer, error) {
		o := node.AcceptOptions{}
		if in.Body != nil {
			o = node.AcceptOptions{Name: in.Body.Name, Roles: in.Body.Roles}
		}
		return n.Accept(ctx, in.ID, o)
	})
}
