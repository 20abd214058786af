// Package transport moves messages between peers over libp2p. It finds a path to a peer,
// admits only peers that complete the hello, and acknowledges a task only after the
// receiver has reported it durable.
//
//	        ┌ ctl    HELLO both ways, then PING, PONG, PROBE, STARTED …
//	conn ───┼ task   DATA RESULT CANCEL GRANT … ─▶ ◀── ACK (one way each)
//	        ├ lease  RENEW GRANTED … ──▶            what must not wait behind large messages
//	        ├ mail   BUNDLE OPEN DELIVER … ──▶     ◀── ACK (one way each)
//	        ├ chunk  OFFER CHUNK… ──▶              ◀── OFFERED CHUNKED
//	        ├ join   JOIN ──▶                      ◀── JOINED
//	        ├ echo   PING… ──▶                     ◀── PONG: does the path carry full packets
//	        └ sync   SYNC ──▶                      ◀── SYNCED
//
//	outbox ─ Link.Send ─▶ window ─▶ stream ~~▶ groupBuffer ─ Receiver.Receive ─ node
//	       ◀ Link.Answers ────────── ACK ◀~~~~ after it returned ─────────────┘
//
// Mail has a stream of its own, opened when it is needed: a receiver that blocks there delays
// nothing else.
//
//	Link.Mail ─ MailStream.Send ─▶ window ─▶ stream ~~▶ Config.Mail ─ node
//
// A connection is usable only after both hellos are verified: until then only ctl and
// join are served on it, and it lives for some seconds at most. A peer that sends what no
// node sends loses the stream and soon the connection; package admit bounds what it
// costs.
//
// A peer behind a NAT is reached through a relay: a member that serves circuits and at
// which the peer has a reservation. Over that path a direct one is sought, and traffic
// moves to it once it exists:
//
//	contact ─ dial ─▶ direct? ── yes ──────────────────────▶ direct path
//	                    └ no ─▶ relay path ─ upgrade: punch, plain ─▶ ┘
//	                              ▲ remains open, takes over if the direct one fails
//
// [Transport] joins parts that have a life of their own: each has what it uses of the others,
// and none has the transport. All share the table of peers.
//
//	peerTable  connections and peers      greeter        the hello, clocks, refusals
//	members    who is a member            streamGuard    which streams are served, to whom
//	rates      what peers may cost        joins          requests to join
//	dialer     makes one connection       redialer       keeps contacts connected
//	links      task and mail streams      bodyTransfers  streamed bodies
//	relays     scores of relays           relayChooser   the relay in use
//	reserver   reservations at relays     puncher        direct paths through NATs
//	discovery  DHT, gossip topic, LAN     eventQueue     events for operators
//
// The package knows libp2p but nothing about tasks: it numbers frames and never opens an
// envelope.
package transport
