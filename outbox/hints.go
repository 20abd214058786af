package outbox

import (
	"sync"
	"time"

	"github.com/balefire/balefire/proto"
)

// hintFor is how long a refusal is not believed after the peer has said that it
// takes such tasks now: the hint overtakes refusals that are on their way.
const hintFor = 2 * time.Second

// hints holds the boot time of each peer's last hint about a code.
type hints struct {
	mu *sync.Mutex
	at map[hint]time.Duration
}

type hint struct {
	peer proto.PeerID
	code proto.Code
}

func newHints() hints { return hints{mu: new(sync.Mutex), at: map[hint]time.Duration{}} }

// put notes a hint and forgets those that have had their time.
func (h *hints) put(p proto.PeerID, codes []proto.Code, now time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for k, at := range h.at {
		if now-at >= hintFor {
			delete(h.at, k)
		}
	}
	for _, c := range codes {
		h.at[hint{p, c}] = now
	}
}

// fresh reports whether the peer gave a hint about the code a moment ago.
func (h *hints) fresh(p proto.PeerID, c proto.Code, now time.Duration) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	at, ok := h.at[hint{p, c}]
	return ok && now-at < hintFor
}
