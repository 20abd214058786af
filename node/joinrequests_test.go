package node

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/pairing"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// A node without a ticket waits until a person accepts it and then is a member.
func TestPersonAdmitsANodeWithoutATicket(t *testing.T) {
	a, b := pair(t, nil)
	keys, err := identity.CreateKeys(t.TempDir()+"/id", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	ask := func(n *testNode, name string) *proto.JoinReply {
		return n.Pairing.Join(t.Context(), keys.Peer(), &proto.JoinRequest{Name: name, KeyRecord: keys.KeyRecord()})
	}
	if r := ask(a, "tablet"); !r.GetPending() || r.GetCertificate() != nil {
		t.Fatalf("before it was accepted: %v", r)
	}
	if r := ask(b, "tablet"); r.GetPending() || !strings.Contains(r.GetRefusal(), "may not admit") {
		t.Errorf("a member that is not an admin answers %v", r)
	}
	w := a.Pairing.Requests()
	if len(w) != 1 || w[0].Name != "tablet" || w[0].Code != pairing.JoinCode(keys.Peer()) {
		t.Fatalf("join requests: %+v", w)
	}
	if _, err := a.Pairing.Accept(t.Context(), "nobody", wire.AcceptOptions{}); !errors.Is(err, wire.ErrNotFound) {
		t.Errorf("accept an unknown node: %v", err)
	}
	if _, err := a.Pairing.Accept(t.Context(), "tablet", wire.AcceptOptions{}); !errors.Is(err, wire.ErrInvalid) {
		t.Errorf("accept by its own name: %v", err)
	}
	if _, err := a.Pairing.Accept(t.Context(), w[0].Code, wire.AcceptOptions{Name: a.Name()}); !errors.Is(err, wire.ErrRefused) {
		t.Errorf("accept with a name that is taken: %v", err)
	}
	p, err := a.Pairing.Accept(t.Context(), strings.ToLower(w[0].Code), wire.AcceptOptions{Roles: []string{identity.RoleSend}})
	if err != nil || p.Name != "tablet" || !slices.Equal(p.Roles, []string{identity.RoleSend}) {
		t.Fatalf("accept: %+v, %v", p, err)
	}
	r := ask(a, "tablet")
	m, err := a.mesh.VerifyMember(r.GetCertificate(), time.Now())
	if err != nil || m.Peer != keys.Peer() || m.Name != "tablet" || m.HasRole(identity.RoleWork) || len(r.GetPeers()) != 2 {
		t.Fatalf("after the acceptance: %v, %v, %d peers", m, err, len(r.GetPeers()))
	}
	if w := a.Pairing.Requests(); len(w) != 0 {
		t.Errorf("it is still listed: %+v", w)
	}
	if keys, err = identity.CreateKeys(t.TempDir()+"/id", time.Now()); err != nil {
		t.Fatal(err)
	}
	ask(a, "phone")
	if p, err = a.Pairing.Accept(t.Context(), pairing.JoinCode(keys.Peer()), wire.AcceptOptions{}); err != nil || !slices.Equal(p.Roles, identity.DefaultRoles()) {
		t.Errorf("accepted without roles: %+v, %v", p, err)
	}
}
