package wire

import (
	"encoding/json"
	"errors"
	"testing"
	"time"
)

// TestDurationOfARequest checks that a duration in JSON is text with days, positive, and
// left out if it is zero.
func TestDurationOfARequest(t *testing.T) {
	for text, want := range map[string]time.Duration{"": 0, "90s": 90 * time.Second, "7d": 7 * 24 * time.Hour, "1d12h": 36 * time.Hour} {
		var s ScheduledTask
		if err := json.Unmarshal([]byte(`{"ttl":"`+text+`"}`), &s); err != nil || time.Duration(s.TTL) != want {
			t.Errorf("%q: %s, %v", text, s.TTL, err)
		}
	}
	for _, text := range []string{"0s", "0d", "-1s", "7", "soon"} {
		var r Request
		if err := json.Unmarshal([]byte(`{"delay":"`+text+`"}`), &r); !errors.Is(err, ErrInvalid) {
			t.Errorf("%q: %s, %v", text, r.Delay, err)
		}
	}
	for text, want := range map[string]time.Duration{"": 0, "0s": 0, "0": 0, "0d": 0, "90s": 90 * time.Second} {
		l := LeaseMail{Wait: 1}
		if err := json.Unmarshal([]byte(`{"wait":"`+text+`"}`), &l); err != nil || time.Duration(l.Wait) != want {
			t.Errorf("wait %q: %s, %v", text, l.Wait, err)
		}
	}
	for _, text := range []string{"-1s", "7", "soon"} {
		var l LeaseMail
		if err := json.Unmarshal([]byte(`{"wait":"`+text+`"}`), &l); !errors.Is(err, ErrInvalid) {
			t.Errorf("wait %q: %s, %v", text, l.Wait, err)
		}
	}
	b, err := json.Marshal(Prune{OlderThan: Duration(48 * time.Hour)})
	if err != nil || string(b) != `{"older_than":"2d"}` {
		t.Errorf("%s, %v", b, err)
	}
	b, err = json.Marshal(SubscriptionSettings{Lease: new(Duration)}) // the default, and not: no change
	var s SubscriptionSettings
	if err != nil || string(b) != `{"lease":""}` || json.Unmarshal(b, &s) != nil || s.Lease == nil || *s.Lease != 0 {
		t.Errorf("%s, %v, %v", b, err, s.Lease)
	}
	if b, err := json.Marshal(InviteOptions{}); err != nil || string(b) != `{}` {
		t.Errorf("%s, %v", b, err)
	}
}
