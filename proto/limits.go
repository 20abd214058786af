package proto

import "time"

// Sizes in bytes. Every decoder rejects more.
const (
	MaxFrame        = 384 << 10 // a frame on a task, mail or chunk stream
	MaxControl      = 64 << 10  // a frame on a ctl stream, a gossip message
	MaxHeader       = 4 << 10   // an envelope's header with its TLV area
	MaxInlineBody   = 256 << 10 // a plain body or result inside a frame; larger ones are streamed
	MaxSealed       = MaxInlineBody + 64<<10
	MaxInlineRecord = 4 << 10                 // a body or result inside a store record; larger ones are blob files
	MaxSealedRecord = MaxInlineRecord + 1<<10 // a sealed body inside a store record: with what is sealed with it
	ChunkSize       = 256 << 10
	MaxChunks       = 1 << 20         // of a body: 256 GiB
	MaxChunk        = ChunkSize + 256 // a sealed chunk
	MaxEncoded      = 1 << 20         // any encoded message, whatever its fields add up to
	MaxArgs         = 64 << 10        // all arguments of a task together
	MaxKind         = 128
	MaxKey          = 256       // an idempotency or ordering key
	MaxTarget       = 256       // a target, the name of a box
	MaxLetters      = MaxLetter // the letters of a bundle or a delivery
	MaxParts        = 512 << 10 // the records of a part of a box
	MaxBoxSettings  = 16 << 10
	MaxQueueState   = 48 << 10 // the state of one queue, with its deeds
	MaxDeed         = 1 << 10  // the details of a deed, and of the certificate that signs it
	MaxLease        = 5 << 10  // a task's lease with its history
	MaxStderr       = 4 << 10  // of a handler's standard error that is kept
	MaxReason       = 1 << 10
)

// Counts.
const (
	MaxEvents   = 32  // kept in a record; the middle ones are folded
	MaxAttempts = 16  // kept in a record's history
	MaxAddrs    = 32  // addresses of a peer
	MaxLookup   = 512 // tasks that one Lookup asks about
	MaxGroup    = 512 // leaves under one signature, frames under one Ack

	MaxBundle = 512  // mails in a bundle, a delivery or a settlement
	MaxCredit = 4096 // deliveries of a session that are not settled

	MaxRumors     = 32      // in a message of the gossip topic and in a step of a sync
	MaxPiggyback  = 8       // rumors that ride on a probe
	MaxDeeds      = 32      // of a queue; older ones are left out
	MaxGeneration = 1 << 32 // of a queue: nobody uses up the numbers
	MaxDigests    = 256     // nodes that one step of a sync compares
)

// Times that every node agrees on.
const (
	MaxTTL     = 30 * 24 * time.Hour // enforced by the receiver
	DefaultTTL = 7 * 24 * time.Hour
	Skew       = 5 * time.Minute  // the greatest difference between two clocks
	ClockNoise = 30 * time.Second // a smaller difference between the clocks of two nodes is neither corrected nor reported
)

// Version is the protocol version of this code.
const Version = 1

// FeatureMail is the feature in a Hello of a node that takes messages about mail.
const FeatureMail = "mail/1"

// FeatureLease is the feature in a Hello of a node that serves lease streams.
const FeatureLease = "lease/1"

// Stream protocols.
const (
	StreamCtl   = "/balefire/ctl/1"
	StreamTask  = "/balefire/task/1"
	StreamLease = "/balefire/lease/1"
	StreamMail  = "/balefire/mail/1"
	StreamChunk = "/balefire/chunk/1"
	StreamSync  = "/balefire/sync/1"
	StreamJoin  = "/balefire/join/1"
	StreamEcho  = "/balefire/echo/1"
)
