package wire

import "time"

// InviteOptions describe the node that a ticket admits.
type InviteOptions struct {
	Name  string   `json:"name,omitempty" maxLength:"63" doc:"of the node that joins; default the name it asks for"`
	TTL   Duration `json:"ttl,omitzero" example:"1h" doc:"default 1h, at most 30d"`
	Roles []string `json:"roles,omitempty" doc:"default send, work, relay"`
}

// A JoinRequest is a request of a node on the LAN to be admitted.
type JoinRequest struct {
	Name  string    `json:"name" doc:"requested name"`
	ID    string    `json:"id"`
	Code  string    `json:"code" doc:"short form of its key; the requesting node shows the same code"`
	From  string    `json:"from,omitempty" doc:"address that the request came from"`
	Addrs []string  `json:"addrs"`
	Since time.Time `json:"since"`
	Last  time.Time `json:"last" doc:"time of its latest request"`
}

// AcceptOptions configures the admission of a node that asked to join.
type AcceptOptions struct {
	Name  string   `json:"name,omitempty" maxLength:"63" doc:"default the name it asked for"`
	Roles []string `json:"roles,omitempty" doc:"default send, work, relay"`
}

// Rename gives a peer a name that is used on this node only.
type Rename struct {
	Name string `json:"name" maxLength:"63" doc:"empty: remove the name"`
}

// Revoke ends a membership.
type Revoke struct {
	Reason string `json:"reason" minLength:"1" maxLength:"1024" doc:"for the audit log, and for everyone who asks why"`
}

// A Peer is another node as known to this one.
type Peer struct {
	Name      string     `json:"name"`
	ID        string     `json:"id"`
	State     string     `json:"state" enum:"CONNECTED,OFFLINE,BLOCKED,EXPIRED,REVOKED,ACCEPTED" doc:"ACCEPTED: admitted, but it has not fetched its certificate yet"`
	Liveness  string     `json:"liveness,omitempty" enum:"ALIVE,SUSPECT,DEAD,LEFT,UNKNOWN" doc:"state according to gossip, whether or not this node can reach it"`
	Alias     string     `json:"alias,omitempty" doc:"name used on this node only"`
	Roles     []string   `json:"roles"`
	Path      string     `json:"path,omitempty" doc:"address and protocol of the connection"`
	Direct    bool       `json:"direct,omitempty" doc:"not through a relay"`
	Relay     string     `json:"relay,omitempty" doc:"name of the relay"`
	RTT       float64    `json:"rtt_seconds,omitempty" doc:"round-trip time of the connection; absent: not measured yet"`
	Loss      float64    `json:"loss,omitempty" doc:"share of packets or probes, 0 to 1"`
	Clock     float64    `json:"clock_seconds,omitempty" doc:"its clock minus this node's, if they differ by 30 s or more"`
	Queued    int        `json:"queued" doc:"tasks and results that wait for it"`
	LastSeen  *time.Time `json:"last_seen,omitempty"`
	Addrs     []string   `json:"addrs,omitempty"`
	CertUntil *time.Time `json:"certificate_until,omitempty"`
}

// An Invitation is a ticket and its QR code.
type Invitation struct {
	Ticket   string    `json:"ticket"`
	QR       string    `json:"qr,omitempty"`
	Expires  time.Time `json:"expires"`
	Roles    []string  `json:"roles"`
	Warnings []Note    `json:"warnings,omitempty" doc:"why a node that joins with the ticket may be refused or get unexpected rights"`
}
