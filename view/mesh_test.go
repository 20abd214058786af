package view

import (
	"maps"
	"slices"
	"testing"

	"github.com/balefire/balefire/wire"
)

// TestCountMembers checks that a connection to a dead member does not count as a path.
func TestCountMembers(t *testing.T) {
	s := wire.MeshSummary{States: map[string]int{}}
	dead := countMembers(&s, []wire.Member{
		{Name: "self", State: "ALIVE", Self: true, Connected: true},
		{Name: "a", State: "ALIVE", Connected: true, Path: "direct"},
		{Name: "b", State: "SUSPECT", Connected: true, Path: "relayed"},
		{Name: "c", State: "ALIVE"},
		{Name: "e", State: "DEAD", Connected: true, Path: "relayed"},
		{Name: "d", State: "DEAD", Connected: true, Path: "direct"},
		{Name: "f", State: "DEAD"},
	})
	if s.Members != 7 || s.Connected != 2 || s.Direct != 1 || s.Relayed != 1 {
		t.Errorf("%d members, %d connected, %d direct, %d relayed", s.Members, s.Connected, s.Direct, s.Relayed)
	}
	if !maps.Equal(s.States, map[string]int{"ALIVE": 3, "SUSPECT": 1, "DEAD": 3}) || !slices.Equal(dead, []string{"d", "e", "f"}) {
		t.Errorf("%v, dead are %v", s.States, dead)
	}
}
