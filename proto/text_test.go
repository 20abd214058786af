package proto

import (
	"encoding/json"
	"testing"
	"time"
)

// Logs and JSON show ids in text form, not as arrays of numbers.
func TestIDsAreTextInJSON(t *testing.T) {
	id, peer := NewTaskID(time.UnixMilli(1)), PeerID{1}
	got, err := json.Marshal(map[string]any{"id": id, "peer": peer})
	want := `{"id":"` + id.String() + `","peer":"` + peer.String() + `"}`
	if err != nil || string(got) != want {
		t.Errorf("%s, %v, want %s", got, err, want)
	}
}
