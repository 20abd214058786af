package pairing

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport"
)

// A person who joins from the LAN is told the whole id of each member that answers.
func TestJoiningOnTheLANNamesMembers(t *testing.T) {
	p := proto.PeerID{1}
	for _, reply := range []*proto.JoinReply{{Refusal: "no"}, {Pending: true}} {
		told := ""
		l := lanJoiner{LANOptions: LANOptions{Progress: func(s string) { told = s }}, joining: &joining{keys: identity.NewKeys(rand.Reader, time.Time{})}, reported: map[proto.PeerID]bool{}}
		l.answered(p, reply)
		if !strings.Contains(told, p.String()+" ") {
			t.Errorf("told %q about %v", told, reply)
		}
	}
	if err := (LANOptions{}).confirm(p, identity.Mesh{}); err == nil || !strings.Contains(err.Error(), p.String()) {
		t.Errorf("nobody compared its code: %v", err)
	}
}

// When the time is over a person is told that the members had no place, unless one had
// answered: then it is up to a person there.
func TestJoiningOnTheLANTellsThatThereIsNoPlace(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	l := lanJoiner{joining: &joining{keys: identity.NewKeys(rand.Reader, time.Time{})}, reported: map[proto.PeerID]bool{}, full: transport.ErrNoPlace}
	if err := l.timedOut(ctx, 1); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "no place") {
		t.Error(err)
	}
	l.reported[proto.PeerID{1}] = true
	if err := l.timedOut(ctx, 2); !strings.Contains(err.Error(), "peers accept") {
		t.Error(err)
	}
}
