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
}

// API says how programs on this machine reach this node.
type API struct {
	Socket string `yaml:"socket" said:"node.sock in the run folder, see above" doc:"path of the unix socket"`
}

// Limits bound what a node takes and keeps.
type Limits struct {
	MaxPending      int      `yaml:"max_pending" default:"100000" min:"1" max:"10000000" doc:"tasks that this node is home of and that have not ended; a submit beyond it is refused with FULL"`
	MaxPendingBytes Bytes    `yaml:"max_pending_bytes" default:"256MiB" min:"1MiB" doc:"their bodies in the store together"`
	MaxInbox        int      `yaml:"max_inbox" default:"100000" min:"1" max:"10000000" doc:"tasks taken over from peers and not finished"`
	PayloadMax      Bytes    `yaml:"payload_max" default:"10MiB" min:"1KiB" max:"256MiB" doc:"largest body given inline to the API; a larger one is sent as a file or a stream"`
	Slots           int      `yaml:"slots" said:"twice the cores, at least 4" max:"10000" doc:"handlers that run at the same time"`
	GracefulTimeout Duration `yaml:"graceful_timeout" said:"15s (Windows 5s)" max:"1h" doc:"how long a stop waits for running handlers"`
	IdempotencyTTL  Duration `yaml:"idempotency_ttl" default:"7d" min:"1m" max:"30d" doc:"how long an idempotency key is remembered after its task ended"`
	DoneAge         Duration `yaml:"done_age" default:"24h" min:"1m" max:"365d" doc:"how long the records of finished tasks are kept"`
	DoneCount       int      `yaml:"done_count" default:"50000" min:"1" max:"10000000" doc:"how many of them"`
	DeadAge         Duration `yaml:"dead_age" default:"30d" min:"1m" max:"3650d" doc:"how long dead letters stay on the shelf before they are archived to a file"`
	DeadCount       int      `yaml:"dead_count" default:"10000" min:"1" max:"10000000" doc:"how many of them"`
	MemoryLimit     Bytes    `yaml:"memory_limit" said:"256 MiB above what is live at start" doc:"heap that the node aims to stay below; none switches that off"`
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
		Net: node.NetConfig{Listen: c.Net.Listen, Announce: c.Net.Announce},
		Limits: node.Limits{
			MaxPending: c.Limits.MaxPending, MaxPendingBytes: int64(c.Limits.MaxPendingBytes), MaxInbox: c.Limits.MaxInbox,
			Payload: int64(c.Limits.PayloadMax), Slots: c.Limits.Slots,
			GracefulTimeout: time.Duration(c.Limits.GracefulTimeout), IdempotencyTTL: time.Duration(c.Limits.IdempotencyTTL),
			DoneAge: time.Duration(c.Limits.DoneAge), DoneCount: c.Limits.DoneCount,
			DeadAge: time.Duration(c.Limits.DeadAge), DeadCount: c.Limits.DeadCount, MemoryLimit: int64(c.Limits.MemoryLimit),
		},
		Dangerous: c.Dangerous, Handlers: c.Handlers,
	}
}

// Severity returns the least severity that is written.
func (l Log) Severity() slog.Level {
	var level slog.Level
	if err := level.UnmarshalText([]byte(l.Level)); err != nil {
		return slog.LevelInfo
	}
	return level
}
