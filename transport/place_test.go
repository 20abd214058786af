package transport

import (
	"slices"
	"testing"

	"github.com/balefire/balefire/proto"
)

// Every type has one place, and those of newer nodes are refused without loss.
func TestPlaces(t *testing.T) {
	last := proto.MessageType(-1)
	for _, r := range places {
		if r.first <= last || r.last < r.first {
			t.Errorf("types %d to %d after %d", r.first, r.last, last)
		}
		last = r.last
	}
	for n := range proto.MessageType_name {
		found := false
		for _, r := range places {
			found = found || proto.MessageType(n) >= r.first && proto.MessageType(n) <= r.last
		}
		if !found {
			t.Errorf("%s has no place", proto.MessageType(n))
		}
	}
	for _, tt := range []struct {
		types []proto.MessageType
		want  place
	}{
		{[]proto.MessageType{proto.TypeData, proto.TypeResult, proto.TypeCancel}, place{stream: proto.StreamTask, numbered: true}},
		{[]proto.MessageType{proto.TypeMark}, place{stream: proto.StreamTask}},
		{[]proto.MessageType{proto.TypeGranted, proto.TypeRenew, proto.TypeStatusReply, proto.TypeCommitted, proto.TypeHandedOff, proto.TypeWithdraw}, place{stream: proto.StreamTask, posted: true, urgent: true}},
		{[]proto.MessageType{proto.TypeGrant, proto.TypeEnded, proto.TypeHandoff, proto.TypeTimelineReply, proto.TypeQueueAsk, proto.TypeQueueAnswer}, place{stream: proto.StreamTask, posted: true}},
		{[]proto.MessageType{39, 46, 59}, place{stream: proto.StreamTask, posted: true}}, // newer messages about ownership
		{[]proto.MessageType{-1, 19, 40, 60, 63, 99, 127, 128, 1 << 30}, place{stream: proto.StreamTask, numbered: true}},
		{[]proto.MessageType{proto.TypeBundle, proto.TypeBoxTaken}, place{stream: proto.StreamMail, numbered: true}},
		{[]proto.MessageType{proto.TypeReady, proto.TypeLookup, proto.TypeLookupReply}, place{stream: proto.StreamCtl}},
	} {
		for _, typ := range tt.types {
			if got := placeOf(typ); got != tt.want {
				t.Errorf("type %d: %+v, want %+v", typ, got, tt.want)
			}
		}
	}
}

// Of the known types only those that a task stream carries to its receiver belong there.
func TestTypesOnTaskStreams(t *testing.T) {
	served := []proto.MessageType{proto.TypeData, proto.TypeResult, proto.TypeCancel, proto.TypeMark}
	for n := range proto.MessageType_name {
		typ := proto.MessageType(n)
		own := typ >= proto.TypeGrant && typ <= proto.TypeTimelineReply || typ == proto.TypeQueueAsk || typ == proto.TypeQueueAnswer
		if want := slices.Contains(served, typ) || own; (placeOf(typ).stream == streamTask) != want {
			t.Errorf("%s on a task stream: %v, want %v", typ, !want, want)
		}
	}
}
