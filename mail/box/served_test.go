package box

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/balefire/balefire/proto"
)

// A handover that came here is remembered when the box has gone on or was removed, after a
// checkpoint and a replay, until MaxServed others came.
func TestServedHandoversAreRemembered(t *testing.T) {
	src, dst := newBench(t), newBench(t)
	dst.apply(EncodeRemoveBox(1))
	src.stage(1, Still)
	at := dst.copyOf(src, 1)
	dst.take(src, at, src.parts(1))
	id := [16]byte{1}
	if dst.s.Served(id) {
		t.Error("a copy is served")
	}
	if r := dst.serve(at); r.Code != proto.CodeOK {
		t.Fatalf("%+v", r)
	}
	dst.stage(at, Still)
	dst.apply(EncodeLeave(at))
	back, err := Load(bytes.NewReader(save(t, dst.s)), chainNotes{})
	if err != nil || !back.Served(id) || !dst.s.Served(id) || !dst.replay(New(chainNotes{}), 0).Served(id) {
		t.Errorf("it is forgotten: %v", err)
	}
	for i := range uint32(MaxServed) {
		if !dst.s.Served(id) {
			t.Fatalf("it is forgotten after %d others", i)
		}
		dst.s.served.note([16]byte(binary.BigEndian.AppendUint32(make([]byte, 12), i)))
	}
	if dst.s.Served(id) || len(dst.s.served) != MaxServed {
		t.Errorf("%d are remembered", len(dst.s.served))
	}
	if _, err := Load(bytes.NewReader(save(t, dst.s)), chainNotes{}); err != nil {
		t.Error(err)
	}
}
