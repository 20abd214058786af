package pairing

import (
	"crypto/rand"
	"strings"
	"testing"
	"time"

	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
)

// A person who joins from the LAN is told the whole id of each member that answers.
func TestJoiningOnTheLANNamesMembers(t *testing.T) {
	p := proto.PeerID{1}
	for _, reply := range []*proto.JoinReply{{Refusal: "no"}, {Pending: true}} {
		told := ""
		l := lanJoiner{LANOptions{Progress: func(s string) { told = s }}, &joining{keys: identity.NewKeys(rand.Reader, time.Time{})}, map[proto.PeerID]bool{}}
		l.answered(p, reply)
		if !strings.Contains(told, p.String()+" ") {
			t.Errorf("told %q about %v", told, reply)
		}
	}
	if err := (LANOptions{}).confirm(p, identity.Mesh{}); err == nil || !strings.Contains(err.Error(), p.String()) {
		t.Errorf("nobody compared its code: %v", err)
	}
}
