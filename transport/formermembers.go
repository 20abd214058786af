package transport

import (
	"context"
	"time"
)

// membersEvery is how often it is checked who is still a member.
const membersEvery = 2 * time.Second

// watchMembers closes the connections of former members until ctx is done.
func (t *Transport) watchMembers(ctx context.Context) {
	tick := t.cfg.Clock.Ticker(membersEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			t.closeFormerMembers()
		}
	}
}

// closeFormerMembers closes connections on which the peer was a member and no longer is,
// because its certificate expired: the streams of gossip, the hash table and the relay that are
// open end with them. The peer may connect again to have it renewed, and then gets none of these.
func (t *Transport) closeFormerMembers() {
	for _, c := range t.peers.verifiedConns() {
		switch {
		case t.members.activeMember(c.peer):
			c.member.Store(true)
		case c.member.Load():
			t.log.Info("closing the connection of a former member", "peer", c.peer)
			c.raw.Close()
		}
	}
}
