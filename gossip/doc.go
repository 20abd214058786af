// Package gossip tracks which members are alive, and reconciles what two nodes know when
// they reconnect.
//
//	         no answer, directly             not refuted
//	         or through 3 helpers            in time
//	ALIVE ───────────────────────▶ SUSPECT ───────────────────▶ DEAD
//	  ▲ ▲      its next incarnation   │                           │
//	  │ └─────────────────────────────┘                           │
//	  └──────────── only with a higher incarnation ───────────────┘
//
// [Core] decides. It implements the SWIM protocol with the Lifeguard extensions as a
// state machine without clock, disk, network or goroutines, which a simulator runs for
// hundreds of virtual hours. [Runner] connects a core to a clock, keys and a network.
//
// The package promises (I16): a node that was declared dead becomes alive again only with
// a higher incarnation, which only that node can sign. No single node can have another
// declared dead: each node reaches its own verdict after a time in which the accused can
// answer, and accusations by others only shorten that time. A node that is itself
// suspected, or hears from no one, reports so ([Runner.Isolated]) and claims no new work.
// Two nodes that can communicate soon know the same members, whatever was lost before:
// rumors are fast but may be lost; the exchange of digests is slower but complete.
package gossip
