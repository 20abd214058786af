// Package lab builds networks on one machine in which real processes meet what
// they will meet in the world: NAT routers of several kinds, firewalls, IPv6, links
// with delay, loss and little room, small MTUs with and without ICMP, cables pulled,
// partitions in one direction, addresses that change. All of it can be changed while they run.
//
//	        public 11.0.0.0/24                     each box a network namespace
//	┌─ relay ──── switch ──── router (cone | symmetric | …)
//	│ 11.0.0.1      │            │ 192.168.1.1
//	└ Port: cut,  router       switch ──── host 192.168.1.2
//	  loss, rate,   │            └──────── host 192.168.1.3
//	  delay …     switch ──── host
//
// A [Port] is where a host or a router is plugged into a [Net]; everything that
// can go wrong with a link is asked of it. A failure to build ends the test and
// says which step failed and why. What a lab made is gone when its test ends; what
// a killed run left behind is removed by the next one. Nothing in it has a way to
// the machine's own network.
//
// It needs Linux, root and iproute2. Ranges kept for documentation, and private
// ones, are not public for libp2p: a public network wants one like 11.0.0.0/24.
package lab
