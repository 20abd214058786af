package wire

import "time"

// A Member is a node of the mesh as seen by this one.
type Member struct {
	Name        string     `json:"name"`
	ID          string     `json:"id"`
	Self        bool       `json:"self,omitempty"`
	State       string     `json:"state" enum:"ALIVE,SUSPECT,DEAD,LEFT,UNKNOWN" doc:"UNKNOWN: nothing has been received about this member since this node started"`
	Since       *time.Time `json:"since,omitempty" doc:"when it entered this state"`
	Eligible    bool       `json:"eligible" doc:"may get work from shared queues: alive for longer than its recovery time"`
	Accusers    int        `json:"accusers,omitempty" doc:"members that report it as not answering"`
	Incarnation uint64     `json:"incarnation,omitempty"`
	Boot        uint64     `json:"boot,omitempty"`
	Phase       string     `json:"phase,omitempty" enum:"STARTING,RUNNING,DRAINING,STOPPING,STOPPED" doc:"as announced by the member"`
	Started     *time.Time `json:"started,omitempty"`
	Priority    uint32     `json:"priority,omitempty"`
	Load        *Load      `json:"load,omitempty"`
	Labels      []string   `json:"labels,omitempty"`
	Kinds       []string   `json:"kinds,omitempty" doc:"kinds that it has handlers for"`
	Relays      []string   `json:"relays,omitempty" doc:"relays through which it can be reached"`
	Roles       []string   `json:"roles,omitempty"`
	Version     string     `json:"version,omitempty"`
	Connected   bool       `json:"connected"`
	Path        string     `json:"path,omitempty" enum:"direct,relayed"`
}

// Load is the load that a member announces.
type Load struct {
	CPU     float64 `json:"cpu" doc:"share of all cores, 0 to 1"`
	Memory  float64 `json:"memory" doc:"share of the machine's memory, 0 to 1"`
	Slots   int     `json:"slots"`
	Busy    int     `json:"busy"`
	Waiting int     `json:"waiting" doc:"accepted tasks that are not started yet"`
}

// A MeshSummary summarizes the mesh as seen by this node.
type MeshSummary struct {
	Mesh        string         `json:"mesh"`
	Members     int            `json:"members" doc:"including this node"`
	States      map[string]int `json:"states"`
	Connected   int            `json:"connected" doc:"members that are not DEAD, by a path of either kind"`
	Direct      int            `json:"direct"`
	Relayed     int            `json:"relayed"`
	Isolated    bool           `json:"isolated" doc:"this node receives nothing from any member, or other members suspect it"`
	Accusers    []string       `json:"accusers,omitempty" doc:"members that reported within the last minute that this node does not answer"`
	Paused      bool           `json:"paused" doc:"this node claims nothing new from shared queues"`
	LocalHealth int            `json:"local_health" doc:"0 is best; higher: this node or its network is slow, so it waits longer before it suspects a member"`
	Root        string         `json:"root" doc:"digest of this node's member state"`
	Refuted     int            `json:"refuted" doc:"suspicions since the start that turned out to be false"`
	Suppressed  int            `json:"suppressed" doc:"state changes since the start that were hidden by a recovery time"`
	Leases      []LeaseRisk    `json:"leases_at_risk" doc:"leases granted by this node to members that are SUSPECT or DEAD"`
	Risks       []Note         `json:"risks" doc:"what an operator should look at"`
}

// A LeaseRisk is a member that may be lost while it owns tasks of queues whose home is
// this node.
type LeaseRisk struct {
	Owner string `json:"owner"`
	State string `json:"state" enum:"SUSPECT,DEAD"`
	Tasks int    `json:"tasks" doc:"tasks that it has a lease for"`
	Once  int    `json:"at_most_once,omitempty" doc:"those of them that may have been started and must not start twice; they end as INDETERMINATE unless their owner returns"`
}

// Prune selects the entries of dead members to remove.
type Prune struct {
	OlderThan Duration `json:"older_than,omitzero" example:"24h" doc:"dead for at least this long; default the node's own setting"`
	Limit     int      `json:"limit,omitempty" minimum:"0" maximum:"10000" doc:"at most this many, oldest first; 0: the node's own limit"`
	DryRun    bool     `json:"dry_run,omitempty" doc:"only list"`
}

// A Pruned lists the dead members whose rows were removed, or would be.
type Pruned struct {
	Members []string `json:"members"`
	DryRun  bool     `json:"dry_run"`
}

// A Convergence is the outcome of an exchange with every connected member.
type Convergence struct {
	Asked  int      `json:"asked"`
	Agree  []string `json:"agree"`
	Failed []string `json:"failed,omitempty" doc:"members that did not answer, with the reason"`
	Took   float64  `json:"took_seconds"`
}

// A Pong is the answer to one ping.
type Pong struct {
	Peer   string  `json:"peer"`
	RTT    float64 `json:"rtt_seconds"`
	Path   string  `json:"path" doc:"address and protocol of the connection"`
	Direct bool    `json:"direct"`
	Relay  string  `json:"relay,omitempty" doc:"name of the relay, if the path is not direct"`
}

// A PathReport explains how this node reaches a peer.
type PathReport struct {
	Peer       string          `json:"peer"`
	ID         string          `json:"id"`
	Connected  bool            `json:"connected"`
	Cause      Note            `json:"cause" doc:"why this path is in use, or why there is none"`
	Candidates []PathCandidate `json:"candidates"`
	Punches    []Punch         `json:"punches" doc:"NAT hole-punching attempts, newest first"`
}

// A PathCandidate is one possible path to a peer.
type PathCandidate struct {
	Addr      string     `json:"addr"`
	Network   string     `json:"network" enum:"quic,tcp"`
	Relay     string     `json:"relay,omitempty" doc:"name of the relay; empty: direct"`
	Connected bool       `json:"connected"`
	InUse     bool       `json:"in_use"`
	RTT       float64    `json:"rtt_seconds,omitempty" doc:"absent: not measured yet"`
	Loss      float64    `json:"loss" doc:"share of packets or probes, 0 to 1"`
	Rate      int64      `json:"rate" doc:"bytes per second acknowledged under load; 0: not measured"`
	Score     float64    `json:"score,omitempty"`
	Terms     []string   `json:"terms,omitempty" doc:"terms of the score: bandwidth, latency, loss"`
	Since     *time.Time `json:"since,omitempty"`
}

// A Punch is one NAT hole-punching attempt.
type Punch struct {
	Time   time.Time `json:"time"`
	OK     bool      `json:"ok" doc:"there is a direct path since"`
	Detail string    `json:"detail" doc:"why it failed, or how it succeeded"`
	Took   float64   `json:"took_seconds"`
}

// A NetCheck describes the network of this node as far as it could find out.
type NetCheck struct {
	Listen       []string      `json:"listen"`
	Announced    []string      `json:"announced"`
	Observed     []Observed    `json:"observed" doc:"addresses of this node as observed by peers"`
	NAT          string        `json:"nat" enum:"none,cone,symmetric,unknown"`
	UDP          bool          `json:"udp" doc:"there is a QUIC connection"`
	TCP          bool          `json:"tcp" doc:"there is a TCP connection"`
	IPv6         bool          `json:"ipv6"`
	PortMap      string        `json:"port_map,omitempty" doc:"port mapping of the router, if one was requested"`
	Public       string        `json:"public,omitempty" doc:"reachability according to AutoNAT, for information only"`
	Reservations []Reservation `json:"reservations" doc:"relays through which this node can be reached"`
	Relaying     *Relaying     `json:"relaying,omitempty" doc:"traffic that this node relays for other members"`
	DHT          int           `json:"dht" doc:"members in the routing table; -1: off"`
	MDNS         string        `json:"mdns" doc:"on, off, or the reason why it does not work"`
	Gossip       int           `json:"gossip" doc:"members on the gossip topic"`
	Strangers    int           `json:"strangers" doc:"nodes seen on the LAN that are not members"`
	Findings     []Note        `json:"findings" doc:"conclusions"`
}

// An Observed is an address of this node as observed by peers.
type Observed struct {
	Addr string   `json:"addr"`
	By   []string `json:"by"`
}

// A Reservation is a reservation at a relay.
type Reservation struct {
	Relay string    `json:"relay"`
	Until time.Time `json:"until"`
	Score float64   `json:"score"`
}

// Relaying counts what a node relays between other members.
type Relaying struct {
	Reservations int   `json:"reservations"`
	Circuits     int   `json:"circuits"`
	Bytes        int64 `json:"bytes"`
}
