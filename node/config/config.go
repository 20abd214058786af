package config

import (
	"log/slog"
	"time"

	"github.com/balefire/balefire/node"
)

// A Config is everything that a file may say about a node. The tags are the
// whole truth about a setting: its name, its default, its limits, its meaning.
type Config struct {
	Store     Store              `yaml:"store" doc:"The store below the node's folder."`
	Net       Net                `yaml:"net" doc:"How peers reach this node."`
	Mesh      Mesh               `yaml:"mesh" doc:"How this node stands among the others."`
	Queues    Queues             `yaml:"queues" doc:"What this node does about shared queues as an admin."`
	API       API                `yaml:"api" doc:"How programs on this machine reach this node."`
	Limits    Limits             `yaml:"limits" doc:"How much a node takes and keeps."`
	Log       Log                `yaml:"log" doc:"What a node tells about itself."`
	Dangerous []string           `yaml:"dangerous" doc:"kinds whose handler may have the profile dangerous; nothing else can allow that, no command and no peer"`
	Handlers  []node.HandlerSpec `yaml:"handlers" doc:"What this node does for others."`
}

// Store chooses the store.
type Store struct {
	Engine   string `yaml:"engine" default:"nutsdb" enum:"nutsdb,pebble" doc:"engine that keeps the store; fixed once the folder has one"`
	Reserve  Bytes  `yaml:"reserve" said:"the larger of 256 MiB and 5 % of the disk" doc:"free disk below which new work is refused; results, ends and deletes go on"`
	Segment  Bytes  `yaml:"segment" default:"64MiB" min:"1MiB" max:"1GiB" doc:"size of one file of a nutsdb store; fixed once the folder has one"`
	MaxBlob  Bytes  `yaml:"max_blob" default:"100GiB" min:"1MiB" doc:"largest body or result that is streamed"`
	MaxBlobs Bytes  `yaml:"max_blobs" said:"half of the free disk" doc:"all streamed bodies and results together"`
}

// Net says how peers reach this node.
type Net struct {
	Listen   []string `yaml:"listen" default:"/ip4/0.0.0.0/udp/4001/quic-v1,/ip4/0.0.0.0/tcp/4001,/ip6/::/udp/4001/quic-v1,/ip6/::/tcp/4001" doc:"addresses to listen on"`
	Announce []string `yaml:"announce" said:"none" doc:"further addresses that peers are told and tickets carry, as of a forwarded port"`
	Seeds    []string `yaml:"seeds" said:"none" doc:"members that are dialled besides those that the node knows: addresses that end in /p2p/ and an id"`
	Relay    bool     `yaml:"relay" default:"on" doc:"carry connections between members that cannot reach each other, if the certificate has the role relay"`
	Relays   int      `yaml:"relays" default:"2" min:"0" max:"4" doc:"relays to hold a place at, the best-scored members"`
	DHT      bool     `yaml:"dht" default:"on" doc:"look for members in the mesh's own distributed hash table; nothing public is ever asked"`
	MDNS     bool     `yaml:"mdns" default:"on" doc:"announce this node and look for members on the LAN"`
	PortMap  bool     `yaml:"port_map" default:"off" doc:"ask the router for ports, by NAT-PMP and UPnP"`
	Metrics  bool     `yaml:"libp2p_metrics" default:"on" doc:"show the metrics of libp2p too, which are about half of /metrics"`
	Score    Score    `yaml:"score" doc:"What counts when a relay is chosen."`
}

// Score weighs what counts when a relay is chosen.
type Score struct {
	Bandwidth float64 `yaml:"bandwidth" default:"1" doc:"weight of the measured bandwidth"`
	Latency   float64 `yaml:"latency" default:"1" doc:"weight of one over the round trip"`
	Loss      float64 `yaml:"loss" default:"2" doc:"weight of the measured loss, which is taken away"`
}

// Mesh says how this node stands among the others.
type Mesh struct {
	ProbeInterval  Duration `yaml:"probe_interval" default:"1s" min:"100ms" max:"1m" doc:"between two probes of other members, one member each; longer by itself when the network is bad"`
	ProbeTimeout   Duration `yaml:"probe_timeout" default:"500ms" min:"50ms" max:"30s" doc:"for the answer, before other members are asked to probe; grows with the measured round trip"`
	SyncInterval   Duration `yaml:"sync_interval" default:"30s" min:"1s" max:"1h" doc:"between two comparisons of what members know; a new connection compares at once"`
	SuspectRecover Duration `yaml:"suspect_recover" default:"5s" min:"0s" max:"1h" doc:"how long a member that was suspected has to be alive before shared queues give it work"`
	DeadRecover    Duration `yaml:"dead_recover" default:"30s" min:"0s" max:"1h" doc:"the same for one that was dead"`
	PruneAge       Duration `yaml:"prune_age" default:"30d" min:"1m" max:"3650d" doc:"after which the row of a dead member goes; its address, certificate and tasks stay"`
	PruneLimit     int      `yaml:"prune_limit" default:"100" min:"1" max:"10000" doc:"rows that go at once"`
	PruneInterval  Duration `yaml:"prune_interval" default:"1h" min:"1m" max:"30d" doc:"between two looks for such rows"`
	Priority       int      `yaml:"priority" default:"100" min:"1" max:"1000000" doc:"of this node when the home of a queue is chosen; higher is preferred"`
	Labels         []string `yaml:"labels" said:"none" doc:"words or key=value pairs that members are told, to choose this node by"`
}

// Queues says what this node does about shared queues as an admin.
type Queues struct {
	MadeBy []string `yaml:"made_by" said:"role:work" doc:"members for whom this node, where it is an admin, signs that they made a queue: role:ROLE, peer:NAME, peer:ID or *; they need the role work besides; empty: nobody"`
}

// API says how programs on this machine reach this node.
type API struct {
	Socket string `yaml:"socket" said:"node.sock in the run folder, see above" doc:"path of the unix socket"`
}

// Limits bound what a node takes and keeps.
type Limits struct {
	MaxPending      int      `yaml:"max_pending" said:"100000 with 384 MiB of memory_limit" min:"1" max:"10000000" doc:"tasks that this node is home of and that have not ended; a submit beyond it is refused with FULL"`
	MaxPendingBytes Bytes    `yaml:"max_pending_bytes" said:"two thirds of memory_limit: 256 MiB" min:"1MiB" doc:"their bodies in the store together"`
	MaxInbox        int      `yaml:"max_inbox" said:"100000 with 384 MiB of memory_limit" min:"1" max:"10000000" doc:"tasks taken over from peers and not finished; one of the peers may hold nine times as many as are free; their records take two thirds of memory_limit at most"`
	PayloadMax      Bytes    `yaml:"payload_max" default:"10MiB" min:"1KiB" max:"256MiB" doc:"largest body given inline to the API; a larger one is sent as a file or a stream"`
	QueueBodies     int      `yaml:"queue_bodies" default:"1024" min:"1" max:"1000000" doc:"tasks of shared queues with a body above 256 KiB that this node keeps as their home at a time; more are refused with FULL, and come when there is room"`
	Slots           int      `yaml:"slots" said:"twice the cores, at least 4" max:"10000" doc:"handlers that run at the same time"`
	GracefulTimeout Duration `yaml:"graceful_timeout" said:"15s (Windows 5s)" max:"1h" doc:"how long a stop waits for running handlers"`
	StallAfter      Duration `yaml:"stall_after" default:"5m" min:"5s" max:"720h" doc:"how long a handler of a shared queue that declares progress may show none before it is stopped and its task goes elsewhere"`
	IdempotencyTTL  Duration `yaml:"idempotency_ttl" default:"7d" min:"1m" max:"30d" doc:"how long an idempotency key is remembered while the node runs: here since the submit and while its task lives, where the task ran since its success"`
	MaxKeys         int      `yaml:"max_keys" said:"200000 (pebble: 1000000) with 384 MiB of memory_limit" min:"1" max:"10000000" doc:"idempotency keys that are remembered, of tasks made here and of successes here; a task with a new key beyond it is refused with FULL, or BUSY"`
	DoneAge         Duration `yaml:"done_age" default:"24h" min:"1m" max:"365d" doc:"how long the records of finished tasks are kept"`
	DoneCount       int      `yaml:"done_count" said:"50000 with 384 MiB of memory_limit" min:"1" max:"10000000" doc:"how many of them"`
	DeadAge         Duration `yaml:"dead_age" default:"30d" min:"1m" max:"3650d" doc:"how long dead letters stay on the shelf before they are archived to a file"`
	DeadCount       int      `yaml:"dead_count" said:"10000 with 384 MiB of memory_limit" min:"1" max:"10000000" doc:"how many of them"`
	MemoryLimit     Bytes    `yaml:"memory_limit" said:"5/8 of the control group's limit or 1/2 of the RAM and 384 MiB at most" doc:"memory that the node aims to stay below: with three quarters of it in use new work is refused with FULL; none switches that off, and GOMEMLIMIT in the environment goes before it.; the defaults above that name it are in proportion to it"`
}

// Log says what a node tells about itself.
type Log struct {
	Level  string `yaml:"level" default:"info" enum:"debug,info,warn,error" doc:"least severity that is written; tasks are told one by one at debug only; reloaded by SIGHUP without a stop"`
	Format string `yaml:"format" default:"auto" enum:"auto,text,json" doc:"auto: text on a terminal, else JSON"`
}

// Node returns what node.New wants to know of a node in dir.
func (c Config) Node(dir string) node.Config {
	return node.Config{
		Dir: dir,
		Store: node.StoreConfig{
			Engine: c.Store.Engine, Reserve: int64(c.Store.Reserve), Segment: int64(c.Store.Segment),
			MaxBlob: int64(c.Store.MaxBlob), MaxBlobs: int64(c.Store.MaxBlobs),
		},
		Net: node.NetConfig{
			Listen: c.Net.Listen, Announce: c.Net.Announce, Seeds: c.Net.Seeds, NoRelay: !c.Net.Relay, Relays: c.Net.relays(),
			NoDHT: !c.Net.DHT, NoMDNS: !c.Net.MDNS, PortMap: c.Net.PortMap, OwnMetrics: !c.Net.Metrics,
			Score: node.ScoreWeights{Bandwidth: weight(c.Net.Score.Bandwidth), Latency: weight(c.Net.Score.Latency), Loss: weight(c.Net.Score.Loss)},
		},
		Mesh: node.MeshConfig{
			ProbeInterval: time.Duration(c.Mesh.ProbeInterval), ProbeTimeout: time.Duration(c.Mesh.ProbeTimeout),
			SyncInterval:   time.Duration(c.Mesh.SyncInterval),
			SuspectRecover: time.Duration(c.Mesh.SuspectRecover), DeadRecover: time.Duration(c.Mesh.DeadRecover),
			PruneAge: time.Duration(c.Mesh.PruneAge), PruneLimit: c.Mesh.PruneLimit, PruneInterval: time.Duration(c.Mesh.PruneInterval),
			Priority: c.Mesh.Priority, Labels: c.Mesh.Labels,
		},
		Queues: node.QueueConfig{MadeBy: c.Queues.MadeBy},
		Limits: node.Limits{
			MaxPending: c.Limits.MaxPending, MaxPendingBytes: int64(c.Limits.MaxPendingBytes), MaxInbox: c.Limits.MaxInbox,
			Payload: int64(c.Limits.PayloadMax), QueueBodies: c.Limits.QueueBodies, Slots: c.Limits.Slots,
			GracefulTimeout: time.Duration(c.Limits.GracefulTimeout), StallAfter: time.Duration(c.Limits.StallAfter), IdempotencyTTL: time.Duration(c.Limits.IdempotencyTTL), MaxKeys: c.Limits.MaxKeys,
			DoneAge: time.Duration(c.Limits.DoneAge), DoneCount: c.Limits.DoneCount,
			DeadAge: time.Duration(c.Limits.DeadAge), DeadCount: c.Limits.DeadCount, MemoryLimit: int64(c.Limits.MemoryLimit),
		},
		Dangerous: c.Dangerous, Handlers: c.Handlers,
	}
}

// relays returns how many relays to hold a place at, as the node wants to know it.
func (n Net) relays() int {
	if n.Relays == 0 {
		return -1
	}
	return n.Relays
}

// weight returns a weight as the node wants to know it, where zero is the default.
func weight(w float64) float64 {
	if w == 0 {
		return -1
	}
	return w
}

// Severity returns the least severity that is written.
func (l Log) Severity() slog.Level {
	var level slog.Level
	if err := level.UnmarshalText([]byte(l.Level)); err != nil {
		return slog.LevelInfo
	}
	return level
}
