// Package gossip says who is alive, and mends what two nodes know when they meet
// again.
//
//	         no answer, directly             nobody refuted it
//	         and through 3 helpers           in time
//	ALIVE ───────────────────────▶ SUSPECT ───────────────────▶ DEAD
//	  ▲ ▲      its next incarnation   │                           │
//	  │ └─────────────────────────────┘                           │
//	  └──────────── only with a higher incarnation ───────────────┘
//
// [Core] decides: it is the SWIM protocol with the rules of Lifeguard, a state
// machine without clock, disk, network or goroutine, which a simulator runs for
// hundreds of virtual hours. [Runner] is the core with a clock, keys and a network.
//
// What is promised (I16): a node that was called dead is alive again only by a
// higher incarnation, which it alone can sign. A single other node cannot bring
// anybody's death about: each node comes to its own verdict, after a time in which
// the accused can answer, and others' accusations only shorten that time. A node
// that is suspected itself, or hears from nobody, says so ([Runner.Isolated]), and
// claims nothing new. What a node knows of others is equal to what its neighbours
// know soon after they can speak, whatever was lost before: rumors are quick and may
// be lost, the exchange of digests is slower and complete.
package gossip
