// Package transport moves messages between neighbours over libp2p: it finds a
// way to a peer, lets nobody in who cannot say hello, and says that a task has
// arrived only when the receiver said that it is durable.
//
//	        ┌ ctl    HELLO both ways, then PING, PONG, STARTED
//	conn ───┼ task   DATA RESULT CANCEL MARK ──▶   ◀── ACK (one way each)
//	        ├ chunk  OFFER CHUNK… ──▶              ◀── OFFERED CHUNKED
//	        └ join   JOIN ──▶                      ◀── JOINED
//
//	outbox ─ Link.Send ─▶ window ─▶ stream ~~▶ intake ─ Receiver.Receive ─ node
//	       ◀ Link.Answers ────────── ACK ◀~~~~ after it returned ────────┘
//
// A connection counts only after both hellos were verified: until then nothing
// but ctl and join is served on it, and it lives for some seconds at most. A
// peer that sends what no node sends loses the stream, and soon the connection:
// what it costs here is bounded by package admit.
//
// A peer behind a NAT is met through a relay: a member that serves circuits and
// at which it keeps a place. From there on a direct path is looked for, and the
// work moves to it when there is one:
//
//	contact ─ dial ─▶ direct? ── yes ──────────────────────▶ direct path
//	                    └ no ─▶ relay path ─ upgrade: punch, plain ─▶ ┘
//	                              ▲ stays beside it, takes over when it dies
//
// The package knows libp2p and nothing of tasks: it numbers frames and never
// opens an envelope.
package transport
