package outbox

import (
	"sync"
	"time"

	"github.com/balefire/balefire/proto"
)

// retryHintTTL is how long refusals are retried soon after the peer has announced
// that it accepts such tasks again: the hint overtakes refusals on their way.
const retryHintTTL = 2 * time.Second

// retryHints holds the boot time of each peer's last hint about a code.
type retryHints struct {
	mu *sync.Mutex
	at map[retryHint]time.Duration
}

type retryHint struct {
	peer proto.PeerID
	code proto.Code
}

func newRetryHints() retryHints {
	return retryHints{mu: new(sync.Mutex), at: map[retryHint]time.Duration{}}
}

// put records a hint and drops expired ones.
func (h *retryHints) put(p proto.PeerID, codes []proto.Code, now time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for k, at := range h.at {
		if now-at >= retryHintTTL {
			delete(h.at, k)
		}
	}
	for _, c := range codes {
		h.at[retryHint{p, c}] = now
	}
}

// recent reports whether the peer gave a hint about the code within retryHintTTL.
func (h *retryHints) recent(p proto.PeerID, c proto.Code, now time.Duration) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	at, ok := h.at[retryHint{p, c}]
	return ok && now-at < retryHintTTL
}
