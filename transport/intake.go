package transport

import (
	"context"
	"io"
)

// An intake receives the streams of one kind from a peer, one at a time: the frames of one
// are never received concurrently with or after those of the next.
type intake struct {
	endNewest func()        // ends the newest stream without waiting for that; guarded by the mu of the peerTable
	receiving chan struct{} // held while one is being received
}

func newIntake() intake { return intake{receiving: make(chan struct{}, 1)} }

// tasksOf returns the intake of the task streams of n.
func tasksOf(n *peerState) *intake { return &n.tasks }

// leasesOf returns the intake of the lease streams of n.
func leasesOf(n *peerState) *intake { return &n.leases }

// acquireIntake ends the peer's previous stream of this intake and returns when it has been
// received. end ends s, which becomes the newest, and must not block.
func (ls *links) acquireIntake(ctx context.Context, s *stream, of func(*peerState) *intake, end func()) (release func(), err error) {
	ls.peers.mu.Lock()
	in := of(ls.peers.get(s.conn.peer))
	endPrevious := in.endNewest
	in.endNewest = end
	ls.peers.mu.Unlock()
	if endPrevious != nil {
		endPrevious()
	}
	select {
	case in.receiving <- struct{}{}:
		return func() { <-in.receiving }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-s.conn.gone:
		return nil, io.EOF
	}
}
