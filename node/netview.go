package node

import "time"

// A Member is a node of the mesh as this one sees it.
type Member struct {
	Name        string     `json:"name"`
	ID          string     `json:"id"`
	Self        bool       `json:"self,omitempty"`
	State       string     `json:"state" enum:"ALIVE,SUSPECT,DEAD,LEFT,UNKNOWN" doc:"UNKNOWN: a member of whom nothing was heard since this node started"`
	Since       *time.Time `json:"since,omitempty" doc:"when it came into this state"`
	Eligible    bool       `json:"eligible" doc:"may be given work of shared queues: alive for longer than its dwell window"`
	Accusers    int        `json:"accusers,omitempty" doc:"members that say it does not answer"`
	Incarnation uint64     `json:"incarnation,omitempty"`
	Boot        uint64     `json:"boot,omitempty"`
	Phase       string     `json:"phase,omitempty" enum:"STARTING,RUNNING,DRAINING,STOPPING,STOPPED" doc:"what it says of itself"`
	Started     *time.Time `json:"started,omitempty"`
	Priority    uint32     `json:"priority,omitempty"`
	Load        *Load      `json:"load,omitempty"`
	Labels      []string   `json:"labels,omitempty"`
	Kinds       []string   `json:"kinds,omitempty" doc:"that it has handlers for"`
	Relays      []string   `json:"relays,omitempty" doc:"where it can be reached through"`
	Roles       []string   `json:"roles,omitempty"`
	Version     string     `json:"version,omitempty"`
	Connected   bool       `json:"connected"`
	Path        string     `json:"path,omitempty" enum:"direct,relayed"`
}

// Load is how busy a member says it is.
type Load struct {
	CPU     float64 `json:"cpu" doc:"share of all cores, 0 to 1"`
	Memory  float64 `json:"memory" doc:"share of the machine's, 0 to 1"`
	Slots   int     `json:"slots"`
	Busy    int     `json:"busy"`
	Waiting int     `json:"waiting" doc:"tasks in custody that were not started"`
}

// A MeshSummary is the mesh at a glance, as this node sees it.
type MeshSummary struct {
	Mesh        string         `json:"mesh"`
	Members     int            `json:"members" doc:"this node with them"`
	States      map[string]int `json:"states"`
	Connected   int            `json:"connected"`
	Direct      int            `json:"direct"`
	Relayed     int            `json:"relayed"`
	Isolated    bool           `json:"isolated" doc:"this node hears from nobody, or is suspected by others"`
	Accusers    []string       `json:"accusers,omitempty" doc:"members who said within the last minute that this node does not answer"`
	Paused      bool           `json:"paused" doc:"this node claims nothing new from shared queues"`
	LocalHealth int            `json:"local_health" doc:"0 is best; higher: this node is slow or its network is, and it is slower to accuse"`
	Root        string         `json:"root" doc:"digest of what this node knows of the members"`
	Refuted     int            `json:"refuted" doc:"suspicions that turned out false, since the start"`
	Suppressed  int            `json:"suppressed" doc:"changes hidden by dwell windows, since the start"`
	Leases      []LeaseRisk    `json:"leases_at_risk" doc:"leases that this node gave to members that are SUSPECT or DEAD"`
	Risks       []string       `json:"risks" doc:"what a person should look at"`
}

// A LeaseRisk is a member that may be gone with tasks of queues whose home is here.
type LeaseRisk struct {
	Owner string `json:"owner"`
	State string `json:"state" enum:"SUSPECT,DEAD"`
	Tasks int    `json:"tasks" doc:"that it has a lease for"`
	Once  int    `json:"at_most_once,omitempty" doc:"of them: may have been started and may be once only; they end as INDETERMINATE unless their owner comes back"`
}

// A Pruned says which rows of dead members went, or would go.
type Pruned struct {
	Members []string `json:"members"`
	DryRun  bool     `json:"dry_run"`
}

// A Convergence is the outcome of an exchange with every connected member.
type Convergence struct {
	Asked  int      `json:"asked"`
	Agree  []string `json:"agree"`
	Failed []string `json:"failed,omitempty" doc:"who did not answer, and why"`
	Took   float64  `json:"took_seconds"`
}

// A Pong is the answer to one ping.
type Pong struct {
	Peer   string  `json:"peer"`
	RTT    float64 `json:"rtt_seconds"`
	Path   string  `json:"path" doc:"address and protocol of the connection"`
	Direct bool    `json:"direct"`
	Relay  string  `json:"relay,omitempty" doc:"name of the relay in between"`
}

// A PathReport explains how this node reaches a peer.
type PathReport struct {
	Peer       string          `json:"peer"`
	ID         string          `json:"id"`
	Connected  bool            `json:"connected"`
	Why        string          `json:"why" doc:"why the path in use is used, or why there is none"`
	Candidates []PathCandidate `json:"candidates"`
	Punches    []Punch         `json:"punches" doc:"attempts to get past two NATs, newest first"`
}

// A PathCandidate is one way to a peer.
type PathCandidate struct {
	Addr      string     `json:"addr"`
	Network   string     `json:"network" enum:"quic,tcp"`
	Relay     string     `json:"relay,omitempty" doc:"name of the relay in between; empty: direct"`
	Connected bool       `json:"connected"`
	InUse     bool       `json:"in_use"`
	RTT       float64    `json:"rtt_seconds,omitempty" doc:"absent: not measured yet"`
	Loss      float64    `json:"loss" doc:"share of packets or probes, 0 to 1"`
	Rate      int64      `json:"rate" doc:"bytes a second that were acknowledged while it was busy; 0: not measured"`
	Score     float64    `json:"score,omitempty"`
	Terms     []string   `json:"terms,omitempty" doc:"of the score: bandwidth, latency, loss"`
	Since     *time.Time `json:"since,omitempty"`
}

// A Punch is one attempt to get past two NATs.
type Punch struct {
	Time   time.Time `json:"time"`
	Result string    `json:"result"`
	Took   float64   `json:"took_seconds"`
}

// A NetCheck is what this node found out about its own network.
type NetCheck struct {
	Listen       []string      `json:"listen"`
	Announced    []string      `json:"announced"`
	Observed     []Observed    `json:"observed" doc:"addresses that peers saw this node at"`
	NAT          string        `json:"nat" enum:"none,cone,symmetric,unknown"`
	UDP          bool          `json:"udp" doc:"a QUIC connection is there"`
	TCP          bool          `json:"tcp" doc:"a TCP connection is there"`
	IPv6         bool          `json:"ipv6"`
	PortMap      string        `json:"port_map,omitempty" doc:"what the router mapped, when it was asked to"`
	Public       string        `json:"public,omitempty" doc:"what AutoNAT says, for information"`
	Reservations []Reservation `json:"reservations" doc:"relays that this node can be reached through"`
	Relaying     *Relaying     `json:"relaying,omitempty" doc:"what this node relays for others"`
	DHT          int           `json:"dht" doc:"members in the routing table; -1: off"`
	MDNS         string        `json:"mdns" doc:"on, off, or why not"`
	Gossip       int           `json:"gossip" doc:"members on the gossip topic"`
	Strangers    int           `json:"strangers" doc:"nodes seen on the LAN that are no members"`
	Findings     []string      `json:"findings" doc:"what it means, and what to do"`
}

// An Observed is an address that a peer saw this node at.
type Observed struct {
	Addr string   `json:"addr"`
	By   []string `json:"by"`
}

// A Reservation is a place at a relay.
type Reservation struct {
	Relay string    `json:"relay"`
	Until time.Time `json:"until"`
	Score float64   `json:"score"`
}

// Relaying is what a node carries between others.
type Relaying struct {
	Reservations int   `json:"reservations"`
	Circuits     int   `json:"circuits"`
	Bytes        int64 `json:"bytes"`
}

// A Wish is a node on the LAN that asks to be let in.
type Wish struct {
	Name  string    `json:"name" doc:"that it wishes for"`
	ID    string    `json:"id"`
	Code  string    `json:"code" doc:"short form of its key: it shows the same"`
	From  string    `json:"from,omitempty" doc:"address that it asks from"`
	Addrs []string  `json:"addrs"`
	Since time.Time `json:"since"`
	Last  time.Time `json:"last" doc:"when it asked last"`
}

// AcceptOptions say how a node that wishes to join is let in.
type AcceptOptions struct {
	Name  string   // default its own wish
	Roles []string // default send, work, relay
}

// A NodeEvent is something that happened here: a change of a peer, a path, a member, a task.
type NodeEvent struct {
	Seq    uint64            `json:"seq" doc:"rises by one from 1 at each start; a missing number was dropped"`
	Time   time.Time         `json:"time"`
	Kind   string            `json:"kind" example:"peer.connected"`
	Peer   string            `json:"peer,omitempty" doc:"name"`
	Task   string            `json:"task,omitempty"`
	Text   string            `json:"text" doc:"for a person"`
	Fields map[string]string `json:"fields,omitempty"`
}

// An EventPage holds the events behind a sequence number.
type EventPage struct {
	Boot   uint64      `json:"boot" doc:"of this start: numbers begin anew with each"`
	Items  []NodeEvent `json:"items"`
	Missed uint64      `json:"missed,omitempty" doc:"events that were dropped before the first item: the reader was too slow or came too late"`
	Next   uint64      `json:"next" doc:"ask for what comes after this"`
}
