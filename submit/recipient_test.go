package submit

import (
	"testing"
	"time"

	"github.com/balefire/balefire/proto"
)

func TestNameCacheExpires(t *testing.T) {
	s, p := newNameCache(), proto.PeerID{1}
	if _, ok := s.get("laptop", 0); ok {
		t.Error("an unknown name was found")
	}
	s.put("laptop", p, time.Minute)
	if got, ok := s.get("laptop", time.Minute+nameTTL-1); !ok || got != p {
		t.Errorf("soon after: %v, %v", got, ok)
	}
	if _, ok := s.get("laptop", time.Minute+nameTTL); ok {
		t.Error("cached too long")
	}
	for i := range 3 * maxNames {
		s.put(string(rune('a'+i%26))+time.Duration(i).String(), p, 0)
	}
	if n := len(s.peers); n > maxNames {
		t.Errorf("%d names are cached", n)
	}
}
