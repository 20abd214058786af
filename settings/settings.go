// Package settings has the settings of a node: each is one field, whose tags are its name,
// its default, its limits and its description.
//
//	            ┌──▶ node.Config              a program that embeds a node sets the fields
//	Settings ───┼──▶ node/config              files and the environment set them by name
//	            └──▶ docs/configuration.md    is generated
//
// Its promise: these are stated nowhere else, so that a default in the documentation is
// the one that every node has.
package settings

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/balefire/balefire/wire"
)

// Settings are the settings of a node. [Default] returns them with every default. Zero means
// zero, except where the tag defaultText says how the node computes the value if it is zero.
//
// The tags: yaml is the name, default or defaultText the default, min, max and enum are the
// limits, doc is the description.
type Settings struct {
	Store     Store              `yaml:"store" doc:"The store in the node's folder."`
	Net       Net                `yaml:"net" doc:"How peers reach this node."`
	Mesh      Mesh               `yaml:"mesh" doc:"This node as a member of the mesh."`
	Queues    Queues             `yaml:"queues" doc:"What this node does for shared queues as an admin."`
	Mail      Mail               `yaml:"mail" doc:"How much mail a node keeps, and how."`
	Limits    Limits             `yaml:"limits" doc:"How much a node accepts and stores."`
	Dangerous []string           `yaml:"dangerous" doc:"kinds whose handlers, and mailboxes whose programs, may have the profile dangerous; only this list allows it, commands and peers cannot"`
	Handlers  []wire.HandlerSpec `yaml:"handlers" doc:"The work that this node does for its peers."`
}

// Store selects and limits the store.
type Store struct {
	Engine   string `yaml:"engine" default:"nutsdb" enum:"nutsdb,pebble" doc:"storage engine; fixed once the folder contains a store"`
	Reserve  Bytes  `yaml:"reserve" defaultText:"the larger of 256 MiB and 5 % of the disk" doc:"free disk space below which new work is refused; results, final states and deletions are still stored"`
	Segment  Bytes  `yaml:"segment" default:"64MiB" min:"1MiB" max:"1GiB" doc:"size of one file of a nutsdb store; fixed once the folder contains a store"`
	MaxBlob  Bytes  `yaml:"max_blob" default:"100GiB" min:"1MiB" doc:"largest streamed body or result"`
	MaxBlobs Bytes  `yaml:"max_blobs" defaultText:"half of the free disk" doc:"total size of all streamed bodies and results"`
}

// Net configures how peers reach this node.
type Net struct {
	Listen   []string `yaml:"listen" default:"/ip4/0.0.0.0/udp/4001/quic-v1,/ip4/0.0.0.0/tcp/4001,/ip6/::/udp/4001/quic-v1,/ip6/::/tcp/4001" doc:"addresses to listen on"`
	Announce []string `yaml:"announce" defaultText:"none" doc:"additional addresses to announce to peers and include in tickets, such as a forwarded port"`
	Seeds    []string `yaml:"seeds" defaultText:"none" doc:"members to dial in addition to those that the node knows: addresses that end in /p2p/ and a peer id"`
	Relay    bool     `yaml:"relay" default:"on" doc:"relay connections between members that cannot reach each other, if the certificate has the role relay"`
	Relays   int      `yaml:"relays" default:"2" min:"0" max:"4" doc:"number of relay reservations to hold, at the members with the best scores"`
	DHT      bool     `yaml:"dht" default:"on" doc:"look for members in the mesh's own distributed hash table; public nodes are never queried"`
	MDNS     bool     `yaml:"mdns" default:"on" doc:"announce this node and look for members on the LAN"`
	PortMap  bool     `yaml:"port_map" default:"off" doc:"ask the router for port mappings with NAT-PMP and UPnP"`
	Metrics  bool     `yaml:"libp2p_metrics" default:"on" doc:"include the metrics of libp2p, about half of /metrics"`
	Score    Score    `yaml:"score" doc:"How relays are scored."`
}

// Score holds the weights of the relay score.
type Score struct {
	Bandwidth float64 `yaml:"bandwidth" default:"1" doc:"weight of the measured bandwidth"`
	Latency   float64 `yaml:"latency" default:"1" doc:"weight of the inverse of the round-trip time"`
	Loss      float64 `yaml:"loss" default:"2" doc:"weight of the measured loss, which is subtracted"`
}

// Mesh configures this node as a member of the mesh.
type Mesh struct {
	ProbeInterval  time.Duration `yaml:"probe_interval" default:"1s" min:"100ms" max:"1m" doc:"time between two probes; each probe checks one member; raised automatically on a bad network"`
	ProbeTimeout   time.Duration `yaml:"probe_timeout" default:"500ms" min:"50ms" max:"30s" doc:"wait for the answer to a probe before other members are asked to probe; grows with the measured round-trip time"`
	SyncInterval   time.Duration `yaml:"sync_interval" default:"30s" min:"1s" max:"1h" doc:"time between two state comparisons with other members; a new connection triggers one at once"`
	SuspectRecover time.Duration `yaml:"suspect_recover" default:"5s" min:"0s" max:"1h" doc:"how long a formerly suspected member must be alive before shared queues give it work"`
	DeadRecover    time.Duration `yaml:"dead_recover" default:"30s" min:"0s" max:"1h" doc:"the same for a formerly dead member"`
	PruneAge       time.Duration `yaml:"prune_age" default:"30d" min:"1m" max:"3650d" doc:"age at which the row of a dead member is removed; its address, certificate and tasks stay"`
	PruneLimit     int           `yaml:"prune_limit" default:"100" min:"1" max:"10000" doc:"rows removed in one pass"`
	PruneInterval  time.Duration `yaml:"prune_interval" default:"1h" min:"1m" max:"30d" doc:"time between two passes"`
	Priority       int           `yaml:"priority" default:"100" min:"1" max:"1000000" doc:"priority of this node when the home of a queue is chosen; higher is preferred"`
	Labels         []string      `yaml:"labels" defaultText:"none" doc:"words or key=value pairs announced to members, by which this node can be selected"`
}

// Queues configures what this node does for shared queues as an admin.
type Queues struct {
	MadeBy   []string `yaml:"made_by" default:"role:work" doc:"members whose new queues this node confirms with its signature if it is an admin: role:ROLE, peer:NAME, peer:ID or *; they also need the role work; empty: none"`
	MaxNames int      `yaml:"max_names" default:"64" min:"1" max:"4096" doc:"queues, mailboxes and topics that this node signs for one member if it is an admin"`
}

// Mail configures how much mail a node keeps, and how.
type Mail struct {
	MaxBytes  Bytes         `yaml:"max_bytes" default:"10GiB" min:"1MiB" max:"1TiB" doc:"total size of the mail in all mailboxes and topics of this node, of what waits here for other nodes, and of dead letters; more is refused with FULL"`
	MaxKeys   int           `yaml:"max_keys" default:"200000" min:"1" max:"10000000" doc:"dedupe keys of mail that are remembered for 24 to 36 hours of running time; a mail with a new key beyond the limit is refused with FULL"`
	Keep      time.Duration `yaml:"keep" default:"24h" min:"0s" max:"365d" doc:"how long a mailbox that is made from now on keeps mail that is done, for mail history; 0: it is gone at once; mailbox set --keep sets it for one mailbox"`
	KeepBytes Bytes         `yaml:"keep_bytes" default:"256MiB" min:"1MiB" max:"1TiB" doc:"total size of the mail that is done and kept in all mailboxes of this node, besides max_bytes; the oldest of the mailboxes that keep the most is forgotten"`
	Segment   Bytes         `yaml:"segment" default:"64MiB" min:"4MiB" max:"100MiB" doc:"size of a new file of the ledger, in which mail is kept; two are made with the first mail"`
	Tail      Bytes         `yaml:"tail" default:"16MiB" min:"4MiB" max:"1GiB" doc:"memory with the newest mail, for readers that keep up; others read the files"`
	Pace      time.Duration `yaml:"pace" default:"0s" min:"0s" max:"100ms" doc:"least time from a sync of more than 16 mails to the next write, for disks that wear, like 300us: fewer syncs, answers later by that"`
	Relaxed   bool          `yaml:"relaxed" default:"on" doc:"programs may send mail that is answered before its fsync; off: such mail is answered after it, like all other"`
}

// Limits bounds what a node accepts and stores.
type Limits struct {
	MaxPending      int           `yaml:"max_pending" defaultText:"100000 with 384 MiB of memory_limit" min:"1" max:"10000000" doc:"unfinished tasks whose home is this node; a submit beyond the limit is refused with FULL"`
	MaxPendingBytes Bytes         `yaml:"max_pending_bytes" defaultText:"two thirds of memory_limit: 256 MiB" min:"1MiB" doc:"total size of their bodies in the store"`
	MaxInbox        int           `yaml:"max_inbox" defaultText:"100000 with 384 MiB of memory_limit" min:"1" max:"10000000" doc:"unfinished tasks accepted from peers; one peer may use up to nine times the number of free places; the records take at most two thirds of memory_limit"`
	PayloadMax      Bytes         `yaml:"payload_max" default:"10MiB" min:"1KiB" max:"256MiB" doc:"largest inline body in an API request; send a larger one as a file or a stream"`
	QueueBodies     int           `yaml:"queue_bodies" default:"1024" min:"1" max:"1000000" doc:"tasks of shared queues with a body above 256 KiB that this node stores at a time as their home; more are refused with FULL and retried by the sender"`
	Slots           int           `yaml:"slots" defaultText:"twice the number of cores, at least 4" max:"10000" doc:"handlers that run at the same time"`
	GracefulTimeout time.Duration `yaml:"graceful_timeout" defaultText:"15s (Windows 5s)" max:"1h" doc:"how long a shutdown waits for running handlers"`
	StallAfter      time.Duration `yaml:"stall_after" default:"5m" min:"5s" max:"720h" doc:"how long a handler that declares progress may report none, in a shared queue, before it is stopped and its task is given to another node"`
	IdempotencyTTL  time.Duration `yaml:"idempotency_ttl" default:"7d" min:"1m" max:"30d" doc:"how long an idempotency key is remembered while the node runs: on the submitting node from the submit on and until its task ends, on the executing node from the success on"`
	MaxKeys         int           `yaml:"max_keys" defaultText:"200000 (pebble: 1000000) with 384 MiB of memory_limit" min:"1" max:"10000000" doc:"idempotency keys that are remembered, for tasks submitted here and for successes here; a task with a new key beyond the limit is refused with FULL or BUSY"`
	DoneAge         time.Duration `yaml:"done_age" default:"24h" min:"1m" max:"365d" doc:"how long the records of finished tasks are kept"`
	DoneCount       int           `yaml:"done_count" defaultText:"50000 with 384 MiB of memory_limit" min:"1" max:"10000000" doc:"how many records of finished tasks are kept"`
	DeadAge         time.Duration `yaml:"dead_age" default:"30d" min:"1m" max:"3650d" doc:"how long dead letters stay in the store before they are archived to a file"`
	DeadCount       int           `yaml:"dead_count" defaultText:"10000 with 384 MiB of memory_limit" min:"1" max:"10000000" doc:"how many dead letters stay in the store"`
	MemoryLimit     Bytes         `yaml:"memory_limit" defaultText:"5/8 of the cgroup's limit or 1/2 of the RAM, at most 384 MiB" min:"32MiB" doc:"memory that the node aims to stay below: when three quarters of it are in use, new work is refused with FULL; none disables the limit; GOMEMLIMIT in the environment takes precedence; the defaults above that mention it scale with it"`
}

// Default returns the settings of a node for which nothing is set.
func Default() (s Settings) {
	SetDefaults(&s)
	return s
}

// Validate reports every setting that is not allowed, by its name.
func (s *Settings) Validate() error {
	var errs []error
	for _, f := range Fields(reflect.TypeFor[Settings]()) {
		if f.computed(s) {
			continue
		}
		if err := cmp.Or(f.CheckLimits(s), s.Check(f.Key)); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", f.Key, err))
		}
	}
	return errors.Join(errs...)
}
